# SPDX-License-Identifier: Apache-2.0
"""The texts of a turn that detectors read: the client's messages and fields, the parameters, and the history."""

from collections.abc import Callable, Mapping, Sequence

from lockgate.agent.answer import AgentQuestion
from lockgate.agent.routes import Editor
from lockgate.gate.coverage import UNKNOWN, FieldRule, FieldText, Path, Survey, TextKind, known, survey
from lockgate.gate.input_texts import CheckedInput, Input, build_input, locate
from lockgate.gate.values import Detection, Message
from lockgate.sessions.turns import USER, Intent

_CONTENT = FieldRule(TextKind.CONTENT)
_MESSAGES = FieldRule(keys={"content": _CONTENT})
_EDITOR = ("editor_content", "selected_text", "extra_context")
_ACCOUNT = "user_info"
_PLACES = FieldRule(
    keys={
        **known("query editor_content selected_text extra_context user_info topics", _CONTENT),
        "messages": _MESSAGES,
        "history": _MESSAGES,
        "params": FieldRule(keys=known("stop format response_format options")),
    }
)


class TurnTexts:
    """The texts of one turn: what the client sent, and what the session remembers of it."""

    def __init__(self, ask: AgentQuestion, history: Sequence[Message], intents: Sequence[Intent]) -> None:
        self._ask = ask
        self._history = history
        self._intents = intents
        self._changes: Mapping[Path, str] = {}
        self.input = Input("", ())

    def open(self, refuses: Callable[[str], bool]) -> Input:
        """Returns the input of the turn; `refuses` says whether values of a kind that cannot be read are refused."""
        ask = self._ask
        texts = [_content(("messages", at, "content"), one.text, one.role) for at, one in enumerate(ask.sent)]
        texts = texts or [_content(("query",), ask.question)]
        texts += [_content((name,), text) for name, text in zip(_EDITOR, ask.editor, strict=True) if text]
        if ask.account:
            texts.append(FieldText((_ACCOUNT,), ask.account, TextKind.JSON, USER))
        texts += [_content(("history", at, "content"), one.text, one.role) for at, one in enumerate(self._history)]
        texts += [_content(("topics", at), one.topic) for at, one in enumerate(self._intents) if one.topic]
        params = {name: one for name, one in ask.params.items() if isinstance(one, str | list | dict)}
        found = (
            survey(params, FieldRule(keys=dict.fromkeys(params, UNKNOWN)), ("params",)) if params else Survey([], [])
        )
        self.input = build_input(Survey([*texts, *found.texts], found.unreadable), _PLACES, refuses)
        return self.input

    def take(self, checked: CheckedInput) -> None:
        """Takes the texts that the check has changed."""
        self._changes = checked.changes

    @property
    def sent(self) -> list[Message]:
        """The client's messages."""
        return [self._change("messages", at, one) for at, one in enumerate(self._ask.sent)]

    @property
    def question(self) -> str:
        """The question, which is the last message of the client's user."""
        if self._ask.sent:
            return [one.text for one in self.sent if one.role == USER][-1]
        return self._changes.get(("query",), self._ask.question)

    @property
    def editor(self) -> Editor:
        """The texts of the user's editor."""
        pairs = zip(_EDITOR, self._ask.editor, strict=True)
        return Editor(*[self._changes.get((name,), text) for name, text in pairs])

    @property
    def account(self) -> str:
        """What the caller says about the user."""
        return self._changes.get((_ACCOUNT,), self._ask.account)

    @property
    def history(self) -> tuple[Message, ...]:
        """The remembered messages."""
        return tuple([self._change("history", at, one) for at, one in enumerate(self._history)])

    @property
    def intents(self) -> tuple[Intent, ...]:
        """Labels and topics of the remembered turns."""
        changes = self._changes
        return tuple(
            [one._replace(topic=changes.get(("topics", at), one.topic)) for at, one in enumerate(self._intents)]
        )

    def list_found(self, found: Sequence[Detection]) -> list[tuple[int, Detection]]:
        """Returns the findings in the client's messages, each with the index of its message."""
        located = locate(self.input.texts, found)
        return [(int(one.path[1]), each) for one, own in located if one.path[0] == "messages" for each in own]

    def _change(self, field: str, at: int, one: Message) -> Message:
        text = self._changes.get((field, at, "content"))
        return one if text is None else one._replace(text=text)


def _content(path: Path, text: str, role: str = USER) -> FieldText:
    return FieldText(path, text, TextKind.CONTENT, role)
