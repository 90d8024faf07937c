# SPDX-License-Identifier: Apache-2.0
"""The server that `lockgate ask` uses: a running one, or one in this process on a private socket."""

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import aiohttp

from lockgate.api.endpoints import ABOUT_PATH, TRACED_CHAT_PATH
from lockgate.cli.answer_view import Waiting
from lockgate.cli.text import flatten
from lockgate.config.kinds import Secret
from lockgate.config.refs import CHAT_STREAM_PATH
from lockgate.config.settings import Settings
from lockgate.errors import BrokeProtocol, ConfigError, InvalidRequest, Unavailable
from lockgate.gate.sse import SseParser
from lockgate.gateway import open_gateway
from lockgate.server.acceptors import BACKLOG
from lockgate.server.ports import PortServer, build_api_app

_SERVICE = "server"
_HERE = "http://127.0.0.1"
_KEY, _TOKEN = "X-Lockgate-Key", "X-Lockgate-Trace"
_MAX_BYTES = 4 * 1024 * 1024  # of an answer that is not streamed
_CONNECT_S = 10.0
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)  # the server limits the time of an answer
_OFFER_S = 10.0  # to fetch the server's offer, connecting included
_HINTS = {(404, TRACED_CHAT_PATH): "the server has no trace: `server.trace` is off there"}
_NOT_SERVED = "nothing is served on this path"  # begins the error of an unknown path
_LOADING = "Loading the model and the detectors …"


class ServerOffer(NamedTuple):
    """The models, sources and policies of a server, and its trace token; empty if it has no playground."""

    models: Sequence[str] = ()
    sources: Sequence[str] = ()
    policies: Sequence[str] = ()
    token: str = ""


class ServerAddress:
    """A server that answers questions. `token` is for its trace, `key` identifies the caller; both may be empty."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, key: str = "", token: str = "") -> None:
        self._session = session
        self._url = url
        self._key = {_KEY: key} if key else {}
        self._token = token

    async def fetch_offer(self) -> ServerOffer:
        """Fetches the server's offer; later calls use its trace token, if it has one and none was given."""
        limit = aiohttp.ClientTimeout(total=_OFFER_S, sock_connect=_CONNECT_S)
        with _reaching(self._url):
            call = self._session.get(self._url + ABOUT_PATH, headers=self._key, allow_redirects=False, timeout=limit)
            async with call as response:
                body = await _read_whole(response)
        offer = _read_about(response.status, body)
        self._token = self._token or offer.token
        return offer

    async def ask(self, body: Mapping[str, Any]) -> AsyncGenerator[tuple[str, Any], None]:
        """Yields the events of the answer as they arrive: name and content."""
        headers = {**self._key, **({_TOKEN: self._token} if self._token else {})}
        path = TRACED_CHAT_PATH if self._token else CHAT_STREAM_PATH
        with _reaching(self._url):
            call = self._session.post(self._url + path, json=body, headers=headers, allow_redirects=False)
            async with call as response:
                if response.status != 200:
                    words = _find_words(await _read_whole(response))
                    hint = _HINTS.get((response.status, path), "")
                    raise _refuse(response.status, hint if words.startswith(_NOT_SERVED) else words or hint)
                parser = SseParser(_SERVICE)
                async for packet in response.content.iter_any():
                    for event in parser.feed(packet):
                        yield event.event, _read_json(event.data)


@asynccontextmanager
async def open_there(url: str, key: str, token: str) -> AsyncIterator[ServerAddress]:
    """A server that is already running."""
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        yield ServerAddress(session, url.rstrip("/"), key=key, token=token)


@asynccontextmanager
async def open_here(settings: Settings) -> AsyncIterator[ServerAddress]:
    """Runs a server in this process, on a Unix socket in a private folder, until the context ends."""
    token = secrets.token_urlsafe(32)
    server = replace(settings.server, playground=True, trace=True)
    settings = replace(settings, server=server, trace_token=Secret(token), agents={}, callers={})
    with TemporaryDirectory(prefix="lockgate-") as folder:
        path = str(Path(folder) / "api")
        async with _serve(settings, path):
            connector = aiohttp.UnixConnector(path)
            async with aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector) as session:
                yield ServerAddress(session, _HERE, token=token)


@asynccontextmanager
async def _serve(settings: Settings, path: str) -> AsyncIterator[None]:
    waiting = Waiting(_LOADING)
    try:
        async with open_gateway(settings) as gateway:
            with _listen(path) as listening:
                server = PortServer(build_api_app(gateway), listening)
                await server.start()
                waiting.end()
                serving = asyncio.create_task(server.serve(0.0))
                try:
                    yield
                finally:
                    server.cut()
                    await serving
    finally:
        waiting.end()


def _listen(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
    except OSError as error:
        listening.close()
        raise ConfigError(f"{error}; TMPDIR can name another folder, with a short path", source=path) from error
    listening.listen(BACKLOG)
    listening.setblocking(False)
    return listening


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    try:
        yield
    except aiohttp.ClientError as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        is_lost = not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ServerTimeoutError)
        raise Unavailable(_SERVICE, flatten(f"{'lost' if is_lost else 'cannot reach'} {url}: {why}")) from error
    except TimeoutError as error:
        raise Unavailable(_SERVICE, f"no answer from {url} within {_OFFER_S:g} seconds") from error


async def _read_whole(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > _MAX_BYTES:
            raise BrokeProtocol(_SERVICE, f"the server sent more than {_MAX_BYTES} bytes")
    return b"".join(parts)


def _read_about(status: int, body: bytes) -> ServerOffer:
    """The server's offer from its response: empty for a 404. Raises if the server refuses the caller."""
    if status == 404:
        return ServerOffer()
    if status == 401:
        raise InvalidRequest("the server requires a key: set LOCKGATE_KEY to yours")
    if status != 200:
        raise _refuse(status, _find_words(body))
    about = _read_json(body)
    try:
        models, sources = [one["id"] for one in about["models"]], [one["id"] for one in about["sources"]]
        return ServerOffer(models, sources, [one["name"] for one in about["policies"]], about["trace"] or "")
    except (KeyError, TypeError) as error:
        raise BrokeProtocol(_SERVICE, f"the reply to {ABOUT_PATH} does not have the expected shape") from error


def _refuse(status: int, words: str) -> InvalidRequest | Unavailable:
    """The exception for an error status: InvalidRequest, or Unavailable for 408, 429 and 5xx."""
    words = words or f"the server refused with status {status}"
    if status in (408, 429) or status >= 500:
        return Unavailable(_SERVICE, words)
    return InvalidRequest(words)


def _find_words(body: bytes) -> str:
    try:
        error = json.loads(body)
    except ValueError:
        return ""
    words = (error.get("message") or error.get("details")) if isinstance(error, dict) else None
    return flatten(words) if isinstance(words, str) else ""


def _read_json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BrokeProtocol(_SERVICE, "the server sent something that is not JSON") from error
