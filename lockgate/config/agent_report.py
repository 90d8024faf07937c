# SPDX-License-Identifier: Apache-2.0
"""What `lockgate check` says about agents: who they are, what they use, and where they are reached. No secret."""

from lockgate.agent.routes import choose_routes
from lockgate.config.settings import ModelSettings, SessionSettings, Settings, SourceSettings

Row = tuple[str, ...]


def list_agents(settings: Settings) -> list[Row]:
    """Every agent, and the labels that it knows."""
    rows: list[Row] = [("name", "main", "conversational", "sources", "policy", "routes")]
    for name, agent in settings.agents.items():
        labels = [route.label for route in choose_routes(has_platform=agent.platform_route)]
        sources = ", ".join(agent.sources) or "-"
        rows.append((name, agent.main, agent.conversational, sources, agent.policy or "-", ", ".join(labels)))
    return rows if settings.agents else []


def list_agent_parts(settings: Settings) -> list[Row]:
    """What all agents share."""
    if not settings.agents:
        return []
    ollama = settings.embeddings.ollama
    return [
        ("sessions", describe_sessions(settings)),
        ("embeddings", f"ollama {ollama.url} {ollama.model}" if ollama is not None else "made here"),
        ("classifier", _describe_classifier(settings)),
        ("evaluation", _describe_evaluation(settings)),
    ]


def describe_sessions(settings: Settings) -> str:
    """Where sessions are kept, how long, and what a request without an id means."""
    sessions = settings.sessions
    days = f"{sessions.retention_days} days" if sessions.retention_days is not None else "without end"
    default = "one that is shared" if sessions.shared_default else "a fresh one, not kept"
    kept = f"{_describe_store(sessions, settings)}, kept {days}, {sessions.max_messages} messages each"
    return f"{kept}; without an id: {default}"


def _describe_store(sessions: SessionSettings, settings: Settings) -> str:
    if sessions.postgres is not None:
        return f"postgres, address from {sessions.postgres.dsn_env}"
    if sessions.embedded is not None:
        return sessions.embedded
    return f"sqlite {settings.data_dir / (sessions.sqlite or '')}"


def _describe_classifier(settings: Settings) -> str:
    classifier = settings.classifier
    path = classifier.model_path or "that of the data directory, else the shipped one"
    export = f"labels go to {classifier.export_dir}" if classifier.export_dir is not None else "labels are not kept"
    return f"{path}; from {classifier.confidence_threshold:g} on; {export}"


def _describe_evaluation(settings: Settings) -> str:
    evaluation = settings.evaluation
    if evaluation.judge is None:
        return "no judge"
    questions = evaluation.questions if evaluation.questions is not None else "none configured"
    return f"judge {evaluation.judge}; questions {questions}"


def describe_place(part: ModelSettings | SourceSettings) -> str:
    """Where a model or a source is; of a database only the variable that holds its address."""
    if part.embedded is not None:
        return part.embedded
    if isinstance(part, ModelSettings):
        server = part.openai or part.ollama
        return f"{server.url} {server.model}" if server is not None else "-"
    return _describe_source(part)


def _describe_source(part: SourceSettings) -> str:
    if (space := part.syftai_space) is not None:
        return f"{space.url} {space.owner}/{space.slug}" if space.owner else f"{space.url} {space.slug}"
    if (index := part.elasticsearch) is not None:
        return f"{index.url} {index.index}"
    return f"table {part.postgres.table}, address from {part.postgres.dsn_env}" if part.postgres is not None else "-"
