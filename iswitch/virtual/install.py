"""Moves a process into virtual time when it starts, by the variable ISWITCH_VIRTUAL.

`iswitch run --world sim` puts `site` in PYTHONPATH, whose `sitecustomize` Python imports first.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from . import names, polling, printing, sockets, streams, threads
from .channel import Channel, Lost
from .computing import Computing, Plan
from .patches import Patches
from .process import Process, current
from .world import MEETING, Home

VARIABLE = "ISWITCH_VIRTUAL"  # the path of the coordinator's socket
NUMBER = "ISWITCH_PROCESS"  # number of the process; with a single job, its rank
LOST = 75  # exit status without a coordinator: EX_TEMPFAIL of sysexits.h


def enter() -> None:
    """Enter virtual time, if the environment says so. Children of this process do not."""
    path = os.environ.pop(VARIABLE, "")
    if not path:
        return
    rank, host = int(os.environ.get(NUMBER, "0")), os.environ.get("ISWITCH_HOST", "")
    channel = _Ending(path, rank, host)
    told = channel.settings
    patches = Patches()  # for good: the whole process is in virtual time
    threads.install(patches, told["real_clock"])
    for module in (sockets, streams, polling, names):
        module.install(patches)
    if told["in_order"]:
        printing.install(patches, channel.prints)
    process = Process(
        channel,
        Computing(Plan(**told["computing"]), rank),
        rank,
        Home(*told["home"])._replace(ports=_ports(rank)),
        told["now"],
    )
    process.adopt()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C comes in the middle of a message, after which there is no virtual time to end in.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading._register_atexit(process.drain)  # type: ignore[attr-defined]
    os.register_at_fork(after_in_child=lambda: _leave(channel))
    sys.excepthook = _told


def _ports(number: int) -> dict[int, int]:
    """Return the port at which the workers of this job meet, by the one that it has this time.

    That is free on this machine, for torch's store, and so another one in each run.
    """
    first = number - int(os.environ.get("RANK", number))  # number of the job's first process
    found = os.environ.get("MASTER_PORT", "")
    return {int(found): MEETING + first} if found.isdecimal() else {}


class _Ending(Channel):
    """A channel that ends the process with its coordinator: nobody would move the clock."""

    def _ask(self, message: list[Any]) -> list[Any]:
        try:
            return super()._ask(message)
        except Lost:
            os._exit(LOST)


def _leave(channel: Channel) -> None:
    """Let a forked process run in real time."""
    channel.hang_up()
    from . import process

    process._local.task = None


def _told(kind: Any, error: Any, trace: Any) -> None:
    """Show an exception, and when in virtual time it came."""
    sys.__excepthook__(kind, error, trace)
    task = current()
    if task is not None:
        when = f"{task.process.now:.6f} s of virtual time"
        print(f"rank {task.process.rank} failed at {when}", file=sys.stderr)
