# SPDX-License-Identifier: Apache-2.0
"""The options of a caller: its key, its share, and what it may name."""

import dataclasses

from lockgate.config import kinds
from lockgate.config.kinds import Secret, option


@dataclasses.dataclass(frozen=True, slots=True)
class CallerSettings:
    """A caller. `name` is the key of its entry, `key` the value of the variable that `key_env` names."""

    name: str
    key: Secret
    key_env: str = option(kinds.TEXT, "name of the environment variable that holds the key")
    max_streams: int | None = option(kinds.POSITIVE, "requests open at once; beyond it: 429", None)
    requests_per_minute: int | None = option(kinds.POSITIVE, "requests in any minute; beyond it: 429", None)
    policies: tuple[str, ...] | None = option(kinds.TEXTS, "policies that it may name; another one: 403", None, "all")
    models: tuple[str, ...] | None = option(kinds.TEXTS, "models that it may name; another one: 403", None, "all")
    required_policy: str | None = option(
        kinds.NAME, "id of a policy that is in force in all of its requests, beside the one that they name", None
    )
