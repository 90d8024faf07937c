# SPDX-License-Identifier: Apache-2.0
"""Real clients and real servers around the installed gateway: `make test-services` runs them, `make test` does not."""
