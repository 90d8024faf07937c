# SPDX-License-Identifier: Apache-2.0
"""Agents: classify, reformulate and retrieve in a graph, then answer in a turn of a session."""
