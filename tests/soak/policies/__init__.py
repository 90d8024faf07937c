# SPDX-License-Identifier: Apache-2.0
"""Random streams under policies, over real sockets: what a mask hides never arrives, and receipts prove what did.

`marks` is what must be found, `settings` who finds it under which policy, `plans` what a model says and how it is cut,
`expected` what may leave of it, `laws` the judge, `digests` how a client checks a receipt, `play` and `stopping` the
runs, `faulty` and `spoiled` what the judge must notice. Nothing that judges uses what the server is made of, except
that the digest is checked twice: by steps written from docs/receipts.md and by the server's own.
"""
