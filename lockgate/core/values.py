# SPDX-License-Identifier: Apache-2.0
"""The former name of `lockgate.gate.values`: importing it warns, and the next release removes it."""

import warnings

from lockgate.gate.values import *  # noqa: F403

warnings.warn("lockgate.core.values has moved: import lockgate.gate.values", DeprecationWarning, stacklevel=2)
