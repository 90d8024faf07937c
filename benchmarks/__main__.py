# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks`: runs the sections, prints a table, writes JSON. Exit code 1 if a target is missed."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.agent import measure_agent
from benchmarks.chat import measure_chat
from benchmarks.content import measure_content
from benchmarks.core import measure_core, measure_growth
from benchmarks.detectors import measure_detectors
from benchmarks.grounded import measure_grounded
from benchmarks.measuring import FULL, QUICK, RESULTS, Effort, Row, render, write_json
from benchmarks.retrieval import measure_retrieval
from benchmarks.sharing import measure_sharing
from benchmarks.stream import measure_stream

_SECTIONS: dict[str, Callable[[Effort], list[Row]]] = {
    "core": measure_core,
    "growth": measure_growth,
    "content": measure_content,
    "stream": measure_stream,
    "chat": measure_chat,
    "grounded": measure_grounded,
    "retrieval": measure_retrieval,
    "agent": measure_agent,
    "detectors": measure_detectors,
    "sharing": measure_sharing,
}


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(_SECTIONS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="a few seconds; the figures mean little")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where the JSON files go")
    options = parser.parse_args()
    unknown = set(options.sections) - set(_SECTIONS)
    if unknown:
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    effort = QUICK if options.quick else FULL
    missed = 0
    for section in options.sections or _SECTIONS:
        rows = _SECTIONS[section](effort)
        print(render(section, rows), flush=True)
        write_json(options.results, section, rows, effort)
        missed += sum(row.verdict == "FAIL" for row in rows)
    print(f"\n{'all targets met' if not missed else f'{missed} targets missed'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
