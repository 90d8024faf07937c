# SPDX-License-Identifier: Apache-2.0
"""What `lockgate check` says."""

import re
from pathlib import Path

import pytest

from lockgate.api.endpoints import list_endpoints
from lockgate.compat import find_rules
from lockgate.config.load import load_settings
from lockgate.config.report import describe_streams, list_idle_settings, render_check, render_yaml
from lockgate.errors import ConfigFaults
from tests.config.config_cases import PII, Loader

EXAMPLES = Path(__file__).parents[2] / "examples"
TOKEN = {"LLM_TOKEN": "hunter2", "WEB_KEY": "hunter3", "HOME": "/home/someone"}
OTHERS = "OpenAI-style streams and /api/v1/chat/stream"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_loads_without_a_warning_and_survives_a_round_trip(path: Path, tmp_path: Path) -> None:
    settings = load_settings(config_path=path, flags={}, environ=TOKEN)
    assert settings.warnings == ()
    again = tmp_path / "again.yaml"
    again.write_text(render_yaml(settings))
    resolved = load_settings(config_path=again, flags={}, environ=TOKEN)
    assert resolved.warnings == ()
    assert resolved.detectors == settings.detectors
    assert render_yaml(resolved) == render_yaml(settings)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("broken/*.yaml")), ids=lambda path: path.name)
def test_every_broken_example_is_refused(path: Path) -> None:
    with pytest.raises(ConfigFaults):
        load_settings(config_path=path, flags={}, environ=TOKEN)


def test_the_report_shows_where_each_part_runs(loader: Loader) -> None:
    settings = load_settings(config_path=EXAMPLES / "orchestrator.yaml", flags={}, environ=TOKEN)
    text = render_check(settings, endpoints=list_endpoints(settings))
    assert "settings from     " in text
    assert "pii        text_contents    https://pii.internal:8443/pii   sentences" in text
    assert "sentences          grpc://chunker.internal:8085  pii" in text
    assert re.search(r"/api/v2/text/detection/generated +yes +relevance +-\n", text)
    assert "api     0.0.0.0:8033  default" in text
    assert "unknown key" not in text


def test_the_report_shows_warnings(loader: Loader) -> None:
    assert "Warnings\n  unknown key `x` is ignored\n" in render_check(loader.load(f"{PII}x: 1"))


def test_no_secret_is_shown(loader: Loader) -> None:
    text = """
detectors: {pii: {embedded: pii, options: {api_key: hunter1, password: [hunter3], max_tokens: 5}}}
openai: {service: {hostname: o, api_token: LLM_TOKEN}}
models: {main: {openai: {url: "http://h/v1", model: m, api_token: LLM_TOKEN}}}
otlp: {endpoint: "http://me:hunter5@h/"}
"""
    shown = render_check(loader.load(text, TOKEN))
    assert "hunter" not in shown
    assert shown.count("api_token: LLM_TOKEN  # ***") == 2
    assert "http://***@h/" in shown
    assert "max_tokens: 5" in shown


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("", f"holds on v1 stream and stream-content, trails on {OTHERS}"),
        ("whole_document: hold", "holds on every stream"),
        ("whole_document: trail", "trails on every stream"),
        ("compat: fms", f"refused on v1 stream and stream-content, trails on {OTHERS}"),
        ("compat: fms\nwhole_document: hold", f"refused on v1 stream and stream-content, holds on {OTHERS}"),
    ],
)
def test_whole_document_detectors_hold_or_trail(loader: Loader, keys: str, expected: str) -> None:  # D-3
    settings = loader.load(f"detectors: {{f: {{embedded: format}}}}\n{keys}")
    assert describe_streams(settings, settings.detectors["f"], find_rules(settings)) == expected


def test_a_refused_detector_is_not_listed_on_the_streams_that_refuse_it(loader: Loader) -> None:  # D-3, G-41
    shown = list_endpoints(loader.load("detectors: {f: {embedded: format}}\ncompat: fms"))
    lines = {path: " ".join(cells).split() for path, *cells in shown}
    assert lines["/api/v2/text/detection/stream-content"] == ["yes", "-", "-"]
    assert lines["/api/v1/task/server-streaming-classification-with-text-generation"][2:] == ["f", "-"]
    assert lines["/api/v2/text/detection/content"] == ["yes", "f", "-"]


def test_detectors_of_other_types_hold_or_trail_where_they_serve(loader: Loader) -> None:  # G-41, G-155
    settings = loader.load(
        "detectors: {a: {embedded: x}, b: {embedded: x, type: text_chat}, c: {embedded: x, type: text_context_doc}}"
    )
    assert [describe_streams(settings, part) for part in settings.detectors.values()] == [
        "holds on every stream",
        "trails on OpenAI-style streams",
        "holds on /api/v1/chat/stream, per sentence",
    ]
    settings = loader.load("detectors: {c: {embedded: x, type: text_context_doc}}\ngrounding: trail")
    assert describe_streams(settings, settings.detectors["c"]) == "trails on /api/v1/chat/stream"


def test_a_setting_that_nothing_looks_at_is_said_to_have_no_effect(loader: Loader) -> None:
    text = f"{PII}upstreams: {{allow: [h]}}\nserver: {{cors_origins: ['*'], allowed_hosts: [h]}}"
    assert list_idle_settings(loader.load(text)) == [
        "`server.allowed_hosts` has no effect without `server.playground` or `server.trace`"
    ]
    assert "`server.allowed_hosts` has no effect" in render_check(loader.load(text))
    assert list_idle_settings(loader.load(f"{PII}server: {{trace: true, allowed_hosts: [h]}}")) == []
    assert list_idle_settings(loader.load(f"{PII}server: {{samples: s.yaml}}"))
    assert list_idle_settings(loader.load(PII)) == []
