# SPDX-License-Identifier: Apache-2.0
"""The one place that states the version."""

__version__ = "0.6.0"
