# SPDX-License-Identifier: Apache-2.0
"""Which headers of a caller's request no service gets: they belong to the caller's own connection or body."""

NEVER_PASSED = frozenset({
    "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host",
    "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
