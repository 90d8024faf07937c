# SPDX-License-Identifier: Apache-2.0
"""A local language model: llama.cpp in a child process, which by default always chooses the likeliest token."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from lockgate.errors import ConfigError
from lockgate.gate.prompt import AnswerGrounds, make_sendable
from lockgate.gate.values import Frame, Health, Message
from lockgate.interfaces import Headers, PartContext, with_context
from lockgate.models.gguf import check_gguf
from lockgate.models.llama_process import NAME, NOT_RUNNING, GenerationEnd, LlamaProcess, LoadFailed, open_keeper
from lockgate.models.short_prompt import OPENING, build_citing_grammar, build_short_prompt
from lockgate.models.weights import SMOLLM2, find_weights
from lockgate.params import Params, shown

OPTIONS = ("path", "threads", "context_tokens", "max_tokens", "max_waiting", "cites", "answers_short", "greedy")
LIBRARY = "xllamacpp"
THREADS, MAX_THREADS = 2, 256
CONTEXT_TOKENS, MIN_CONTEXT_TOKENS, MAX_CONTEXT_TOKENS = 4096, 512, 1 << 20
SHORT_TOKENS, LONG_TOKENS = 96, 1024  # per answer, with the short prompt and without
MAX_WAITING = 8
_READ_HERE = ("max_tokens", "temperature")
_TAKES = frozenset({"max_tokens", "stop", "presence_penalty", "frequency_penalty", "response_format"})
_SAMPLING = frozenset({"temperature", "top_p", "seed"})


class LlamaSettings(NamedTuple):
    """The settings of a model."""

    path: Path
    threads: int
    context_tokens: int
    max_tokens: int
    max_waiting: int
    cites: bool
    answers_short: bool
    greedy: bool


class LlamaModel:
    """A model that gets prompts unchanged. `known_as` is its name on pages and in telemetry."""

    note = "runs here, in llama.cpp"

    def __init__(self, keeper: LlamaProcess, settings: LlamaSettings) -> None:
        self._keeper = keeper
        self._settings = settings
        self.known_as = settings.path.stem

    @property
    def takes(self) -> frozenset[str]:
        """The parameters that have an effect: none of sampling if the likeliest token is always chosen."""
        return _TAKES if self._settings.greedy else _TAKES | _SAMPLING

    @property
    def pid(self) -> int | None:
        """The id of the model's process, or None while there is none."""
        return self._keeper.pid

    def generate(
        self, messages: Sequence[Message], params: Mapping[str, Any]
    ) -> AsyncGenerator[Frame | list[Frame], None]:
        """Yields the answer's frames; closing it stops the model."""
        options = {name: params[name] for name in self.takes & params.keys() if name not in _READ_HERE}
        if not self._settings.greedy and (temperature := params.get("temperature")):
            options |= {"temperature": temperature, "top_k": 40}
        return self._answer({"messages": _write(messages)}, options, params)

    async def probe(self, headers: Headers) -> Health:
        """Returns whether the model is loaded; never raises."""
        return Health("HEALTHY") if self._keeper.is_ready else Health("UNHEALTHY", 503, NOT_RUNNING)

    async def _answer(
        self, ask: Mapping[str, Any], options: Mapping[str, Any], params: Mapping[str, Any]
    ) -> AsyncGenerator[Frame | list[Frame], None]:
        max_tokens = params.get("max_tokens") or self._settings.max_tokens
        chosen = {"max_tokens": max(1, min(max_tokens, self._settings.max_tokens)), **options}
        is_stream, text, number = bool(params.get("stream")), "", 0
        async with aclosing(self._keeper.ask({**ask, "options": chosen})) as events:
            async for event in events:
                if isinstance(event, GenerationEnd):
                    fields: dict[str, Any] = {"usage": dict(event.usage)} if event.usage is not None else {}
                    if event.is_cut:
                        fields["is_cut"] = True
                    end = fields or None
                    yield [Frame(number, "", fields=end)] if is_stream else Frame(0, text, fields=end)
                elif is_stream:
                    yield [Frame(at, piece) for at, piece in enumerate(event, number)]
                    number += len(event)
                else:
                    text += "".join(event)


class ShortLlamaModel(LlamaModel):
    """A small model, which answers from documents with a short prompt."""

    note = "runs here, in llama.cpp; small, and mistaken at times"

    def __init__(self, keeper: LlamaProcess, settings: LlamaSettings) -> None:
        super().__init__(keeper, settings)
        if settings.cites:
            self.note += (
                "; a grammar holds an answer from documents to the words of one passage and ends it with its source"
            )

    def answer(self, grounds: AnswerGrounds, params: Mapping[str, Any]) -> AsyncGenerator[Frame | list[Frame], None]:
        """Answers a question from documents; yields frames like `generate`."""
        prompt = build_short_prompt(grounds)
        ask = {"messages": _write(prompt.messages), "opening": len(OPENING)}
        options = {"grammar": build_citing_grammar(prompt.lines)} if self._settings.cites else {}
        return self._answer(ask, options, params)


@with_context
@asynccontextmanager
async def open_llamacpp_model(options: Mapping[str, Any], context: PartContext) -> AsyncIterator[LlamaModel]:
    """Loads a model in a separate process; leaving ends the process."""
    settings = read_settings(options, context)
    if find_spec(LIBRARY) is None:
        raise ConfigError(
            f"the model `{NAME}` needs {LIBRARY}: pip install 'lockgate[llamacpp]'", source="plugins", key=NAME
        )
    plan = {
        "path": str(settings.path),
        "threads": settings.threads,
        "context_tokens": settings.context_tokens,
        "opening": _write(OPENING) if settings.answers_short else [],
    }
    try:
        async with open_keeper(plan, settings.max_waiting) as keeper:
            yield ShortLlamaModel(keeper, settings) if settings.answers_short else LlamaModel(keeper, settings)
    except LoadFailed as error:
        raise ConfigError(f"{settings.path} cannot be loaded: {error}", source="options", key="path") from error


def read_settings(options: Mapping[str, Any], context: PartContext) -> LlamaSettings:
    """Reads and checks the options; raises ConfigError."""
    given = Params.of_options(options, OPTIONS)
    path = _find_file(given, context)
    answers_short = given.flag("answers_short", given.value("path") is None)
    context_tokens = _read_count(given, "context_tokens", CONTEXT_TOKENS, MIN_CONTEXT_TOKENS, MAX_CONTEXT_TOKENS)
    max_tokens = SHORT_TOKENS if answers_short else min(LONG_TOKENS, context_tokens // 2)
    return LlamaSettings(
        path=path,
        threads=_read_count(given, "threads", THREADS, 1, MAX_THREADS),
        context_tokens=context_tokens,
        max_tokens=_read_count(given, "max_tokens", max_tokens, 1, context_tokens),
        max_waiting=_read_count(given, "max_waiting", MAX_WAITING, 0, 10_000),
        cites=given.flag("cites", True),
        answers_short=answers_short,
        greedy=given.flag("greedy", True),
    )


def _find_file(given: Params, context: PartContext) -> Path:
    value = given.value("path")
    if value is None:
        folder = find_weights(context.data_dir, SMOLLM2.name)
        if folder is None:
            message = f"no weights of `{SMOLLM2.name}` in {context.data_dir}: run `lockgate setup`, or set `path`"
            raise ConfigError(message, source=str(context.data_dir))
        return folder / SMOLLM2.files[0].name
    if not isinstance(value, str) or not value:
        raise given.fault("path", f"`path` must be the path of a GGUF file, not {shown(value)}")
    path = Path(value).expanduser().absolute()
    if fault := check_gguf(path):
        raise given.fault("path", f"{path} is not the file of a model: {fault}")
    return path


def _read_count(given: Params, name: str, default: int, least: int, most: int) -> int:
    value = given.value(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise given.fault(name, f"`{name}` must be a whole number from {least} to {most}, not {shown(value)}")
    return value


def _write(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": one.role, "content": make_sendable(one.text)} for one in messages]
