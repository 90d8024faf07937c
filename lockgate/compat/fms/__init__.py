# SPDX-License-Identifier: Apache-2.0
"""`compat: fms`: what exists only to match the Rust orchestrator (fms-guardrails-orchestr8) to the letter."""
