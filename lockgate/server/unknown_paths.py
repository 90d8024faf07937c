# SPDX-License-Identifier: Apache-2.0
"""What a request to a path or with a method that is not served gets: an error in the format of its neighbours."""

from collections.abc import Iterable
from difflib import get_close_matches

from lockgate.api.endpoint import AGGREGATOR, GUARDRAILS, OLLAMA, OPENAI, WireFormat
from lockgate.api.endpoints import split_policy
from lockgate.config.refs import CHAT_PATH

_MAX_NAMED = 6
_MAX_CHARS = 200  # of a path that is compared with those that are served


def find_format(path: str) -> WireFormat:
    """The format of a path that is not served, by how it begins."""
    if path.startswith(CHAT_PATH):
        return AGGREGATOR
    if path.startswith("/v1/") or path == "/v1" or split_policy(path) is not None:
        return OPENAI
    is_guardrails = path.startswith(("/api/v1/", "/api/v2/"))
    return OLLAMA if path.startswith("/api/") and not is_guardrails else GUARDRAILS


def describe_unknown_path(path: str, served: Iterable[str]) -> str:
    """The words for a path that is not served; they name those that are most alike, never the path itself."""
    near = find_nearby(path[:_MAX_CHARS], [one for one in served if "{" not in one])
    return "nothing is served on this path" + (f"; nearby: {', '.join(near)}" if near else "")


def find_nearby(path: str, served: Iterable[str]) -> list[str]:
    """The served paths that are most alike, else those below the same folder."""
    under = split_policy(path)
    own = f"/{under[0]}/" if under is not None else ""
    listed = [one for one in served if split_policy(one) is None or (own and one.startswith(own))]
    alike = get_close_matches(path, listed, _MAX_NAMED, cutoff=0.85)
    begin = _find_folder(path)
    below = [one for one in listed if begin and one.startswith(begin) and one not in alike]
    return [*alike, *below][:_MAX_NAMED]


def _find_folder(path: str) -> str:
    """The first segment of a path, or the first two below `/api`; empty for a path of one segment."""
    parts = path.split("/")
    depth = 3 if parts[1:2] == ["api"] and len(parts) > 3 else 2
    return "/".join(parts[:depth]) + "/" if len(parts) > 2 else ""
