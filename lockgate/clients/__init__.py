# SPDX-License-Identifier: Apache-2.0
"""Speaks to services behind us; each client implements an interface."""
