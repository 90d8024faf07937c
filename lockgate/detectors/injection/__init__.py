# SPDX-License-Identifier: Apache-2.0
"""The prompt_injection detector."""
