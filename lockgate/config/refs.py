# SPDX-License-Identifier: Apache-2.0
"""Checks how requests and settings name endpoints: schemes, addresses and slugs; and the aggregator's paths."""

import re
from unicodedata import category
from urllib.parse import urlsplit

from lockgate.config.addresses import read_host

LOCAL_ADDRESS = "lockgate:"  # the address of the models and sources that this instance exposes
OPENAI_PREFIX = "openai+"  # before the address of an OpenAI-compatible server
CHAT_PATH = "/api/v1/chat"
CHAT_STREAM_PATH = f"{CHAT_PATH}/stream"
AGENT_SERVICE = "brunix.AssistanceEngine"  # of gRPC
AGENT_METHODS = ASK, STREAM, EVALUATE = "AskAgent", "AskAgentStream", "EvaluateRAG"
TRACE_PREFIX = "/trace"  # before a path whose answers carry their trace

_SCHEMES = ("http://", "https://")
_RESERVED = re.compile(r"[/?#%]")
_CONTROL = frozenset({"Cc", "Cs"})
_BLANK = frozenset({*_CONTROL, "Zs", "Zl", "Zp"})


def check_slug(url: str, slug: str) -> str | None:
    """Return why a slug cannot be used with this address, or None. After `openai+` it is a model's name."""
    if not url.lower().startswith((OPENAI_PREFIX, LOCAL_ADDRESS)):
        return check_segment(slug)
    return _check_name(slug)


def check_segment(slug: str) -> str | None:
    """Return why a slug cannot be one segment of a path, or None: it must not lead to another path."""
    if (fault := _check_name(slug)) is not None:
        return fault
    if slug in {".", ".."} or _RESERVED.search(slug):
        return "must be one segment of a path, without any of / ? # %"
    return None


def check_form(url: str) -> str | None:
    """Return what is wrong with the form of an address, or None. It does not check the host or quote the address."""
    if not url.lower().startswith(_SCHEMES):
        return "must be an absolute http or https address"
    if "?" in url or "#" in url:
        return "must not have a query or a fragment"
    if "\\" in url or _has(url, _BLANK):
        return "holds a character that no address has"
    return "must not hold credentials" if "@" in url.split("/", 3)[2] else None


def check_url(url: str) -> str | None:
    """Return why an address cannot be called, or None: words that follow the field's name, without the address."""
    if (fault := check_form(url)) is not None:
        return fault
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 else None
    except ValueError:
        host = None
    return "cannot be read" if not host else _check_host(host)


def _check_name(slug: str) -> str | None:
    if not slug:
        return "must not be empty"
    return "must not hold control characters" if _has(slug, _CONTROL) else None


def _has(text: str, categories: frozenset[str]) -> bool:
    """Return whether the text has a character of one of these categories; a quick check passes plain ASCII."""
    if text.isascii() and text.isprintable() and " " not in text:
        return False
    return any(category(char) in categories for char in text)


def _check_host(host: str) -> str | None:
    try:
        read_host(host if host.isascii() else host.encode("idna").decode())
    except UnicodeError:
        return "cannot be read"
    except ValueError as error:
        return f"cannot be used: {error}"
    return None
