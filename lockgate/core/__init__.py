# SPDX-License-Identifier: Apache-2.0
"""The former place of `lockgate.gate`; only `lockgate.core.values` is left, for plugins, until the next release."""
