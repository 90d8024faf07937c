# SPDX-License-Identifier: Apache-2.0
"""An agent's sessions while its servers are killed, and while several of them share a store."""
