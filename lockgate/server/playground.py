# SPDX-License-Identifier: Apache-2.0
"""The playground: a page that shows text being held, read and released, and the trace behind it."""

import asyncio
import hmac
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import yaml

from lockgate._version import __version__
from lockgate.api.aggregator.trace_format import encode_note
from lockgate.api.endpoints import PAGE_FILES_PATH, PAGE_PATH
from lockgate.config.agent_settings import ModelSettings
from lockgate.config.kinds import Secret
from lockgate.config.policies import SECTION_TYPES, PolicySettings
from lockgate.config.yaml_text import parse_yaml
from lockgate.errors import ConfigError, NotAllowed
from lockgate.gateway import Gateway
from lockgate.interfaces import DescribedModel, NamedModel
from lockgate.rag.trace import Note, Trace
from lockgate.server.acceptors import is_loopback
from lockgate.server.app import Handler
from lockgate.server.exchange import Exchange
from lockgate.task_groups import run_group

_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".png": b"image/png",
}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)
_encode = msgspec.json.Encoder().encode
_MAX_BYTES = 262_144
TOKEN_HEADER = b"x-lockgate-trace"
_HOST = re.compile(r"(?:\[([^\]]*)\]|([^:\[\]]*))(?::\d*)?")
_PAUSE_S = 0.02  # between batches of notes: a person sees no more than fifty steps a second


class PlaygroundRoutes:
    """The playground's page, its files, and the choices that the page offers."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self._hosts = HostRule(settings.server.allowed_hosts)
        self._samples = load_samples(settings.server.samples)
        self._gateway = gateway
        folder = resources.files("lockgate.server") / "page"
        pages = [one for one in folder.iterdir() if any(one.name.endswith(ending) for ending in _TYPES)]
        self.files = {one.name: one.read_bytes() for one in pages}

    async def send(self, exchange: Exchange) -> None:
        """GET the page or one of its files."""
        self._hosts.check(exchange)
        path = exchange.request.path
        name = path.removeprefix(PAGE_FILES_PATH) if path != PAGE_PATH else "index.html"
        kind = _TYPES[name[name.rindex(".") :]]
        await exchange.reply.answer(200, self.files[name], (b"content-type", kind), *_HEADERS)

    async def send_choices(self, exchange: Exchange) -> None:
        """GET the policies, detectors, sources, models and samples to choose from, and the trace token."""
        self._hosts.check(exchange)
        body = _encode(self._describe(exchange))
        await exchange.reply.answer(200, body, (b"content-type", b"application/json"), *_HEADERS)

    def _describe(self, exchange: Exchange) -> dict[str, Any]:
        """The page's choices. Only this machine and identified callers get the trace token."""
        settings, grant = self._gateway.settings, exchange.request.grant
        may_trace = settings.server.trace and (settings.callers or is_loopback(exchange.request.peer_host))
        token = settings.trace_token if may_trace else None
        return {
            "version": __version__,
            "title": self._samples.title,
            "trace": None if token is None else token.reveal(),
            "policies": [_describe_policy(one) for one in settings.policies.values() if grant.may_name(one.name)],
            "detectors": [
                {"id": name, "type": one.type, "chunker": one.chunker_id} for name, one in settings.detectors.items()
            ],
            "sources": [{"id": name} for name, one in settings.sources.items() if one.expose],
            "models": [
                self._describe_model(one) for one in settings.models.values() if one.expose and grant.may_use(one.id)
            ],
            "samples": self._samples.samples,
        }

    def _describe_model(self, model: ModelSettings) -> dict[str, Any]:
        """The model's id, kind and name, and its own note."""
        opened = self._gateway.opened.models[model.id]
        remote = model.openai or model.ollama
        kind = "openai" if model.openai else "ollama" if model.ollama else "embedded"
        name = opened.known_as if isinstance(opened, NamedModel) else str(model.embedded)
        if remote is not None:
            name = remote.model
        note = opened.note if isinstance(opened, DescribedModel) else ""
        return {"id": model.id, "kind": kind, "name": name, "note": note}


class TraceRoutes:
    """The answers of another endpoint, with trace events in between that show what the gate does."""

    def __init__(self, gateway: Gateway, answer_stream: Handler) -> None:
        self._hosts = HostRule(gateway.settings.server.allowed_hosts)
        self._token = gateway.settings.trace_token
        self._answer_stream = answer_stream

    async def answer_stream(self, exchange: Exchange) -> None:
        """POST chat/stream, traced."""
        self._hosts.check(exchange)
        check_token(exchange, self._token)
        exchange.reply.tracer = Tracer(exchange)
        await self._answer_stream(exchange)


def _describe_policy(policy: PolicySettings) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": policy.name, "mode": "shadow" if policy.is_shadow else "enforce"}
    for section in SECTION_TYPES:
        fields[section] = {name: policy.action(section, name) for name in getattr(policy, section)}
    return fields | {"speculative": policy.is_speculative}


class SampleQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question with its policy and sources (none: all); `shows` says what the user will see."""

    title: str
    question: str
    policy: str | None = None
    sources: tuple[str, ...] = ()
    shows: str = ""


class Samples(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sample questions and the title above them."""

    title: str = ""
    samples: tuple[SampleQuestion, ...] = ()


def load_samples(path: Path | None) -> Samples:
    """Reads the sample questions from a YAML file; raises ConfigError."""
    if path is None:
        return Samples()
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path} has more than {_MAX_BYTES} bytes", source="server", key="samples")
        found, _ = parse_yaml(path.read_text(encoding="utf-8"))
        return msgspec.convert(found, Samples)
    except (OSError, ValueError, yaml.YAMLError, msgspec.ValidationError) as error:
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: {words}", source="server", key="samples") from error


class HostRule:
    """The host names that requests may use. It stops other web pages that point their own name here (DNS rebinding)."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = frozenset(name.lower() for name in allowed)

    def check(self, exchange: Exchange) -> None:
        """Raises NotAllowed if the request's `Host` is not allowed."""
        found = [_HOST.fullmatch(one.strip().lower()) for one in exchange.request.headers(b"host")]
        hosts = [(one[1] or one[2]) if one else "" for one in found]
        if not hosts or not all(is_loopback(one) or one in self._allowed for one in hosts):
            raise NotAllowed("this host name is not allowed here: add it to `server.allowed_hosts`")


def check_token(exchange: Exchange, token: Secret | None) -> None:
    """Raises NotAllowed unless the request has the token."""
    shown = [one.strip() for one in exchange.request.headers(TOKEN_HEADER)]
    exchange.request.withheld |= {TOKEN_HEADER}
    if token is None or len(shown) != 1 or not hmac.compare_digest(shown[0].encode(), token.reveal().encode()):
        raise NotAllowed("the trace needs the token that this start printed, as X-Lockgate-Trace")


class Tracer:
    """Writes the trace notes of one answer."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._moved = asyncio.Event()
        self._waiting: deque[Note] = deque()
        self._lock = asyncio.Lock()  # keeps the notes in order: two tasks write them
        self.trace = Trace(time.monotonic, self._moved.set)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Write notes while the answer is made, and the remaining ones at its end."""
        try:
            async with run_group() as group:
                group.create_task(self._pump())
                yield
        except Exception:
            await self.flush()
            raise
        await self.flush()

    async def flush(self) -> None:
        """Write all notes taken so far; a note stays in the queue until it is written."""
        async with self._lock:
            self._waiting += self.trace.take()
            while self._waiting:
                await self._exchange.reply.write(encode_note(self._waiting.popleft()))

    async def _pump(self) -> None:
        while True:
            await self._moved.wait()
            self._moved.clear()
            await self.flush()
            await asyncio.sleep(_PAUSE_S)
