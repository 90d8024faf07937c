# SPDX-License-Identifier: Apache-2.0
"""The llm_judge detector: asks a configured model for a verdict."""
