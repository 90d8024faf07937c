# SPDX-License-Identifier: Apache-2.0
"""The existing orchestrator's file: G-15 to G-25, and the texts of G-22."""

from pathlib import Path

import pytest

from lockgate.config.load import load_settings
from lockgate.config.service_sections import is_hostname
from lockgate.config.settings import TlsSettings
from lockgate.errors import ConfigFaults
from tests.config.config_cases import PII, REMOTE, Loader


def test_a_file_that_cannot_be_read_is_named(loader: Loader) -> None:  # G-22, row 1
    missing = loader.path.parent / "missing.yaml"
    with pytest.raises(ConfigFaults) as caught:
        load_settings(config_path=missing, flags={}, environ={})
    assert str(caught.value) == f"failed to read config from `{missing}`: No such file or directory (os error 2)"


def test_a_directory_is_no_config_file(loader: Loader) -> None:
    with pytest.raises(ConfigFaults, match=r"failed to read config from .*Is a directory"):
        load_settings(config_path=loader.path.parent, flags={}, environ={})


def test_text_that_is_no_yaml_is_reported_with_line_and_column(loader: Loader) -> None:  # G-22, row 2
    assert loader.faults("detectors: [unclosed\n  : :") == [
        "invalid config file: config.yaml: expected ',' or ']', but got ':' at line 2 column 3"
    ]


@pytest.mark.parametrize("text", ["just words", "[a, b]", "7"])
def test_a_file_that_is_no_map_is_refused(loader: Loader, text: str) -> None:
    [fault] = loader.faults(text)
    assert fault.startswith("invalid config file: config.yaml: must be a map of settings, not")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        # G-22, row 2
        ("detectors: []", "detectors: must be a map, not a list"),
        ("detectors: {d: {type: text_magic, embedded: pii}}", "detectors.d.type: must be one of text_contents"),
        (f"{PII}generation: {{provider: magic, service: {{hostname: a}}}}", "generation.provider: must be one of tgis"),
        (f"{PII}generation: {{provider: tgis}}", "generation.service: is required"),
        (f"{PII}openai: {{}}", "openai.service: is required"),
        (
            f"{PII}chunkers: {{c: {{type: stanza, service: {{hostname: a}}}}}}",
            "chunkers.c.type: must be one of sentence",
        ),
        (f"{PII}chunkers: {{c: {{service: {{hostname: a}}}}}}", "chunkers.c.type: is required"),
        (f"{PII}openai: {{service: {{port: 1}}}}", "openai.service.hostname: is required"),
        (f"{PII}openai: {{service: {{hostname: a, port: 65536}}}}", "openai.service.port: must be at most 65535"),
        (f"{PII}openai: {{service: {{hostname: a, api_token: NOPE}}}}", "openai.service.api_token: env var `NOPE` not"),
        (f"{PII}openai: llm", "openai: must be a map, not a string"),
        (f"{PII}openai: {{service: llm}}", "openai.service: must be a map, not a string"),
        (f"{PII}passthrough_headers: x", "passthrough_headers: must be a list of strings, not a string"),
        (f"{PII}detector_concurrent_requests: -1", "detector_concurrent_requests: must be at least 1"),
        # G-22, row 3
        (
            f"{PII}openai: {{service: {{hostname: llm, port: 8, tls: corp}}}}",
            "openai.service.tls: tls config `corp` not found for service `llm:8`",
        ),
        (
            f"{PII}tls: {{x: {{}}}}\nopenai: {{service: {{hostname: a}}, health_service: {{hostname: h, tls: corp}}}}",
            "openai.health_service.tls: tls config `corp` not found for service `h:0`",
        ),
        # G-22, row 4
        ("detectors: {}", "detectors: no detectors configured"),
        ("detectors:", "detectors: no detectors configured"),
        ("compat: none", "detectors: no detectors configured"),
        ("", "detectors: no detectors configured"),
        # G-22, rows 5 to 9
        (
            f"{PII}generation: {{provider: nlp, service: {{hostname: a_b}}}}",
            "generation.service.hostname: invalid hostname: `generation` has an invalid hostname",
        ),
        (
            f"{PII}openai: {{service: {{hostname: '@asdf'}}}}",
            "openai.service.hostname: invalid hostname: `openai` has an invalid hostname",
        ),
        (
            f"detectors: {{pii: {REMOTE.replace('pii.internal', 'http://a')}}}",
            "detectors.pii.service.hostname: invalid hostname: detector `pii` has an invalid hostname",
        ),
        (
            f"detectors: {{pii: {REMOTE.replace('sentence', 'x')}}}",
            "detectors.pii.chunker_id: chunker `x` not found for detector `pii`",
        ),
        (
            f"{PII}chunkers: {{c: {{type: all, service: {{hostname: a.}}}}}}",
            "chunkers.c.service.hostname: invalid hostname: chunker `c` has an invalid hostname",
        ),
        # D-22, D-23
        (f"{PII}router: {{enabled: true}}", "router.enabled: router mode is not supported"),
        (
            "detectors: {pii: {embedded: pii, service: {hostname: a}}}",
            "detectors.pii: has both `service` and `embedded`",
        ),
        (f"{PII}chunkers: {{c: {{type: all}}}}", "chunkers.c: needs `service` (a remote chunker) or `embedded`"),
        ("detectors: {pii: {embedded: 'a b'}}", "detectors.pii.embedded: must be the name of an embedded part"),
    ],
)
def test_each_fault_has_its_text_and_its_place(loader: Loader, text: str, fault: str) -> None:
    assert any(found.startswith(f"config.yaml: {fault}") for found in loader.faults(text)), loader.faults(text)


def test_all_faults_are_reported_at_once_in_the_order_of_the_checks(loader: Loader) -> None:  # G-22
    text = f"""
chunkers: {{c: {{type: all, service: {{hostname: -c}}}}}}
limits: {{body_bytes: 0}}
detectors:
  b: {REMOTE.replace("pii.internal", "b_b").replace("sentence", "nope")}
  a: {REMOTE.replace("pii.internal", "a, tls: t")}
openai: {{service: {{hostname: o_o}}}}
generation: {{provider: tgis, service: {{hostname: g_g}}}}
router: {{enabled: true}}
"""
    assert loader.faults(text) == [
        "config.yaml: limits.body_bytes: must be at least 1",
        "config.yaml: detectors.a.service.tls: tls config `t` not found for service `a:0`",
        "config.yaml: generation.service.hostname: invalid hostname: `generation` has an invalid hostname",
        "config.yaml: openai.service.hostname: invalid hostname: `openai` has an invalid hostname",
        "config.yaml: detectors.b.service.hostname: invalid hostname: detector `b` has an invalid hostname",
        "config.yaml: detectors.b.chunker_id: chunker `nope` not found for detector `b`",
        "config.yaml: chunkers.c.service.hostname: invalid hostname: chunker `c` has an invalid hostname",
        "config.yaml: router.enabled: router mode is not supported; remove `router` or set `enabled: false`",
    ]
    with pytest.raises(ConfigFaults) as caught:
        loader.load(text)
    assert str(caught.value).splitlines()[0] == "invalid config file: 8 faults"
    assert len(str(caught.value).splitlines()) == 9


@pytest.mark.parametrize("alias", ["chat_generation", "chat_completions"])
def test_an_old_name_of_openai_is_read_with_a_warning(loader: Loader, alias: str) -> None:  # G-15
    settings = loader.load(f"{PII}{alias}: {{service: {{hostname: llm}}}}")
    assert settings.openai is not None
    assert settings.openai.service.hostname == "llm"
    assert settings.warnings == (f"`{alias}` is deprecated; use `openai`",)


@pytest.mark.parametrize("names", [("openai", "chat_generation"), ("chat_generation", "chat_completions")])
def test_openai_under_two_names_is_a_fault(loader: Loader, names: tuple[str, str]) -> None:  # G-15
    sections = "".join(f"{name}: {{service: {{hostname: llm}}}}\n" for name in names)
    [fault] = loader.faults(PII + sections)
    assert fault.startswith(f"config.yaml: {names[1]}: duplicate field `openai`")


def test_unknown_keys_are_ignored_with_a_warning(loader: Loader) -> None:  # G-15
    settings = loader.load("detectors: {pii: {embedded: pii, colour: red, optoins: {}}}\nflavour: sweet\n")
    assert settings.warnings == (
        "unknown key `flavour` is ignored",
        "unknown key `colour` in detectors.pii is ignored",
        "unknown key `optoins` in detectors.pii is ignored; did you mean `options`?",
    )


def test_a_duplicate_key_is_a_fault_with_both_lines(loader: Loader) -> None:  # G-15
    assert loader.faults("detectors:\n  pii: {embedded: pii}\n  pii: {embedded: pii}\n") == [
        "config.yaml: detectors.pii: duplicate key at line 3, first at line 2: remove one"
    ]


def test_a_service_has_the_defaults_of_its_client(loader: Loader) -> None:  # G-20
    settings = loader.load(
        f"""
detectors: {{pii: {REMOTE}}}
chunkers: {{c: {{type: all, service: {{hostname: c}}}}}}
openai: {{service: {{hostname: o, path_prefix: /a/b/}}}}
generation: {{provider: nlp, service: {{hostname: g, resolution_strategy: whatever}}}}
"""
    )
    assert settings.detectors["pii"].service is not None
    assert settings.chunkers["c"].service is not None
    assert settings.openai is not None
    assert settings.generation is not None
    assert settings.detectors["pii"].service.port == 8080
    assert settings.chunkers["c"].service.port == 8085
    assert settings.openai.service.port == 8080
    assert settings.openai.service.path_prefix == "a/b"
    assert settings.openai.service.request_timeout == 600
    assert settings.generation.service.port == 8085
    assert settings.generation.service.resolution_strategy == "lazy"


def test_tgis_has_a_port_of_its_own(loader: Loader) -> None:  # G-20
    settings = loader.load(f"{PII}generation: {{provider: tgis, service: {{hostname: g}}}}")
    assert settings.generation is not None
    assert settings.generation.service.port == 8033


def test_tls_may_be_named_or_inline_also_for_health(loader: Loader) -> None:  # G-21, G-22
    settings = loader.load(
        f"{PII}tls: {{corp: {{cert_path: a.pem, insecure: true}}}}\n"
        "openai: {service: {hostname: o, tls: {key_path: k.pem}}, health_service: {hostname: h, tls: corp}}"
    )
    assert settings.openai is not None
    assert settings.openai.health_service is not None
    assert settings.openai.service.tls == TlsSettings(key_path=Path("k.pem"))
    assert settings.openai.health_service.tls == TlsSettings(cert_path=Path("a.pem"), insecure=True)


def test_a_token_is_read_from_its_variable_and_never_shown(loader: Loader) -> None:  # G-20
    text = f"{PII}openai: {{service: {{hostname: o, api_token: LLM_TOKEN}}}}"
    settings = loader.load(text, {"LLM_TOKEN": "hunter2"})
    assert settings.openai is not None
    service = settings.openai.service
    assert service.api_token == "LLM_TOKEN"
    assert service.api_token_value is not None
    assert service.api_token_value.reveal() == "hunter2"
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in f"{service.api_token_value} {service.api_token_value!r}"


def test_a_token_in_place_of_its_variables_name_is_not_repeated(loader: Loader) -> None:
    [fault] = loader.faults(f"{PII}openai: {{service: {{hostname: o, api_token: sk-aBcD1234}}}}")
    assert "sk-aBcD" not in fault
    assert "must be the name of an environment variable" in fault


def test_headers_are_lower_cased_and_counted_once(loader: Loader) -> None:  # G-15
    settings = loader.load(f"{PII}passthrough_headers: [Authorization, X-Tenant, authorization]")
    assert settings.passthrough_headers == ("authorization", "x-tenant")


def test_a_detector_may_have_the_name_of_its_chunker(loader: Loader) -> None:  # G-25
    text = f"detectors: {{same: {REMOTE.replace('sentence', 'same')}}}\nchunkers: {{same: {{embedded: word}}}}"
    assert loader.load(text).detectors["same"].chunker_id == "same"


def test_the_built_in_whole_document_chunker_cannot_be_replaced(loader: Loader) -> None:  # G-123
    settings = loader.load(f"{PII}chunkers: {{whole_doc_chunker: {{type: all, service: {{hostname: c}}}}}}")
    assert settings.chunkers["whole_doc_chunker"].embedded == "whole_doc_chunker"
    assert settings.warnings == ("chunkers.whole_doc_chunker is ignored: the built-in chunker of that name is used",)


def test_a_name_in_the_file_wins_over_an_embedded_one(loader: Loader) -> None:  # D-23
    settings = loader.load(f"{PII}chunkers: {{sentence: {{type: sentence, service: {{hostname: c}}}}}}")
    assert settings.chunkers["sentence"].service is not None
    assert settings.chunkers["word"].embedded == "word"
    assert list(settings.detectors) == ["pii"]


def test_router_mode_may_be_configured_while_it_is_off(loader: Loader) -> None:  # D-22, G-192
    settings = loader.load(f"{PII}router: {{enabled: false, hostname: r}}")
    assert settings.router.hostname == "r"
    assert settings.router.port == 19080


def test_embedded_parts_need_nothing_but_their_name(loader: Loader) -> None:  # D-23
    settings = loader.load("detectors: {a: {embedded: format}, b: {embedded: 'my.module:open_it', options: {x: [1]}}}")
    assert settings.detectors["a"].chunker_id == "whole_doc_chunker"
    assert settings.detectors["b"].chunker_id == "sentence"
    assert settings.detectors["b"].type == "text_contents"
    assert settings.detectors["b"].default_threshold == 0.5
    assert settings.detectors["b"].options == {"x": [1]}


@pytest.mark.parametrize("name", ["a", "localhost", "10.0.0.1", "a-b.c1", "A" * 63, ".".join(["a" * 49] * 5)])
def test_host_names_may_be(name: str) -> None:  # G-23
    assert is_hostname(name)


@pytest.mark.parametrize(
    "name", ["", "a_b", "a.", ".a", "-a", "a-", "a.-b", "::1", "http://a", "a:80", "A" * 64, "é", "a" * 254, "a\n"]
)
def test_host_names_may_not_be(name: str) -> None:  # G-23
    assert not is_hostname(name)
