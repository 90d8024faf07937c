# SPDX-License-Identifier: Apache-2.0
"""`lockgate parts test`: checks whether a detector or chunker as a service keeps its contract."""

import argparse
import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

from lockgate.backends.chunker import open_chunker_client
from lockgate.backends.detector import open_detector_client
from lockgate.backends.detector_format import PATHS, encode_contents, encode_subject
from lockgate.backends.http import OutgoingRequest, open_http
from lockgate.cli import EXIT_FOUND, EXIT_OK
from lockgate.cli.part_checks import (
    FAIL,
    PASS,
    SAMPLE,
    SKIP,
    CheckResult,
    build_subject,
    check_remote_chunker,
    check_remote_detector,
)
from lockgate.cli.text import count_of, flatten
from lockgate.config.settings import DetectorSettings, Secret, ServiceSettings, TlsSettings
from lockgate.errors import InvalidRequest, Rejected
from lockgate.gate.values import TEXT_CONTENTS, WHOLE_TEXT_CHUNKER

_PORTS = {"http": 8080, "https": 443, "grpc": 8085, "grpcs": 443}
_SECURE = ("https", "grpcs")


def run_test(options: argparse.Namespace) -> int:
    """Carries out `parts test`: prints each check; returns 1 if one has failed."""
    url = _read_url(options.url)
    tested = asyncio.run(_test(url, _build_service(url, options), options))
    for title, results in tested.items():
        print(f"{title}\n" + "\n".join([_describe(one) for one in results]))
    states = [one.state for results in tested.values() for one in results]
    counts = ", ".join([f"{states.count(state)} {word}" for state, word in _WORDS.items() if state in states])
    print(f"{count_of(len(states), 'check')}: {counts}")
    return EXIT_FOUND if FAIL in states else EXIT_OK


_WORDS = {PASS: "passed", FAIL: "failed", SKIP: "skipped"}


def _describe(one: CheckResult) -> str:
    if one.state == PASS:
        return f"  {one.state}  {one.name}"
    lines = [f"  {one.state}  {one.name}: {flatten(one.seen)}"]
    return "\n".join([*lines, f"        {one.advice}"] if one.state == FAIL else lines)


def _read_url(words: str) -> SplitResult:
    try:
        url = urlsplit(words)
        is_usable = url.scheme in _PORTS and bool(url.hostname) and url.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise InvalidRequest(f"`{words}` must be http://host:port of a detector, or grpc://host:port of a chunker")
    return url


def _build_service(url: SplitResult, options: argparse.Namespace) -> ServiceSettings:
    token = os.environ.get(options.token_env) if options.token_env else None
    if options.token_env and not token:
        raise InvalidRequest(f"the variable {options.token_env} of --token-env is not set")
    return ServiceSettings(
        hostname=str(url.hostname),
        port=url.port or _PORTS[url.scheme],
        path_prefix=url.path.strip("/"),
        request_timeout=options.timeout,
        tls=TlsSettings(client_ca_cert_path=options.ca_cert) if url.scheme in _SECURE else None,
        api_token_value=Secret(token) if token else None,
    )


async def _test(
    url: SplitResult, service: ServiceSettings, options: argparse.Namespace
) -> Mapping[str, Sequence[CheckResult]]:
    if url.scheme.startswith("grpc"):
        async with open_chunker_client(options.id, service) as chunker:
            return {f"chunker {url.geturl()}": await check_remote_chunker(chunker, options.text)}
    tested = {}
    params = _read_params(options.params)
    kinds: list[Any] = [options.type] if options.type else await _find_types(service, options)
    for kind in kinds:
        settings = DetectorSettings(kind, WHOLE_TEXT_CHUNKER, 0.5, service=service, batch_contents=1)
        async with open_detector_client(options.id, settings) as detector:
            results = await check_remote_detector(detector, kind, params, options.text)
        tested[f"detector {url.geturl()} ({kind})"] = results
    return tested


def _read_params(words: str) -> dict[str, Any]:
    try:
        params = json.loads(words)
    except ValueError:
        params = None
    if not isinstance(params, dict):
        raise InvalidRequest("--params must be a JSON object")
    return params


async def _find_types(service: ServiceSettings, options: argparse.Namespace) -> list[str]:
    """Returns the types of detectors whose path answers with 200; raises Rejected if there is none."""
    params, statuses = _read_params(options.params), {}
    async with open_http(service, "detector", options.id) as http:
        headers = http.headers((), {"detector-id": options.id, "x-model-name": options.id})
        for kind, path in PATHS.items():
            is_contents = kind == TEXT_CONTENTS
            body = (
                encode_contents([SAMPLE], params)
                if is_contents
                else encode_subject(build_subject(kind, SAMPLE), params)
            )
            statuses[kind] = (await http.post(OutgoingRequest(http.url(path), headers, body, ""))).status
    found = [kind for kind, status in statuses.items() if status == 200]
    if not found:
        answers = ", ".join([f"{PATHS[kind]} {status}" for kind, status in statuses.items()])
        raise Rejected(
            options.id, f"no path of the detector API answers with 200: {answers}; name it with --type, --id"
        )
    return found
