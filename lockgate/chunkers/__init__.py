# SPDX-License-Identifier: Apache-2.0
"""Chunkers that run in this process."""
