# SPDX-License-Identifier: Apache-2.0
"""Detectors that run in this process, one package each."""
