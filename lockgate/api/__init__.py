# SPDX-License-Identifier: Apache-2.0
"""What Lockgate serves: one table of endpoints, and one package per wire format."""
