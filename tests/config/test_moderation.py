# SPDX-License-Identifier: Apache-2.0
"""The policy of moderations that name none."""

import yaml

from lockgate.api.endpoints import list_endpoints
from lockgate.config.report import render_yaml
from lockgate.config.settings import ModerationSettings
from tests.config.config_cases import PII, Loader

POLICIES = f"{PII}policies: {{strict: {{input: {{pii: {{}}}}}}}}\n"


def test_no_policy_is_the_default(loader: Loader) -> None:
    assert loader.load(None).moderation == loader.load(f"{POLICIES}moderation:").moderation == ModerationSettings(None)


def test_a_policy_can_be_named_by_file_and_variable(loader: Loader) -> None:
    settings = loader.load(f"{POLICIES}moderation: {{policy: strict}}")
    assert settings.moderation.policy == "strict"
    assert yaml.safe_load(render_yaml(settings))["moderation"] == {"policy": "strict"}
    assert loader.load(POLICIES, {"LOCKGATE_MODERATION__POLICY": "strict"}).moderation.policy == "strict"


def test_a_name_that_is_no_policy_is_a_fault(loader: Loader) -> None:
    assert loader.faults(f"{POLICIES}moderation: {{policy: strct}}") == [
        "config.yaml: moderation.policy: policy `strct` not found in section `policies`; did you mean `strict`?"
    ]
    assert loader.faults(f"{PII}moderation: {{policy: strict}}") == [
        "config.yaml: moderation.policy: policy `strict` not found in section `policies`; add it there, or name another"
    ]
    assert "moderation.policy" in loader.faults(f"{POLICIES}moderation: {{policy: [strict]}}")[0]


def test_check_says_whether_moderations_are_answered(loader: Loader) -> None:
    def row(text: str) -> list[str]:
        return [" ".join(one) for one in list_endpoints(loader.load(text)) if one[0] == "/v1/moderations"]

    assert row(PII) == ["/v1/moderations needs `policies` pii -"]
    assert row(POLICIES) == ["/v1/moderations yes pii -"]
    assert row(f"{POLICIES}compat: fms") == []
