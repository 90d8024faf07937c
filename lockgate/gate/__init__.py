# SPDX-License-Identifier: Apache-2.0
"""Pure state machines: each takes one event and returns a list. No await, clock, file, socket or third-party import."""
