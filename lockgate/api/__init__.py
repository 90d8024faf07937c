# SPDX-License-Identifier: Apache-2.0
"""The endpoints that Lockgate serves, in one table, and one package per wire format."""
