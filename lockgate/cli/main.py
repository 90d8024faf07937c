# SPDX-License-Identifier: Apache-2.0
"""The command line: parses arguments, runs a command, reports errors. `commands.toml` explains the exit codes."""

import argparse
import asyncio
import os
import sys
import tomllib
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NoReturn

from lockgate._version import __version__
from lockgate.cli import EXIT_FAILED, EXIT_FOUND, EXIT_OK, EXIT_USAGE, read_flags
from lockgate.cli.text import complain
from lockgate.errors import ConfigError, LockgateError, RequestError

if TYPE_CHECKING:
    from lockgate.config.settings import Settings

_TABLE = Path(__file__).with_name("commands.toml")
_WORDS = ("help", "description", "epilog")
_NO_WEIGHTS = (
    "no embedding weights in {}: run `lockgate setup`; until then agents search by words alone, without the classifier"
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the gRPC library would write to standard error, not to the log
    options = build_parser().parse_args(arguments)
    try:
        code = options.run(options)
    except ConfigError as error:
        code = complain(str(error), EXIT_USAGE)
    except LockgateError as error:
        code = complain(error.message, EXIT_USAGE if isinstance(error, RequestError) else EXIT_FAILED)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # noqa: BLE001 - the last handler: prints the traceback
        code = EXIT_FAILED
        others = error.split(BrokenPipeError)[1] if isinstance(error, ExceptionGroup) else error
        if others is None or isinstance(others, BrokenPipeError):  # the reader of standard output has closed it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        else:
            traceback.print_exc()
    sys.exit(code)


def build_parser() -> argparse.ArgumentParser:
    """Builds the parser from `commands.toml`."""
    table = tomllib.loads(_TABLE.read_text("utf-8"))
    parser = argparse.ArgumentParser(
        prog="lockgate",
        description=table["description"],
        epilog=table["epilog"],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lockgate {__version__}")
    parser.set_defaults(load=partial(_load, needs_callers=False))  # callers' keys may be set for the server only
    _add_commands(parser, table["commands"], table["groups"])
    return parser


def _add_commands(parser: argparse.ArgumentParser, table: Mapping[str, Any], groups: Mapping[str, Any]) -> None:
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, one in table.items():
        command = commands.add_parser(name, **{key: one[key] for key in _WORDS if key in one})
        for option in one.get("options", ()):
            for each in groups[option] if isinstance(option, str) else [option]:
                given = dict(each)
                if "type" in given:
                    given["type"] = _TYPES[given["type"]]
                command.add_argument(*given.pop("flags").split(), **given)
        if "commands" in one:
            _add_commands(command, one["commands"], groups)
        else:
            command.set_defaults(run=partial(_run, one["run"]))


def _run(name: str, options: argparse.Namespace) -> int:
    """Imports a command only when it runs; returns its exit code."""
    code: int = resolve_name(f"{__package__}.{name}")(options)
    return code


def _read_port(word: str) -> int:
    if not (word.isascii() and word.isdecimal() and int(word) <= 65535):
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 65535, not {word!r}")
    return int(word)


def _read_share(word: str) -> float:
    try:
        share = float(word)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1, not {word!r}")
    return share


_TYPES: Mapping[str, Callable[[str], Any]] = {"path": Path, "int": int, "port": _read_port, "share": _read_share}


def _load(options: argparse.Namespace, *, is_trial: bool = False, needs_callers: bool = True) -> Any:
    """Load the settings. If they have an error, also try the parts, so that all errors are reported at once."""
    from lockgate.config.load import load_settings

    path, flags = getattr(options, "config_path", None), read_flags(options)
    load = partial(load_settings, config_path=path, flags=flags, environ=os.environ, needs_callers=needs_callers)
    try:
        settings = load()
    except ConfigError:
        is_trial = True
    if is_trial:
        from lockgate.gateway import try_part
        from lockgate.telemetry import set_up_logging

        set_up_logging(style=None, level="INFO", is_quiet=True)  # errors are reported by exceptions
        settings = load(try_part=try_part)
    return settings


def _load_and_log(options: argparse.Namespace) -> Any:
    """Load the settings of a server and set up its log."""
    from lockgate.telemetry import set_up_logging

    settings = _load(options)
    set_up_logging(style=settings.log.format, level=settings.log.level, is_quiet=settings.quiet)
    return settings


def run_serve(options: argparse.Namespace) -> int:
    """Carries out `serve`."""
    from lockgate.server.run import serve

    settings = _load_and_log(options)
    serve(settings, load=partial(_load_again, options))
    return EXIT_OK


def _load_again(options: argparse.Namespace) -> Any:
    """Load the settings in a running server, whose log is set up; raises ConfigError with every fault."""
    from lockgate.config.load import load_settings
    from lockgate.gateway import try_part

    load = partial(load_settings, config_path=options.config_path, flags=read_flags(options), environ=os.environ)
    try:
        return load()
    except ConfigError:
        return load(try_part=try_part)


def run_parts(options: argparse.Namespace) -> int:
    """Carries out `parts serve`."""
    from lockgate.server.parts import PartsPlace, serve_parts

    serve_parts(_load_and_log(options), PartsPlace(options.host, options.detectors_port, options.chunkers_port))
    return EXIT_OK


def run_check(options: argparse.Namespace) -> int:
    """Carries out `check`."""
    from lockgate.api.endpoints import list_endpoints
    from lockgate.compat import find_rules
    from lockgate.config.report import render_check
    from lockgate.gateway import open_once
    from lockgate.plugins import locate
    from lockgate.server.acceptors import load_tls

    settings = _load(options, is_trial=True)
    load_tls(settings.server.tls)
    print(render_check(settings, locate, list_missing(settings), list_endpoints(settings), find_rules(settings)))
    try:
        open_once(settings)
    except ConfigError as error:  # for example TLS files, which may be missing on a machine that only checks settings
        print(f"\n`lockgate serve` would not start here:\n{error}")
        return EXIT_USAGE
    return EXIT_OK


def run_detect(options: argparse.Namespace) -> int:
    """Carries out `detect`."""
    from lockgate.cli.ask import read_detector
    from lockgate.cli.terminal import detect
    from lockgate.config.settings import EMBEDDED_DEFAULT
    from lockgate.gate.values import TEXT_CONTENTS

    if options.text not in (None, "-") and options.file:
        return complain("give a text or a file, not both", EXIT_USAGE)
    settings = _load(options, needs_callers=False)
    readers = [name for name, part in settings.detectors.items() if part.type == TEXT_CONTENTS]
    own = readers if settings.source != EMBEDDED_DEFAULT else ["pii", "secrets"]
    requested = dict(read_detector(word, "--detector") for word in options.detector or own)
    text = None if options.text in (None, "-") else os.fsencode(options.text).decode("utf-8", "replace")
    has_found = asyncio.run(detect(settings, requested, text=text, file=options.file, as_json=options.json))
    return EXIT_FOUND if has_found else EXIT_OK


def list_missing(settings: "Settings") -> list[str]:
    """One line for each missing file of agents; a server starts without them, with fewer functions."""
    from lockgate.config.agent_settings import INDEX
    from lockgate.models.weights import MINILM, find_weights
    from lockgate.opened_agents import find_index_file

    if not settings.agents:
        return []
    lines = [] if find_weights(settings.data_dir, MINILM.name) else [_NO_WEIGHTS.format(settings.data_dir)]
    used = {name for agent in settings.agents.values() for name in agent.sources}
    for name, source in settings.sources.items():
        if name in used and source.embedded == INDEX:
            file = find_index_file(settings, source)
            lines += [] if file.exists() else [f"sources.{source.id}: there is no {file} yet: run `lockgate index add`"]
    named = {
        "classifier.model_path": settings.classifier.model_path,
        "evaluation.questions": settings.evaluation.questions,
    }
    for key, path in named.items():
        if path is not None and not path.is_file():
            lines.append(f"{key}: there is no {path.absolute()}")
    return lines
