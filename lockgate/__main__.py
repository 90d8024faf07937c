# SPDX-License-Identifier: Apache-2.0
"""`python -m lockgate` is the command line."""

from lockgate.cli.main import main

if __name__ == "__main__":
    main()
