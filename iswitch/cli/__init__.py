"""The front door: one short file per command.

A command module has a docstring (its help), `configure(parser)` and `run(args) -> exit status`.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
from collections.abc import Callable
from importlib import import_module

from .. import __version__

COMMANDS = (
    "demo", "train", "run", "bench", "switch", "ctl", "doctor", "soak",
    "record", "replay", "analyze", "generate", "dissector",
)  # fmt: skip


PIP_DEMO = "pip install -e '.[demo]' (in a checkout of iswitch)"


class UsageError(Exception):
    """What the user asked for cannot be done; the message says why and how to mend it."""


def host_port(text: str) -> tuple[str, int]:
    """Parse HOST:PORT, HOST or :PORT."""
    from ..wire import PORT

    host, _, port = text.rpartition(":") if ":" in text else (text, "", str(PORT))
    if ":" in host:
        raise argparse.ArgumentTypeError(f"{text!r}: IPv4 only, such as 127.0.0.1:26963")
    if not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:26963")
    return host or "0.0.0.0", int(port)


def quantity(least: float | None = None) -> Callable[[str], float]:
    """An argparse type: a finite number, above 0, or of `least` or more."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        enough = value > 0 if least is None else value >= least
        if not enough or value == math.inf:
            wanted = "above 0" if least is None else f"of {least:g} or more"
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {wanted}")
        return value

    return parse


def command() -> str:
    """The command line, as it can be given again."""
    return shlex.join(["iswitch", *sys.argv[1:]])


def workers(count: int) -> str:
    """So many workers, in words."""
    return f"{count or 'no'} worker{'s' * (count != 1)}"


def check_writable(path: str | None) -> None:
    """Whether a file can be written, before anything is run for it.

    Raises:
        UsageError: it cannot.
    """
    if path is None:
        return
    existed = os.path.exists(path)
    try:
        open(path, "a").close()
        if not existed:
            os.unlink(path)  # a run that fails leaves no empty file
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
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
    args = parser.parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except UsageError as error:
        print(f"iswitch {args.chosen}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read what we print has gone; so must we, quietly
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status
