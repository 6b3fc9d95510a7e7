"""Finds the switch of a network that runs, so that commands need no address."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from iswitch.lab.options import host_port
from iswitch.outside import UsageError
from iswitch.system.private import is_private
from iswitch.watch.reader import Observer


class Reached(NamedTuple):
    """Where a switch listens, and the words that run a command where it can be reached."""

    at: tuple[str, int]
    entry: Sequence[str] = ()


def reached(place: str) -> Reached:
    """Find the switch that takes commands.

    Args:
        place: the folder of a network, or a switch's socket.

    Raises:
        OutsideError: there is no such place, or no switch answers there.
    """
    with closing(Observer(place)) as observer:
        network = observer.network()
        at = network.control if observer.place.is_dir() else ""
        if not at:
            answers = observer.read().values()
            at = next((snapshot["listening"] for snapshot in answers if snapshot), "")
        folder = observer.place if observer.place.is_dir() else observer.place.parent
    if not at:
        raise UsageError(f"{place}: no switch answers there; is it up?")
    return Reached(host_port(at), network.entry if is_private(folder) else ())


def ask_inside(args: argparse.Namespace, switch: Reached) -> int:
    """Run the same command where the switch can be reached; return its exit status."""
    options = {
        "--switch": "{}:{}".format(*switch.at),
        "--job": args.job,
        "--bind": "{}:{}".format(*args.bind),
        "--timeout": args.timeout,
        "--key-file": args.key_file,
    }
    given = [str(word) for item in options.items() if item[1] is not None for word in item]
    words = ["ctl", args.action, *given, *["--json"] * args.json]
    return subprocess.run([*switch.entry, sys.executable, "-m", "iswitch", *words]).returncode
