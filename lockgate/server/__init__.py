# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: ports, connections, limits of callers, worker processes, TLS and the playground."""
