# SPDX-License-Identifier: Apache-2.0
"""What `lockgate check` sees on this machine: files that the settings want and that are not there. Opens none."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockgate.config.settings import Settings

_NO_WEIGHTS = (
    "no embedding weights in {}: run `lockgate setup`; until then agents search by words alone, without the classifier"
)


def list_missing(settings: "Settings") -> list[str]:
    """One line for each; a server starts without them and does less."""
    if not settings.agents:
        return []
    return [*_look_for_weights(settings), *_look_for_indexes(settings), *_look_for_named(settings)]


def _look_for_weights(settings: "Settings") -> list[str]:
    from lockgate.models.weights import MINILM, find_weights

    return [] if find_weights(settings.data_dir, MINILM.name) else [_NO_WEIGHTS.format(settings.data_dir)]


def _look_for_indexes(settings: "Settings") -> list[str]:
    from lockgate.config.agent_settings import INDEX
    from lockgate.opened_agents import find_index_file

    used = {name for agent in settings.agents.values() for name in agent.sources}
    indexes = [one for name, one in settings.sources.items() if name in used and one.embedded == INDEX]
    files = {one.id: find_index_file(settings, one) for one in indexes}
    return [
        f"sources.{name}: there is no {file} yet: run `lockgate index add`"
        for name, file in files.items()
        if not file.exists()
    ]


def _look_for_named(settings: "Settings") -> list[str]:
    named = {
        "classifier.model_path": settings.classifier.model_path,
        "evaluation.questions": settings.evaluation.questions,
    }
    return [
        f"{key}: there is no {path.absolute()}"
        for key, path in named.items()
        if path is not None and not path.is_file()
    ]
