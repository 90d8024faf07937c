# SPDX-License-Identifier: Apache-2.0
"""Environment variables: LOCKGATE_<PATH>, the orchestrator's names, the aggregator's names."""

import pytest

from lockgate.config.settings import EMBEDDED_DETECTORS
from tests.config.config_cases import PII, Loader


def test_every_key_is_a_variable(loader: Loader) -> None:  # D-23
    settings = loader.load(
        PII,
        {
            "LOCKGATE_COMPAT": "fms",
            "LOCKGATE_RELEASE_STRATEGY": "frontier",
            "LOCKGATE_SERVER__CORS_ORIGINS": "[http://a, http://b]",
            "LOCKGATE_SERVER__ALLOWED_HOSTS": "a, b",
            "LOCKGATE_SERVER__DOCS": "Yes",
            "LOCKGATE_LIMITS": "{body_bytes: 7}",
            "LOCKGATE_LIMITS__LINE_BYTES": "8",
            "LOCKGATE_SERVER__HOST": '"10.0.0.1"',
        },
    )
    assert settings.compat == "fms"
    assert settings.release_strategy == "frontier"
    assert settings.server.cors_origins == ("http://a", "http://b")
    assert settings.server.allowed_hosts == ("a", "b")
    assert settings.server.docs
    assert (settings.limits.body_bytes, settings.limits.line_bytes) == (7, 8)
    assert settings.server.host == "10.0.0.1"


def test_ids_match_those_of_the_file_in_any_case(loader: Loader) -> None:  # D-23
    settings = loader.load(
        "detectors: {Pii: {embedded: pii}, my__own: {embedded: pii}}",
        {
            "LOCKGATE_DETECTORS__PII__DEFAULT_THRESHOLD": "0.9",
            "LOCKGATE_DETECTORS__MY__OWN__CHUNKER_ID": "word",
            "LOCKGATE_DETECTORS__NEW__EMBEDDED": "secrets",
            "LOCKGATE_DETECTORS__NEW__OPTIONS__DEPTH__INNER": "[1]",
        },
    )
    assert list(settings.detectors) == ["Pii", "my__own", "new"]
    assert settings.detectors["Pii"].default_threshold == 0.9
    assert settings.detectors["my__own"].chunker_id == "word"
    assert settings.detectors["new"].options == {"depth": {"inner": [1]}}


def test_embedded_parts_can_be_adjusted_without_a_file(loader: Loader) -> None:  # D-21, D-23
    environ = {"LOCKGATE_DETECTORS__PII__DEFAULT_THRESHOLD": "0.7", "LOCKGATE_CHUNKERS__WORD__OPTIONS__MAX_CHARS": "9"}
    settings = loader.load(None, environ)
    assert settings.detectors["pii"].default_threshold == 0.7
    assert settings.chunkers["word"].options == {"max_chars": 9}
    assert tuple(settings.detectors) == EMBEDDED_DETECTORS


def test_a_whole_map_in_a_variable_leaves_the_embedded_chunkers_known(loader: Loader) -> None:  # D-23
    settings = loader.load(PII, {"LOCKGATE_CHUNKERS": "{c: {embedded: word}, whole_doc_chunker: {embedded: word}}"})
    assert list(settings.chunkers) == ["c", "sentence", "paragraph", "word", "whole_doc_chunker"]
    assert settings.chunkers["whole_doc_chunker"].embedded == "whole_doc_chunker"
    assert loader.faults(PII, {"LOCKGATE_CHUNKERS": "[]"}) == ["LOCKGATE_CHUNKERS: chunkers: must be a map, not a list"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("LOCKGATE_COMPATT", "`compat` (LOCKGATE_COMPAT)"),
        ("LOCKGATE_BODY_BYTES", "`limits.body_bytes` (LOCKGATE_LIMITS__BODY_BYTES)"),
        ("LOCKGATE_LIMITS__BODY_SIZE", "`limits.body_bytes` (LOCKGATE_LIMITS__BODY_BYTES)"),
        (
            "LOCKGATE_DETECTORS__PII__TRESHOLD",
            "`detectors.pii.default_threshold` (LOCKGATE_DETECTORS__PII__DEFAULT_THRESHOLD)",
        ),
        ("LOCKGATE_COMPAT__DEEPER", "`compat` (LOCKGATE_COMPAT)"),
    ],
)
def test_an_unknown_variable_is_a_fault_that_names_the_nearest_key(loader: Loader, name: str, nearest: str) -> None:
    assert loader.faults(PII, {name: "1"}) == [f"{name}: no such setting; the nearest is {nearest}"]


@pytest.mark.parametrize("name", ["LOCKGATE_", "LOCKGATE___", "LOCKGATE_LIMITS__", "LOCKGATE___COMPAT"])
def test_a_malformed_variable_name_is_a_fault(loader: Loader, name: str) -> None:
    [fault] = loader.faults(PII, {name: "1"})
    assert fault.startswith(f"{name}: no such setting")


def test_a_variable_that_the_settings_name_as_the_place_of_a_secret_is_no_typo(loader: Loader) -> None:
    callers = "callers: {app: {key_env: LOCKGATE_APP_KEY}}\n"
    text = f"{PII}{callers}openai: {{service: {{hostname: a, api_token: LOCKGATE_T}}}}"
    settings = loader.load(text, {"LOCKGATE_APP_KEY": "k", "LOCKGATE_T": "t"})
    assert settings.callers["app"].key_env == "LOCKGATE_APP_KEY"


def test_an_unreadable_variable_is_a_fault_that_does_not_repeat_it(loader: Loader) -> None:
    [fault] = loader.faults(PII, {"LOCKGATE_LIMITS": "{hunter2: *hunter2"})
    assert fault == "LOCKGATE_LIMITS: limits: is not valid YAML: write the value as in a config file"


def test_an_empty_variable_counts_as_unset(loader: Loader) -> None:
    settings = loader.load(PII, {"HTTP_PORT": "", "LOCKGATE_COMPAT": "", "AGGREGATOR_PORT": "", "LOCKGATE_NOPE": ""})
    assert settings.server.http_port == 8033
    assert settings.listeners.aggregator is None


def test_a_variable_may_set_null(loader: Loader) -> None:
    assert loader.load(f"{PII}whole_document: hold", {"LOCKGATE_WHOLE_DOCUMENT": "null"}).whole_document is None


def test_a_variable_cannot_reach_through_a_value_that_is_no_map(loader: Loader) -> None:
    assert loader.faults(f"{PII}server: 5", {"LOCKGATE_SERVER__HTTP_PORT": "1"}) == [
        "config.yaml: server: must be a map, not an integer"
    ]


def test_the_orchestrators_variables_are_read(loader: Loader) -> None:  # G-2
    settings = loader.load(
        PII,
        {
            "HTTP_PORT": "1",
            "HEALTH_HTTP_PORT": "2",
            "START_UP_HEALTH_CHECK": "on",
            "QUIET": "1",
            "OTLP_SERVICE_NAME": "name",
            "OTLP_EXPORT": "TRACES",
        },
    )
    assert (settings.server.http_port, settings.server.health_port) == (1, 2)
    assert settings.start_up_health_check
    assert settings.quiet
    assert (settings.otlp.service_name, settings.otlp.export) == ("name", ("traces",))


def test_our_own_name_wins_over_the_orchestrators(loader: Loader) -> None:
    assert loader.load(PII, {"HTTP_PORT": "1", "LOCKGATE_SERVER__HTTP_PORT": "2"}).server.http_port == 2


@pytest.mark.parametrize("word", ["true", "FALSE", "1", "0", "Yes", "no", "ON", "off"])
def test_booleans_have_eight_words_in_any_case(loader: Loader, word: str) -> None:
    expected = word.lower() in ("true", "1", "yes", "on")
    assert loader.load(PII, {"QUIET": word}).quiet is expected


def test_another_boolean_word_is_a_fault(loader: Loader) -> None:
    assert loader.faults(PII, {"QUIET": "2"}) == ["QUIET: quiet: must be true or false, not an integer"]


@pytest.mark.parametrize(
    ("environ", "flag", "expected"),
    [
        ({}, None, None),
        ({"LOG_FORMAT": "Pretty", "AGGREGATOR_LOG_FORMAT": "json"}, None, "pretty"),
        ({"LOG_FORMAT": "pretty"}, "compact", "compact"),
        ({"AGGREGATOR_LOG_FORMAT": "json"}, None, "json"),
        ({"AGGREGATOR_LOG_FORMAT": "json", "AGGREGATOR_DEBUG": "1"}, None, "console"),
        ({"AGGREGATOR_DEBUG": "true", "LOG_FORMAT": "json"}, None, "json"),
        ({"AGGREGATOR_DEBUG": "false"}, None, None),
        ({"LOCKGATE_LOG_FORMAT": "json", "LOG_FORMAT": "full"}, None, "json"),
    ],
)
def test_the_log_format_comes_from_the_first_that_says_one(
    loader: Loader, environ: dict[str, str], flag: str | None, expected: str | None
) -> None:  # D-25
    assert loader.load(PII, environ, log__format=flag).log.format == expected


def test_a_variable_beats_the_file_also_for_the_log(loader: Loader) -> None:  # D-23, D-25
    text = f"{PII}log: {{format: pretty, level: error}}"
    assert loader.load(text).log.format == "pretty"
    assert loader.load(text).log.level == "ERROR"
    log = loader.load(text, {"AGGREGATOR_LOG_FORMAT": "json", "RUST_LOG": "debug"}).log
    assert (log.format, log.level) == ("json", "DEBUG")


def test_an_unknown_log_format_is_a_warning(loader: Loader) -> None:  # G-2
    settings = loader.load(PII, {"LOG_FORMAT": "xml"})
    assert settings.log.format == "full"
    assert settings.warnings == ("unknown log format `xml` (LOG_FORMAT): using full",)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "INFO"),
        ({"RUST_LOG": "warn"}, "WARNING"),
        ({"RUST_LOG": "h2=off,trace"}, "DEBUG"),
        ({"RUST_LOG": "lockgate=debug"}, "INFO"),
        ({"RUST_LOG": "warn", "AGGREGATOR_LOG_LEVEL": "ERROR"}, "ERROR"),
        ({"RUST_LOG": "warn", "AGGREGATOR_LOG_LEVEL": "ERROR", "LOCKGATE_LOG_LEVEL": "debug"}, "DEBUG"),
        ({"LOCKGATE_LOG__LEVEL": "warning"}, "WARNING"),
    ],
)
def test_the_log_level_comes_from_the_first_that_says_one(
    loader: Loader, environ: dict[str, str], expected: str
) -> None:  # D-25
    assert loader.load(PII, environ).log.level == expected


def test_any_aggregator_variable_opens_one_more_listener(loader: Loader) -> None:  # D-16
    listener = loader.load(None, {"AGGREGATOR_TOTAL_TIMEOUT": "5"}).listeners.aggregator
    assert listener == ("aggregator", "0.0.0.0", 8001, True)
    environ = {"AGGREGATOR_HOST": "127.0.0.1", "AGGREGATOR_PORT": "0"}
    assert loader.load(None, environ).listeners.aggregator == ("aggregator", "127.0.0.1", 0, True)


def test_an_aggregator_variable_that_is_not_known_is_said(loader: Loader) -> None:
    settings = loader.load(None, {"AGGREGATOR_TOTAL_TIMEOUTS": "5"})
    assert settings.warnings == ("AGGREGATOR_TOTAL_TIMEOUTS is ignored: there is no such setting; remove the variable",)


def test_aggregator_debug_opens_the_docs(loader: Loader) -> None:  # D-17, A-14
    assert loader.load(f"{PII}server: {{docs: false}}", {"AGGREGATOR_DEBUG": "1"}).server.docs
    assert not loader.load(PII, {"AGGREGATOR_DEBUG": "1", "LOCKGATE_SERVER__DOCS": "no"}).server.docs


def test_malformed_aggregator_values_are_faults(loader: Loader) -> None:
    assert loader.faults(
        PII, {"AGGREGATOR_PORT": "many", "AGGREGATOR_DEBUG": "perhaps", "AGGREGATOR_LOG_LEVEL": "x"}
    ) == [
        "AGGREGATOR_LOG_LEVEL: log.level: must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL",
        "AGGREGATOR_DEBUG: must be true or false, not a string",
        "AGGREGATOR_PORT: must be an integer, not a string",
    ]


def test_variables_that_are_for_commands_alone_are_no_typos(loader: Loader) -> None:
    assert loader.faults(PII, {"LOCKGATE_KEYS": "k"}) != []
    assert loader.load(PII, {"LOCKGATE_KEY": "k", "LOCKGATE_TRACE_TOKEN": "t"}).warnings == ()
