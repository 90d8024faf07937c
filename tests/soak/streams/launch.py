# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.soak.streams.launch VARIANT serve ...`: the real server, whole or with one thing broken.

At SIGUSR1 it writes its unfinished tasks, one per line, to the file that SOAK_TASKS names.
"""

import asyncio
import gc
import os
import signal
import sys
from pathlib import Path

from tests.soak.streams.faulty import WHOLE, break_server

TASKS_VARIABLE = "SOAK_TASKS"


def main() -> None:
    """Run the command with the rest of the arguments."""
    variant, *arguments = sys.argv[1:]
    signal.signal(signal.SIGUSR1, lambda *_: _write_tasks())
    from lockgate.cli.main import main as run

    if variant != WHOLE:
        break_server(variant)
    run(arguments)


def _write_tasks() -> None:
    """Atomic, or somebody would read half of it."""
    names = [repr(one) for one in gc.get_objects() if isinstance(one, asyncio.Task) and not one.done()]
    target = Path(os.environ[TASKS_VARIABLE])
    draft = target.with_suffix(".draft")
    draft.write_text("\n".join(names))
    draft.replace(target)


if __name__ == "__main__":
    main()
