# SPDX-License-Identifier: Apache-2.0
"""What a request may name, by its caller, and the policies that are always in force for it."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lockgate.config.caller_settings import CallerSettings
from lockgate.errors import NotAllowed

AGENT_PREFIX = "agent/"
ANY_MODEL = "*"  # in maps by model: all models that the map does not name
SYNONYMS = {"brunix": "agent/default", "agent/default": "brunix"}  # names of the same agent


class Grant(NamedTuple):
    """What a request may name, by its caller (None: everything), and the policies that are always in force for it."""

    policies: frozenset[str] | None = None
    models: frozenset[str] | None = None
    required: tuple[str, ...] = ()

    def require(self, policies: Iterable[str]) -> "Grant":
        """Return the grant with more policies in force."""
        return self._replace(required=tuple(dict.fromkeys([*policies, *self.required])))

    def may_name(self, policy: str) -> bool:
        """Return whether the request may name the policy; what is in force anyway may be named."""
        return self.policies is None or policy in self.policies or policy in self.required

    def check_policy(self, name: str) -> None:
        """Raise NotAllowed unless the request may name the policy."""
        if not self.may_name(name):
            raise NotAllowed("this caller may not use the policy that the request names")

    def may_use(self, model: str) -> bool:
        """Return whether the request may name the model."""
        return self.models is None or model in self.models

    def check_model(self, name: str) -> None:
        """Raise NotAllowed unless the request may name the model."""
        if not self.may_use(name):
            raise NotAllowed("this caller may not use the model that the request names")


ANYTHING = Grant()


def find_grant(caller: CallerSettings) -> Grant:
    """Return what a caller may name, and the policy that is always in force for it."""
    models = None
    if caller.models is not None:
        models = frozenset([*caller.models, *[SYNONYMS[name] for name in caller.models if name in SYNONYMS]])
    policies = frozenset(caller.policies) if caller.policies is not None else None
    return Grant(policies, models, () if caller.required_policy is None else (caller.required_policy,))


def find_by_path(required: Mapping[str, str], path: str) -> tuple[str, ...]:
    """Return the policies that are required on a path: those of the path, and of each part of it up to a `/`."""
    return tuple(dict.fromkeys(policy for begin, policy in required.items() if is_under(path, begin)))


def is_under(path: str, begin: str) -> bool:
    """Return whether a path is `begin`, or begins with it and goes on after a `/`."""
    return path == begin or path.startswith(begin.rstrip("/") + "/")


def find_by_model(required: Mapping[str, str], model: str) -> tuple[str, ...]:
    """Return the policy that a map requires of a model, if any."""
    policy = required.get(model, required.get(ANY_MODEL))
    return () if policy is None else (policy,)
