# SPDX-License-Identifier: Apache-2.0
"""Models that run on this machine, and their weights."""
