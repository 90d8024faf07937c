# SPDX-License-Identifier: Apache-2.0
"""The groundedness detector: compares claims of an answer with its documents."""
