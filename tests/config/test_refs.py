# SPDX-License-Identifier: Apache-2.0
"""Which addresses and slugs can be used at all, by requests and by settings (A-3 to A-6, A-25)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.config.refs import CHAT_PATH, CHAT_STREAM_PATH, check_segment, check_slug, check_url


@pytest.mark.parametrize(
    "slug", ["a/b", "a?b", "a#b", "a%2fb", ".", "..", "", "a\nb", "a\x00", "a\x7f", "a\x85", "\ud800"]
)
def test_a_slug_that_could_choose_another_path_is_refused(slug: str) -> None:
    for url in ("http://h", "https://h", "HTTP://h", "ftp://h", ""):
        assert check_slug(url, slug)


@pytest.mark.parametrize("slug", ["notes", "a.b", "...", "a b", "é😀", "a\\b", "a:b", "a;b=c&d", "~"])
def test_any_other_slug_is_taken(slug: str) -> None:
    assert check_slug("http://h", slug) is None


def test_the_name_of_a_model_may_hold_a_slash() -> None:
    assert check_slug("openai+http://h", "org/model:7b") is None
    assert check_slug("OpenAI+https://h", "org/model") is None
    assert check_slug("lockgate:", "any/thing") is None
    assert check_slug("openai+http://h", "")
    assert check_slug("openai+http://h", "a\r\nb")


@given(st.text(max_size=8))
def test_a_slug_of_the_settings_is_judged_as_one_of_a_request(slug: str) -> None:
    assert check_segment(slug) == check_slug("http://h", slug)


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("", "must be an absolute http or https address"),
        ("h/v1", "must be an absolute http or https address"),
        ("ftp://h", "must be an absolute http or https address"),
        ("http:h", "must be an absolute http or https address"),
        ("http://h/x?", "must not have a query or a fragment"),
        ("http://h#a", "must not have a query or a fragment"),
        ("http://h\\x", "holds a character that no address has"),
        ("http://a b", "holds a character that no address has"),
        ("http://h/\u2028", "holds a character that no address has"),
        ("http://h/\ud800", "holds a character that no address has"),
        ("http://u:p@h/x", "must not hold credentials"),
        ("http://@h", "must not hold credentials"),
        ("http://", "cannot be read"),
        ("http://:80", "cannot be read"),
        ("http://h:0", "cannot be read"),
        ("http://h:99999", "cannot be read"),
        ("http://[::1", "cannot be read"),
        ("http://\u2100", "cannot be read"),
        ("http://é\u3002\u3002x", "cannot be read"),
        ("http://[::1%25lo]", "cannot be used: the host has a zone or an escape in it"),
        ("http://127.1", "cannot be used: the host is neither a name nor an address in its usual spelling"),
        ("http://2130706433", "cannot be used: the host is neither a name nor an address in its usual spelling"),
        ("http://a..b", "cannot be used: the host is neither a name nor an address in its usual spelling"),
    ],
)
def test_an_address_that_nobody_could_call_is_refused(url: str, fault: str) -> None:
    assert check_url(url) == fault


@pytest.mark.parametrize(
    "url",
    ["http://h", "HTTPS://H.example:8443/a/b%20c/", "http://127.0.0.1:1", "http://[::1]:80/x", "http://a_b.c.", "http://é",
     "http://h/é;x=1"],
)  # fmt: skip
def test_any_other_address_is_taken(url: str) -> None:
    assert check_url(url) is None


@given(st.text(max_size=12))
def test_whatever_stands_in_an_address_is_judged_without_a_fault(text: str) -> None:
    for url in (text, f"http://{text}", f"http://h/{text}", f"http://[{text}]", f"http://h:{text}"):
        fault = check_url(url)
        assert fault is None or len(fault) < 100


def test_the_stream_of_an_answer_stands_below_the_answer() -> None:
    assert CHAT_STREAM_PATH.startswith(f"{CHAT_PATH}/")
