# SPDX-License-Identifier: Apache-2.0
"""Finds the endpoint of a path, also under the name of a policy, or where the path ends in a variable."""

import re

from lockgate.api.endpoint import ApiEndpoint, CorsRule
from lockgate.api.endpoints import ENDPOINTS

OTHER = ApiEndpoint(name="", path="", response={})  # stands for a path that is not in the table
_BY_PATH = {one.path: one for one in reversed(ENDPOINTS)}  # of two ports the first counts: they agree in scope
_TEMPLATES = tuple(one for one in ENDPOINTS if one.is_template)
_POLICY_PATH = re.compile(r"/(?!api/)([^/]+)(/v1/.*)", re.DOTALL)
_AGGREGATOR_PREFIX = "/api/v1/"  # paths below it that have no endpoint have the CORS of the aggregator


def split_policy(path: str) -> tuple[str, str] | None:
    """The name of a policy and the path under it, if this is a path under a policy."""
    found = _POLICY_PATH.fullmatch(path)
    return None if found is None else (found[1], found[2])


def put_under(policy: str, path: str) -> str:
    """The path under the name of a policy, or nothing where that would be no such path."""
    under = f"/{policy}{path}"
    return under if split_policy(under) == (policy, path) else ""


def find_endpoint(path: str) -> ApiEndpoint:
    """The endpoint of a path, or OTHER."""
    if (under := split_policy(path)) is not None:
        found = _find(under[1])
        return found if found.takes_policy else OTHER
    return _find(path)


def find_cors(path: str) -> CorsRule:
    """Which web pages may call a path, also where it has no endpoint."""
    found = find_endpoint(path)
    if found is OTHER and path.startswith(_AGGREGATOR_PREFIX):
        return CorsRule.AGGREGATOR
    return found.cors


def _find(path: str) -> ApiEndpoint:
    found = _BY_PATH.get(path)
    if found is not None:
        return found
    return next((one for one in _TEMPLATES if path.startswith(one.prefix) and path != one.prefix), OTHER)
