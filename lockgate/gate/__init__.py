# SPDX-License-Identifier: Apache-2.0
"""Pure state machines: they take one event and return a list; no await, clock, file, socket or third-party import."""
