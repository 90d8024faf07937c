# SPDX-License-Identifier: Apache-2.0
"""The command line: parses arguments, calls a command, prints. `_EPILOG` explains the exit codes."""

import argparse
import asyncio
import os
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lockgate._version import __version__
from lockgate.cli import (
    EXIT_FAILED,
    EXIT_FOUND,
    EXIT_OK,
    EXIT_USAGE,
    ask,
    classifier,
    demo,
    evaluate,
    index,
    read_flags,
    sessions,
    setup,
    verify,
)
from lockgate.cli.ask import read_detector
from lockgate.cli.text import complain
from lockgate.errors import ConfigError, LockgateError, RequestError

if TYPE_CHECKING:
    from lockgate.config.settings import Settings

_EPILOG = """examples:
  lockgate demo                                  a library to talk to: see text being held, checked and released
  lockgate ask "How long may I keep a book?"     ask a guarded question, here in the terminal
  lockgate detect "Mail ana@example.com"         find personal data and secrets in a text
  lockgate serve                                 serve the API on 127.0.0.1:8033
  lockgate check --config-path config.yaml       what would run, and everything that is wrong
  lockgate setup                                 fetch the models that run here, once
  lockgate index add docs/                       let agents find documents
  lockgate sessions list                         what agents remember
  lockgate verify answer.sse                     check a saved answer against its receipt
  lockgate parts serve                           offer our detectors and chunkers to other gateways

exit codes: 0 all went well (detect: nothing found), 1 detect found something
            (verify: the answer is not what was cleared, ask: it was blocked),
            2 wrong usage or settings, 3 anything else failed
"""

_PARTS = (
    "The detectors and chunkers that run here, as services for any compatible orchestrator: detectors over the "
    "detector API (HTTP), chunkers over the chunker API (gRPC)."
)

_CHECK = (
    "Show what would run, the resolved settings as YAML, and at the end everything that needs attention. Nothing is "
    "asked over the network. Exit code 2 if `lockgate serve` would not start with these settings here."
)
_DETECT = "Run detectors on a text: one line for each finding, or the text with findings in colour on a terminal."


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The command."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its library would write to standard error past the log
    options = _parser().parse_args(arguments)
    try:
        code = options.run(options)
    except ConfigError as error:
        code = complain(str(error), EXIT_USAGE)
    except LockgateError as error:
        code = complain(error.message, EXIT_USAGE if isinstance(error, RequestError) else EXIT_FAILED)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # noqa: BLE001 - the last place to speak
        code = EXIT_FAILED
        if _is_about_output(error):  # whoever read our output has gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        else:
            traceback.print_exc()
    sys.exit(code)


def _is_about_output(error: Exception) -> bool:
    if isinstance(error, ExceptionGroup):
        return error.split(BrokenPipeError)[1] is None
    return isinstance(error, BrokenPipeError)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lockgate",
        description="A gateway that lets text through only when every detector has read it, while it streams.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lockgate {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(commands.add_parser("serve", help="serve the API", description="Serve the API until Ctrl-C or SIGTERM."))
    check = commands.add_parser(
        "check", help="show what would run and what is wrong with the settings", description=_CHECK
    )
    check.set_defaults(run=_run_check)
    _add_settings(check)
    _add_detect(
        commands.add_parser("detect", help="run detectors on a text, a file or standard input", description=_DETECT)
    )
    for module in (demo, ask, setup, index, sessions, classifier, evaluate, verify):
        module.add_parser(commands, _add_settings)
    _add_parts(commands.add_parser("parts", help="offer our detectors and chunkers to others", description=_PARTS))
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config-path",
        type=Path,
        metavar="FILE",
        help="YAML settings (ORCHESTRATOR_CONFIG; default config/config.yaml if it exists, else the embedded default)",
    )
    parser.add_argument("--compat", dest="set:compat", metavar="MODE", help="none or fms (LOCKGATE_COMPAT)")
    parser.add_argument(
        "--data-dir",
        dest="set:data_dir",
        metavar="DIR",
        help="where weights, index and sessions lie (LOCKGATE_DATA_DIR; default ~/.local/share/lockgate)",
    )
    parser.set_defaults(load=partial(_load, needs_callers=False))


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run_serve)
    _add_settings(parser)
    for flag, path, variable, meaning in (
        ("--host", "server.host", "LOCKGATE_SERVER__HOST", "address to bind"),
        ("--http-port", "server.http_port", "HTTP_PORT", "API port, default 8033"),
        ("--health-http-port", "server.health_port", "HEALTH_HTTP_PORT", "health port, default 8034"),
        ("--grpc-port", "server.grpc_port", "LOCKGATE_SERVER__GRPC_PORT", "agent port (gRPC), default 50051"),
        ("--workers", "server.workers", "LOCKGATE_SERVER__WORKERS", "processes that serve the API, default 1"),
        ("--log-format", "log.format", "LOG_FORMAT", "full, compact, pretty, console or json"),
        ("--tls-cert-path", "server.tls.cert_path", "TLS_CERT_PATH", "server certificate chain (PEM)"),
        ("--tls-key-path", "server.tls.key_path", "TLS_KEY_PATH", "server private key (PEM)"),
        ("--tls-client-ca-cert-path", "server.tls.client_ca_cert_path", "TLS_CLIENT_CA_CERT_PATH", "CA for clients"),
        ("--otlp-export", "otlp.export", "OTLP_EXPORT", "traces, metrics or both"),
        ("--otlp-service-name", "otlp.service_name", "OTLP_SERVICE_NAME", "name in traces"),
        ("--otlp-endpoint", "otlp.endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT", "base endpoint"),
        ("--otlp-traces-endpoint", "otlp.traces_endpoint", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "for traces"),
        ("--otlp-metrics-endpoint", "otlp.metrics_endpoint", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "for metrics"),
        ("--otlp-protocol", "otlp.protocol", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc or http"),
        ("--otlp-traces-protocol", "otlp.traces_protocol", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "for traces"),
        ("--otlp-metrics-protocol", "otlp.metrics_protocol", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "for metrics"),
    ):
        parser.add_argument(flag, dest=f"set:{path}", metavar="VALUE", help=f"{meaning} ({variable})")
    for flags, path, variable, meaning in (
        (("--start-up-health-check",), "start_up_health_check", "START_UP_HEALTH_CHECK", "probe all services at start"),
        (("--quiet", "-q"), "quiet", "QUIET", "no log on standard output"),
    ):
        parser.add_argument(
            *flags, dest=f"set:{path}", action="store_true", default=None, help=f"{meaning} ({variable})"
        )


def _add_detect(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run_detect)
    parser.add_argument("text", nargs="?", help="the text; without it, or with -, standard input is read")
    parser.add_argument("-f", "--file", type=Path, help="read this file")
    parser.add_argument(
        "-d",
        "--detector",
        action="append",
        metavar="ID[=JSON]",
        help='a detector and its parameters: -d pii, -d \'regex={"patterns":["x+"]}\'; '
        "default: those of the config file, else pii and secrets",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per released part")
    _add_settings(parser)


def _add_parts(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    words = "Those of the settings that run here are served, until Ctrl-C or SIGTERM; port 0 is any free one."
    serve = commands.add_parser("serve", help="serve them", description=f"{_PARTS} {words}")
    serve.set_defaults(run=_run_parts)
    _add_settings(serve)
    serve.add_argument("--host", default="127.0.0.1", help="address to bind, default 127.0.0.1")
    for flag, port, meaning in (
        ("--detectors-port", 8080, "port of the detectors (HTTP)"),
        ("--chunkers-port", 8085, "port of the chunkers (gRPC)"),
    ):
        serve.add_argument(flag, type=_read_port, default=port, metavar="PORT", help=f"{meaning}, default {port}")


def _read_port(word: str) -> int:
    if not (word.isascii() and word.isdecimal() and int(word) <= 65535):
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 65535, not {word!r}")
    return int(word)


def _load(options: argparse.Namespace, *, is_trial: bool = False, needs_callers: bool = True) -> Any:
    """The settings. If something is wrong with them, the parts are tried too, so that every fault is told at once.

    Commands that serve nobody need no callers: their keys may well be set for the server alone.
    """
    from lockgate.config.load import load_settings

    path, flags = getattr(options, "config_path", None), read_flags(options)
    load = partial(load_settings, config_path=path, flags=flags, environ=os.environ, needs_callers=needs_callers)
    try:
        settings = load()
    except ConfigError:
        is_trial = True
    if is_trial:
        from lockgate.gateway import try_part
        from lockgate.telemetry import set_up_logging

        set_up_logging(style=None, level="INFO", is_quiet=True)  # what is wrong is told as faults
        settings = load(try_part=try_part)
    return settings


def _load_and_log(options: argparse.Namespace) -> Any:
    """The settings of a server; its log is open."""
    from lockgate.telemetry import set_up_logging

    settings = _load(options)
    set_up_logging(style=settings.log.format, level=settings.log.level, is_quiet=settings.quiet)
    return settings


def _run_serve(options: argparse.Namespace) -> int:
    from lockgate.server.run import serve

    serve(_load_and_log(options))
    return EXIT_OK


def _run_parts(options: argparse.Namespace) -> int:
    from lockgate.server.parts import PartsPlace, serve_parts

    serve_parts(_load_and_log(options), PartsPlace(options.host, options.detectors_port, options.chunkers_port))
    return EXIT_OK


def _run_check(options: argparse.Namespace) -> int:
    from lockgate.api.endpoints import list_endpoints
    from lockgate.cli.main import list_missing
    from lockgate.compat import find_rules
    from lockgate.config.report import render_check
    from lockgate.gateway import open_once
    from lockgate.plugins import locate
    from lockgate.server.listening import load_tls

    settings = _load(options, is_trial=True)
    load_tls(settings.server.tls)
    print(render_check(settings, locate, list_missing(settings), list_endpoints(settings), find_rules(settings)))
    try:
        open_once(settings)
    except ConfigError as error:  # files of TLS, say, which may well be missing where settings are only checked
        print(f"\n`lockgate serve` would not start here:\n{error}")
        return EXIT_USAGE
    return EXIT_OK


def _run_detect(options: argparse.Namespace) -> int:
    from lockgate.cli.terminal import detect
    from lockgate.config.settings import EMBEDDED_DEFAULT
    from lockgate.gate.values import TEXT_CONTENTS

    if options.text not in (None, "-") and options.file:
        return complain("give a text or a file, not both", EXIT_USAGE)
    settings = _load(options, needs_callers=False)
    readers = [name for name, part in settings.detectors.items() if part.type == TEXT_CONTENTS]
    own = readers if settings.source != EMBEDDED_DEFAULT else ["pii", "secrets"]
    requested = dict(read_detector(word, "--detector") for word in options.detector or own)
    text = None if options.text in (None, "-") else os.fsencode(options.text).decode("utf-8", "replace")
    has_found = asyncio.run(detect(settings, requested, text=text, file=options.file, as_json=options.json))
    return EXIT_FOUND if has_found else EXIT_OK


_NO_WEIGHTS = (
    "no embedding weights in {}: run `lockgate setup`; until then agents search by words alone, without the classifier"
)


def list_missing(settings: "Settings") -> list[str]:
    """One line for each; a server starts without them and does less."""
    if not settings.agents:
        return []
    return [*_look_for_weights(settings), *_look_for_indexes(settings), *_look_for_named(settings)]


def _look_for_weights(settings: "Settings") -> list[str]:
    from lockgate.models.weights import MINILM, find_weights

    return [] if find_weights(settings.data_dir, MINILM.name) else [_NO_WEIGHTS.format(settings.data_dir)]


def _look_for_indexes(settings: "Settings") -> list[str]:
    from lockgate.config.agent_settings import INDEX
    from lockgate.opened_agents import find_index_file

    used = {name for agent in settings.agents.values() for name in agent.sources}
    indexes = [one for name, one in settings.sources.items() if name in used and one.embedded == INDEX]
    files = {one.id: find_index_file(settings, one) for one in indexes}
    return [
        f"sources.{name}: there is no {file} yet: run `lockgate index add`"
        for name, file in files.items()
        if not file.exists()
    ]


def _look_for_named(settings: "Settings") -> list[str]:
    named = {
        "classifier.model_path": settings.classifier.model_path,
        "evaluation.questions": settings.evaluation.questions,
    }
    return [
        f"{key}: there is no {path.absolute()}"
        for key, path in named.items()
        if path is not None and not path.is_file()
    ]
