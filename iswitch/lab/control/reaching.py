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
from iswitch.watch.places import SOCKET
from iswitch.watch.reader import Observer


class Reached(NamedTuple):
    """Where a switch listens, and the words that run a command where it can be reached.

    `note` says which of several switches it is; "": the place names one.
    """

    at: tuple[str, int]
    entry: Sequence[str] = ()
    note: str = ""


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
        switches = network.switches
        if not at:
            answers = observer.read().items()
            switches = {name: snapshot["listening"] for name, snapshot in answers if snapshot}
            at = next(iter(switches.values()), "")
        folder = observer.place if observer.place.is_dir() else observer.place.parent
    if not at:
        raise UsageError(f"{place}: no switch answers there; is it up?")
    note, others = "", sorted(name for name, where in switches.items() if where != at)
    if others:
        own = next((f"{name} at {at}" for name, where in switches.items() if where == at), at)
        another = f"{folder / others[0]}{SOCKET}"
        note = f"asks {own}, one of {len(others) + 1} switches; {another} names another"
    return Reached(host_port(at), network.entry if is_private(folder) else (), note)


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
