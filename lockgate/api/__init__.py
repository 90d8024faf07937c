# SPDX-License-Identifier: Apache-2.0
"""What Lockgate serves over HTTP: the table of endpoints, and what is derived from it."""
