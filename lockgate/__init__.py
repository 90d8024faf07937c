# SPDX-License-Identifier: Apache-2.0
"""Lockgate: text leaves only when every detector has read it, while it streams."""

from lockgate._version import __version__

__all__ = ["__version__"]
