# SPDX-License-Identifier: Apache-2.0
"""Answers of remote detectors that break their contract: none is believed, unless a compatibility mode does so."""

import pytest

from lockgate.backends.detector import DetectorClient, open_detector_client
from lockgate.errors import BrokeProtocol
from lockgate.gate.values import Excerpt
from tests.contracts.http_peers import open_peer, reply_json
from tests.contracts.test_detector_client import RESULT, read_from

MALFORMED = {
    "one list too many": [[RESULT], []],
    "no list": [],
    "a span behind the text": [[{**RESULT, "start": 7, "end": 9}]],
    "a span over the end": [[{**RESULT, "start": 3, "end": 9, "text": "lo"}]],
    "a negative start": [[{**RESULT, "start": -2, "end": 0}]],
    "an empty span": [[{**RESULT, "end": 0, "text": ""}]],
    "a span turned round": [[{**RESULT, "start": 2, "end": 0}]],
    "offsets in bytes": [[{**RESULT, "start": 1, "end": 3, "text": "el"}]],
    "another text": [[{**RESULT, "text": "she"}]],
    "a text in other case": [[{**RESULT, "text": "HE"}]],
    "no lists at all": [RESULT],
    "an object": {"results": [[RESULT]]},
}


@pytest.mark.parametrize("how", MALFORMED)
async def test_an_answer_that_breaks_the_contract_is_believed_nothing(how: str) -> None:
    """D-38."""
    async with open_peer(reply_json(MALFORMED[how])) as peer:
        text = "ähello"[:6] if how == "offsets in bytes" else "hello"
        with pytest.raises(BrokeProtocol, match="the answer does not fit") as caught:
            await read_from(peer.detector(), text)
    assert caught.value.service == "pii"
    assert text not in caught.value.message


async def test_a_compatibility_mode_may_trust_what_a_detector_says() -> None:
    """G-101."""
    for answer, texts, found in (([[RESULT]], ["hello", "x", "y"], [1, 0, 0]), ([[RESULT]] * 3, ["hey"], [1])):
        async with (
            open_peer(reply_json(answer)) as peer,
            open_detector_client("pii", peer.detector(), trusts_findings=True) as client,
        ):
            assert isinstance(client, DetectorClient)
            read = await client.accept({}, ()).read([Excerpt(text) for text in texts])
        assert [len(one) for one in read] == found
