# SPDX-License-Identifier: Apache-2.0
"""`lockgate reload`: asks a running server to read its settings again, and prints the outcome."""

import argparse
import os
import sys

from lockgate.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE, read_flags
from lockgate.cli.text import complain, count_of, printable

_ANSWER_S = 30.0


def run_reload(options: argparse.Namespace) -> int:
    """Carries out `reload`."""
    from lockgate.server.control import ask_process

    pid = options.pid if options.pid is not None else _find_process(options)
    if pid is None:
        return EXIT_FAILED
    answer = ask_process(pid, _ANSWER_S)
    for warning in answer["warnings"]:
        print(f"warning: {printable(warning)}", file=sys.stderr)
    if not answer["faults"]:
        print(f"process {pid} has reloaded its settings: {answer['hash'][:12]}")
        return EXIT_OK
    lines = "".join(f"\n  {printable(fault)}" for fault in answer["faults"])
    return complain(f"the old settings stay in force: {count_of(len(answer['faults']), 'fault')}{lines}", EXIT_USAGE)


def _find_process(options: argparse.Namespace) -> int | None:
    """The process id in the pid file of these settings; None, and a message, without one."""
    from lockgate.config.load import find_pid_file
    from lockgate.server.control import read_pid_file

    path = find_pid_file(config_path=options.config_path, flags=read_flags(options), environ=os.environ)
    pid = read_pid_file(path)
    if pid is None:
        complain(f"no process id in {path}: set `server.pid_file` and restart, or name the process with --pid")
    return pid
