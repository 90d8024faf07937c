# SPDX-License-Identifier: Apache-2.0
"""An agent's sessions while its servers are killed, and while several of them share a store."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read once; its library would write about every fork
