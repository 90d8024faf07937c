# SPDX-License-Identifier: Apache-2.0
"""The wire format of the guardrails orchestrator."""
