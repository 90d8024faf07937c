# SPDX-License-Identifier: Apache-2.0
"""The `callers` section (D-24): keys come from variables, every fault is told, no key is ever shown."""

import dataclasses

import pytest

from lockgate.config.report import render_check
from lockgate.config.settings import CallerSettings, Secret
from tests.config.config_cases import PII, Loader

TWO = PII + "callers: {app: {key_env: APP_KEY, max_streams: 3, requests_per_minute: 600}, web: {key_env: WEB_KEY}}"


def test_callers_have_names_keys_and_limits(loader: Loader) -> None:
    settings = loader.load(TWO, {"APP_KEY": "hunter2", "WEB_KEY": " with spaces \n"})
    assert settings.callers == {
        "app": CallerSettings("app", Secret("hunter2"), "APP_KEY", 3, 600),
        "web": CallerSettings("web", Secret("with spaces"), "WEB_KEY", None, None),
    }


def test_without_the_section_nobody_is_configured(loader: Loader) -> None:
    for text in (None, PII, PII + "callers:", PII + "callers: {}"):
        assert loader.load(text).callers == {}


def test_callers_cannot_be_changed(loader: Loader) -> None:
    callers = loader.load(TWO, {"APP_KEY": "a", "WEB_KEY": "b"}).callers
    with pytest.raises(TypeError):
        callers["app"] = callers["web"]  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        callers["app"].key = Secret("x")  # type: ignore[misc]


def test_a_caller_can_come_from_variables_alone(loader: Loader) -> None:
    variables = {"LOCKGATE_CALLERS__APP__KEY_ENV": "LOCKGATE_APP_KEY", "LOCKGATE_APP_KEY": "hunter2"}
    settings = loader.load(PII, {**variables, "LOCKGATE_CALLERS__APP__MAX_STREAMS": "2"})
    assert settings.callers["app"] == CallerSettings("app", Secret("hunter2"), "LOCKGATE_APP_KEY", 2, None)


@pytest.mark.parametrize(
    ("entry", "environ", "fault"),
    [
        ("app: {key_env: APP_KEY}", {}, "callers.app.key_env: env var `APP_KEY` not found"),
        ("app: {key_env: APP_KEY}", {"APP_KEY": ""}, (
            "callers.app.key_env: env var `APP_KEY` is empty: "
            "set it to the key"
)),
        ("app: {key_env: APP_KEY}", {"APP_KEY": " \n"}, (
            "callers.app.key_env: env var `APP_KEY` is empty: "
            "set it to the key"
)),
        ("app: {key_env: APP_KEY}", {"APP_KEY": "hunter\n2"},
         "callers.app.key_env: env var `APP_KEY` has control characters or line breaks: set it to the key alone"),
        ("app: {key_env: Hunter-2!}", {},
         "callers.app.key_env: must be the name of an environment variable that is set, not the key itself"),
        ("app: {max_streams: 1}", {}, "callers.app.key_env: is required"),
        ("app: {key_env: }", {}, "callers.app.key_env: is required"),
        ("app:", {}, "callers.app.key_env: is required"),
        ("app: {key_env: [APP_KEY]}", {}, "callers.app.key_env: must be a string, not a list"),
        ("app: {key_env: K, max_streams: 0}", {"K": "k"}, "callers.app.max_streams: must be at least 1"),
        ("app: {key_env: K, requests_per_minute: 1.5}", {"K": "k"},
         "callers.app.requests_per_minute: must be an integer, not a number"),
        ("'': {key_env: K}", {"K": "k"}, "callers.: a caller needs a name: the key must not be empty"),
        ("app: {key_env: K}, web: {key_env: L}", {"K": "hunter2", "L": "hunter2\n"},
         "callers.web.key_env: has the same key as `app`: give each caller a different one"),
        ("app: {key_env: K}, web: {key_env: K}", {"K": "hunter2"}, (
            "callers.web.key_env: has the same key as `app`: "
            "give each caller a different one"
)),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_without_a_key(loader: Loader, entry: str, environ: dict[str, str], fault: str) -> None:
    faults = loader.faults(f"{PII}callers: {{{entry}}}", environ)
    assert faults == [f"config.yaml: {fault}"]
    assert "unter" not in fault


def test_a_caller_that_is_no_map_is_a_fault(loader: Loader) -> None:
    assert loader.faults(PII + "callers: [app]") == ["config.yaml: callers: must be a map, not a list"]
    assert "config.yaml: callers.app: must be a map, not a string" in loader.faults(PII + "callers: {app: KEY}")


def test_faults_of_callers_are_told_with_all_others(loader: Loader) -> None:
    text = PII + "callers: {app: {key_env: A}, web: {max_streams: 0}}\nlimits: {body_bytes: 0}\ncompat: x"
    assert [fault.split(": ")[1] for fault in loader.faults(text)] == [
        "compat", "callers.app.key_env", "callers.web.key_env", "callers.web.max_streams", "limits.body_bytes",
    ]  # fmt: skip


def test_check_shows_callers_and_no_key(loader: Loader) -> None:
    settings = loader.load(TWO, {"APP_KEY": "hunter2", "WEB_KEY": "swordfish"})
    told = render_check(settings)
    assert "Callers\n  name  key from  open at once  per minute\n  app   APP_KEY   3             600\n" in told
    assert "  web   WEB_KEY   any           any\n" in told
    assert "    key_env: APP_KEY\n    max_streams: 3\n    requests_per_minute: 600\n" in told
    for text in (told, repr(settings), str(settings.callers)):
        assert "hunter2" not in text
        assert "swordfish" not in text
