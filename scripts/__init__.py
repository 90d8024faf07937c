# SPDX-License-Identifier: Apache-2.0
"""Build tools; no part of the package."""
