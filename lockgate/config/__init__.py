# SPDX-License-Identifier: Apache-2.0
"""Settings: read from a file, variables and flags, checked, and frozen."""
