# SPDX-License-Identifier: Apache-2.0
"""`compat: fms`: rules and formats to match the Rust orchestrator (fms-guardrails-orchestr8) exactly."""

from lockgate.config.endpoint_rules import EndpointRules
from lockgate.gate.release import Strategy

RULES = EndpointRules(
    has_extensions=False,
    unsuitable_status=422,
    checks_thresholds_first=False,
    allows_whole_text=False,
    trusts_chunks=True,
    trusts_findings=True,
    strategy=Strategy.MAX_PROCESSED_INDEX,
    max_open=1,
    batch_contents=1,
    line_headers=(),
    explains_paths=False,
    joins_traces=False,
    names_failures=False,
    resends=False,
    limits_silence=False,
    requires_count=True,
    skips_events=False,
    stop_timeout_s=None,
)
