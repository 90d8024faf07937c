# SPDX-License-Identifier: Apache-2.0
"""The sample questions of the playground: what a file of them must look like. Refuses to know who asks them."""

from pathlib import Path

import msgspec
import yaml

from lockgate.config.yaml_text import parse_yaml
from lockgate.errors import ConfigError

_MAX_BYTES = 262_144


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question, under which policy and of which sources it is asked (none: all), and what one will see."""

    title: str
    question: str
    policy: str | None = None
    sources: tuple[str, ...] = ()
    shows: str = ""


class Samples(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of them, and what stands above them."""

    title: str = ""
    samples: tuple[Sample, ...] = ()


def load_samples(path: Path | None) -> Samples:
    """The questions in a file; raises ConfigError."""
    if path is None:
        return Samples()
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path} has more than {_MAX_BYTES} bytes", source="server", key="samples")
        found, _ = parse_yaml(path.read_text(encoding="utf-8"))
        return msgspec.convert(found, Samples)
    except (OSError, ValueError, yaml.YAMLError, msgspec.ValidationError) as error:
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: {words}", source="server", key="samples") from error
