"""The front door: one short file per command.

A command module has a docstring (its help), `configure(parser)` and `run(args) -> exit status`.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import takewhile
from typing import Any

from .. import __version__
from ..interrupts import heed, restored
from ..outside import OutsideError, writing
from .boundary import guarded

COMMANDS = (
    "demo", "train", "run", "bench", "switch", "ctl", "doctor", "soak",
    "record", "replay", "analyze", "generate", "dissector",
)  # fmt: skip


MOST = 1e9  # of any quantity: 31 years, a petabyte
PIP_DEMO = "pip install -e '.[demo]' (in a checkout of iswitch)"


class UsageError(OutsideError):
    """What the user asked for cannot be done; the message says why and how to mend it."""


def host_port(text: str) -> tuple[str, int]:
    """Parse HOST:PORT, HOST or :PORT."""
    from ..wire import PORT

    host, _, port = text.rpartition(":") if ":" in text else (text, "", str(PORT))
    if ":" in host:
        raise argparse.ArgumentTypeError(f"{text!r}: IPv4 only, such as 127.0.0.1:26963")
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: no such host: {error}") from None
    if not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:26963")
    return host or "0.0.0.0", int(port)


def quantity(least: float | None = None) -> Callable[[str], float]:
    """An argparse type: a number above 0, or of `least` or more, that clocks can still count."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        enough = value > 0 if least is None else value >= least
        if not enough or value > MOST:
            wanted = "above 0" if least is None else f"of {least:g} or more"
            wanted += f", {MOST:g} at most" if value > MOST else ""
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {wanted}")
        return value

    return parse


def command() -> str:
    """The command line, as it can be given again."""
    return shlex.join(["iswitch", *sys.argv[1:]])


def foot(chosen: str | None, page: str, kind: str) -> str:
    """The name of a file that a page's link saves: the one that was chosen, or like the page's."""
    return os.path.basename(chosen or f"{os.path.splitext(page)[0]}.{kind}")


def workers(count: int) -> str:
    """So many workers, in words."""
    return f"{count or 'no'} worker{'s' * (count != 1)}"


def check_unread(path: str | None, *read: str | None) -> None:
    """Refuse to write a file that the same command reads, by whatever name.

    Args:
        path: of the file to be written.
        read: what the command reads: files, or text that may name one.

    Raises:
        UsageError: writing it would destroy what is read.
    """
    if path is None or not os.path.isfile(path):
        return
    for other in read:
        with suppress(OSError, ValueError):  # no file, or a text that can be no name of one
            if other and os.path.samefile(path, other):
                raise UsageError(f"{path} is {other} itself, which is read; name another file")


def check_writable(path: str | None, *read: str | None) -> None:
    """Whether a file can be written, before anything is run for it.

    Args:
        path: of the file.
        read: as for `check_unread`.

    Raises:
        OutsideError: it cannot.
    """
    if path is None:
        return
    check_unread(path, *read)
    existed = os.path.exists(path)
    with writing(path):
        # A FIFO without a reader would be waited for.
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666))
        if not existed:
            os.unlink(path)  # a run that fails leaves no empty file


class Parser(argparse.ArgumentParser):
    """A parser whose help fails where it cannot be written; argparse's ends with status 0."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)


def parser_of_all() -> argparse.ArgumentParser:
    """The parser of the command line, with all commands."""
    parser = Parser(
        prog="iswitch",
        description="In-switch aggregation for distributed reinforcement learning, in userspace.",
    )
    parser.add_argument("--version", action="version", version=f"iswitch {__version__}")
    commands = parser.add_subparsers(dest="chosen", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = import_module(f".{name}", __name__)
        doc = module.__doc__ or ""
        command = commands.add_parser(
            name,
            help=doc.splitlines()[0].rstrip("."),
            description=doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.configure(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    What commands change of this process, for them and those they start, is as before afterwards:
    its signal handlers, and its environment.
    """
    words = sys.argv[1:] if argv is None else argv
    chosen = next((word for word in words if word in COMMANDS), "")

    def run() -> int:
        for word in takewhile("--".__ne__, words):
            if word.startswith("--") and word.endswith("=--"):  # argparse stumbles over it
                raise UsageError(f"{word}: -- is no value; write another one")
        args = parser_of_all().parse_args(words)
        heed()
        status: int = args.run(args)
        return status

    with restored():
        return guarded(f"iswitch {chosen}".rstrip(), run)
