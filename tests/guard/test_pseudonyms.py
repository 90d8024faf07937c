# SPDX-License-Identifier: Apache-2.0
"""Labels and made-up names in prompt, documents and answer of one request: the same value has the same name in all."""

import pytest

from lockgate.agent.answer import AgentQuestion
from lockgate.agent.turns import Memory
from lockgate.gate.receipts import RequestPart
from lockgate.gate.values import Detection, Document
from lockgate.gate.verdicts import Action, MaskWith, Measures
from lockgate.guard.policy import Policy
from lockgate.testing import MemorySessionStore, ScriptedDataSource, ScriptedDetector, ScriptedModel
from tests.agent.agents import KEY, build_agent, converse, turns_of
from tests.rag.questions import RecordingModel, ask, guard, run, text_of

NAMES = ("ana@x.org", "bo@x.org")


def find_names(text: str) -> list[Detection]:
    found = [(text.find(name), name) for name in (*NAMES, "heron@masked.invalid")]
    return [Detection(at, at + len(name), name, "EmailAddress", "pii", 1.0) for at, name in found if at >= 0]


def hide(way: MaskWith) -> Policy:
    measures = Measures(Action.MASK, mask_with=way)
    reader = [guard("pii", ScriptedDetector(find_names))]
    return Policy(
        input=reader,
        documents=reader,
        output=reader,
        for_input=measures,
        for_documents=measures,
        for_output=measures,
    )


NOTE = Document("Of bo@x.org", "Write to ana@x.org.", 0.9)


@pytest.mark.parametrize(
    ("way", "ana", "bo", "values"),
    [
        (MaskWith.BLOCK, "█████████", "████████", {}),
        (MaskWith.LABEL, "[EMAIL]", "[EMAIL]", {}),
        (
            MaskWith.PSEUDONYM,
            "heron@masked.invalid",
            "maple@masked.invalid",
            {"heron@masked.invalid": "ana@x.org", "maple@masked.invalid": "bo@x.org"},
        ),
    ],
)
async def test_the_same_value_has_the_same_name_in_prompt_documents_and_answer(
    way: MaskWith, ana: str, bo: str, values: dict[str, str]
) -> None:
    model, source = RecordingModel(["Mail an", "a@x.org, then bo@", "x.org."]), ScriptedDataSource([NOTE])
    steps, outcome = await run(ask(model, source, prompt="Who is ana@x.org?", guarding=hide(way)))
    assert source.questions == [f"Who is {ana}?"]
    assert (outcome.documents[0].title, outcome.documents[0].text) == (f"Of {bo}", f"Write to {ana}.")
    assert text_of(steps) == f"Mail {ana}, then {bo}."
    assert outcome.pseudonyms == values
    assert all("x.org" not in message.text for message in model.messages)
    assert outcome.receipt.is_covered
    assert outcome.receipt.released[RequestPart.PROMPT] == len("Who is ana@x.org?")


async def test_a_name_that_the_model_repeats_is_not_renamed() -> None:
    model = RecordingModel(["It is heron@mas", "ked.invalid."])
    steps, outcome = await run(ask(model, prompt="Who is ana@x.org?", guarding=hide(MaskWith.PSEUDONYM)))
    assert text_of(steps) == "It is heron@masked.invalid."
    assert outcome.pseudonyms == {"heron@masked.invalid": "ana@x.org"}


async def test_names_begin_anew_with_each_request() -> None:
    guarding = hide(MaskWith.PSEUDONYM)
    for name in NAMES:
        _, outcome = await run(ask(ScriptedModel(["Yes."]), prompt=f"Who is {name}?", guarding=guarding))
        assert outcome.pseudonyms == {"heron@masked.invalid": name}


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_turn_is_remembered_with_names_and_its_mapping_is_only_told(*, is_stream: bool) -> None:
    store, guarding = MemorySessionStore(), hide(MaskWith.PSEUDONYM)
    said = ["Ask an", "a@x.org or bo@x.org."]
    agent = build_agent(conversational=ScriptedModel(said), memory=Memory(store), guarding=lambda: guarding)
    asked = AgentQuestion("I am ana@x.org", KEY, label="CONVERSATIONAL", is_stream=is_stream)
    pieces, facts = await converse(agent, asked)
    assert "".join(pieces) == "Ask heron@masked.invalid or maple@masked.invalid."
    assert facts.pseudonyms == {"heron@masked.invalid": "ana@x.org", "maple@masked.invalid": "bo@x.org"}
    assert await turns_of(store) == [("I am heron@masked.invalid", "Ask heron@masked.invalid or maple@masked.invalid.")]
    assert "x.org" not in str(await store.read_session(KEY))


@pytest.mark.parametrize(
    ("span", "way", "title", "text"),
    [
        ((3, 9), MaskWith.BLOCK, "Tit██", "██xt"),
        ((3, 9), MaskWith.LABEL, "Tit[KIND]", "xt"),
        ((3, 9), MaskWith.PSEUDONYM, "Titkind-heron", "xt"),
        ((0, 5), MaskWith.LABEL, "[KIND]", "Text"),
        ((7, 11), MaskWith.LABEL, "Title", "[KIND]"),
        ((5, 7), MaskWith.LABEL, "Title", "Text"),
        ((0, 11), MaskWith.BLOCK, "█████", "████"),
        ((0, 11), MaskWith.LABEL, "[KIND]", ""),
    ],
)
async def test_a_mask_that_lies_in_title_and_text_hides_its_part_of_both(
    span: tuple[int, int], way: MaskWith, title: str, text: str
) -> None:
    def find(read: str) -> list[Detection]:
        assert read == "Title\n\nText"
        return [Detection(*span, read[slice(*span)], "kind", "type", 1.0)]

    measures = Measures(Action.MASK, mask_with=way)
    guarding = Policy(documents=[guard("w", ScriptedDetector(find))], for_documents=measures)
    source = ScriptedDataSource([Document("Title", "Text", 0.9)])
    _, outcome = await run(ask(ScriptedModel(["x"]), source, guarding=guarding))
    assert (outcome.documents[0].title, outcome.documents[0].text) == (title, text)
