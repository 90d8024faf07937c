# SPDX-License-Identifier: Apache-2.0
"""Recall of the embedded index on a set of our own, which was written before the index was tuned."""
