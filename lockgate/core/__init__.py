# SPDX-License-Identifier: Apache-2.0
"""The former package of `lockgate.gate`; plugins may import `lockgate.core.values` until the next release."""
