"""Parses the command line: one short file for each command.

A command module has a docstring (its help), `configure(parser)` and `run(args) -> exit status`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NoReturn

from iswitch import __version__
from iswitch.outside import UsageError
from iswitch.system.boundary import guarded
from iswitch.system.interrupts import heed, restored

COMMANDS = (
    "demo", "train", "run", "place", "simulate", "workload", "paper", "bench", "switch", "ctl",
    "top", "web", "doctor", "soak", "record", "replay", "analyze", "generate", "dissector",
)  # fmt: skip
# Loaded before Ctrl-C raises KeyboardInterrupt, which some libraries swallow while they load.
LIBRARIES = ("numpy", "ml_dtypes", "rich.live", "rich.progress", "rich.table")


INSTEAD = {"move": "evict --move-to IP:PORT"}  # words that people try, of things that are there


class Parser(argparse.ArgumentParser):
    """Parses options as argparse does, but for three things.

    It fails if its help cannot be written, where argparse would exit with 0. An unknown option or
    choice is told with the command whose help lists them, rather than their list before the error,
    and with the one that is meant.
    """

    def format_usage(self) -> str:
        """Return the line that stands above an error."""
        return f"usage: {self.prog} --help lists what it takes\n"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse options; fail at unknown ones."""
        # Else argparse would take the value of an unknown option for the command to be run.
        unknown = self._unknown(args or ())
        if not unknown:
            found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            meant = self._of_switches(unknown)
            meant = meant or _meant(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
        return found, unknown

    def _of_switches(self, unknown: Sequence[str]) -> str:
        """Say how switches are given an unknown option that is theirs; "": it is none of them."""
        if "--switch" not in self._option_string_actions:
            return ""
        from .switches import meant

        return meant(unknown, self._option_string_actions["--switch"].metavar)

    def error(self, message: str) -> NoReturn:
        """Fail; of a --switch without a value, say how options are its value."""
        action = self._option_string_actions.get("--switch")
        if message == "argument --switch: expected one argument" and action:
            from .switches import ANY, takes_options

            message += f"; write {ANY}" * takes_options(action.metavar)
        super().error(message)

    def _unknown(self, words: Sequence[str]) -> list[str]:
        """Return the first long option that the parser does not have, and its value."""
        rest = (argparse.REMAINDER, argparse.PARSER)
        ends = any(action.nargs in rest for action in self._get_positional_actions())
        remaining = iter(takewhile("--".__ne__, words))
        for word in remaining:
            if word.startswith("--"):
                name, equals, _ = word.partition("=")
                options = self._option_string_actions
                known = options.get(name) or next(
                    (action for option, action in options.items() if option.startswith(name)), None
                )
                if known is None:
                    values = takewhile(lambda word: not word.startswith("-"), remaining)
                    return [word, *([] if equals else islice(values, 1))]
                if known.nargs is None and not equals:
                    next(remaining, None)
            elif ends:  # the command to be run has options of its own
                break
        return []

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            meant = _meant(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"{error.message}{meant}") from None

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)


def _meant(word: str, known: Iterable[str]) -> str:
    """Ask whether the nearest of the known words is meant; "": none is near."""
    known = list(known)
    near = get_close_matches(word, known, n=1, cutoff=0.8)
    if (other := INSTEAD.get(word, "")) and other.partition(" ")[0] in known:
        near = [other]
    return f"; did you mean {near[0]}?" if near else ""


def parser(chosen: Collection[str] = COMMANDS) -> argparse.ArgumentParser:
    """Make the parser of the command line.

    Args:
        chosen: the commands that can be parsed. Other commands are not imported: their help is read
            from the first lines of their files.
    """
    parser = Parser(
        prog="iswitch",
        description="In-switch aggregation for distributed reinforcement learning, in userspace.",
    )
    parser.add_argument("--version", action="version", version=f"iswitch {__version__}")
    commands = parser.add_subparsers(dest="chosen", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = import_module(f".{name}", __name__) if name in chosen else None
        command = commands.add_parser(
            name,
            help=_first_line(name),
            description=module.__doc__ if module else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if module:
            module.configure(command)
            command.set_defaults(run=module.run)
    return parser


def _first_line(name: str) -> str:
    with Path(__file__).with_name(f"{name}.py").open(encoding="utf-8") as file:
        return file.readline().strip('"\n').rstrip(".")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status.

    Restore this process's signal handlers and environment afterwards.
    """
    words = sys.argv[1:] if argv is None else argv
    # No option before the command has a value.
    chosen = next((word for word in words if word in COMMANDS), "")

    def run() -> int:
        for word in takewhile("--".__ne__, words):
            if word.startswith("--") and word.endswith("=--"):  # argparse stumbles over it
                raise UsageError(f"{word}: -- is no value; write another one")
        args = parser([chosen]).parse_args(words)
        with suppress(ImportError):  # whatever needs the library says so
            for name in LIBRARIES:
                import_module(name)
        heed()
        status: int = args.run(args)
        return status

    with restored():
        return guarded(f"iswitch {chosen}".rstrip(), run)
