"""Command a job at a running switch: status, threshold, reset, halt, partial broadcast.

The command joins the job as a controller: a member that contributes nothing and counts in no H. It
asks for one thing, prints the answer, and leaves. An H or a Halt that it sets lasts until the job's
last member leaves; so it refuses to set one in a job without workers. In an asynchronous job, read
"version" for "round".

  iswitch ctl jobs                              which jobs are there?
  iswitch ctl queue                             which jobs wait for memory?
  iswitch ctl status --job 7                    is it alive, how far, and who is in it?
  iswitch ctl seth 3 --job 7                    three contributions complete a segment
  iswitch ctl help current 0 100 --job 7        whose contributions are missing?
  iswitch ctl fbcast current 0 100 --job 7      send what these segments hold, partial as it is
  iswitch ctl snapshot                          all of it as JSON (docs/watch.md)
  iswitch ctl drain PATH.sock                   take no new jobs (docs/sharing.md)
  iswitch ctl evict --job 7 PATH.sock           end a job, and tell its members why

Exit status: 0 done, 1 the switch refused or did not answer, 2 wrong usage.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

from iswitch.faults.units import TIME
from iswitch.lab.options import MAX_JOB, host_port, quantity, whole

SNAPSHOT = "print all there is to know of watched switches, a JSON object a line for each"
DRAIN = "let a switch take no new jobs, and refuse workers that come or wait"
EVICT = "end a job between two rounds, and tell its workers why, and where to go"
PLACED = "jobs", "queue", "status"  # actions that find the switch by a path, too
MOST = 0xFFFFFFFF  # of a round, a segment or a threshold


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions, each with its options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    snapshot = actions.add_parser("snapshot", help=SNAPSHOT, description=SNAPSHOT)
    add_place(snapshot)
    drain = actions.add_parser("drain", help=DRAIN, description=DRAIN)
    drain.add_argument("--end", action="store_true", help="take new jobs again")
    drain.add_argument(
        "--evict", action="store_true", help="end the jobs that are there, too, between two rounds"
    )
    evict = actions.add_parser("evict", help=EVICT, description=EVICT)
    evict.add_argument(
        "--job", type=whole(0, MAX_JOB), required=True, metavar="N", help="its number"
    )
    for parser_ in (drain, evict):
        add_order(parser_)
    for name, command in COMMANDS.items():
        action = actions.add_parser(name, help=command.help, description=command.help)
        command.configure(action)
        action.add_argument(
            "--switch",
            type=switch_address,
            metavar="HOST:PORT",
            help="where the switch listens (default: 127.0.0.1:26963)",
        )
        if name in PLACED:
            action.add_argument(
                "place",
                nargs="?",
                metavar="PATH",
                help="instead of --switch: the socket of `iswitch switch --watch PATH`, or the "
                "folder of a network",
            )
        of_all = name in ("jobs", "queue")
        action.add_argument(
            "--job",
            type=whole(0, MAX_JOB),
            required=not of_all,
            default=0,
            metavar="N",
            help="its number" if not of_all else "list jobs that have its key (default: 0)",
        )
        action.add_argument(
            "--bind",
            type=host_port,
            default=":0",
            required=name == "leave",
            metavar="HOST:PORT",
            help="local address, by which the switch knows this member (any)",
        )
        action.add_argument(
            "--timeout",
            type=quantity(unit=TIME),
            default=5.0,
            metavar="SECONDS",
            help="how long to wait for an answer (default: %(default)s)",
        )
        action.add_argument(
            "--key-file",
            metavar="FILE",
            help="the key of a keyed job (default: ISWITCH_KEY or ISWITCH_KEY_FILE)",
        )
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Ask the switch, and print its answer."""
    if args.action in ("drain", "evict"):
        from iswitch.lab.control.ordering import order

        return order(args)
    if args.action == "snapshot":
        from iswitch.lab.control.snapshots import print_snapshots

        return print_snapshots(args.place)
    from iswitch.lab.control import actions
    from iswitch.lab.control.asking import ask

    return ask(args, actions.ACTIONS[args.action])


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says what to watch."""
    parser.add_argument(
        "place",
        nargs="?",
        metavar="PATH",
        help="the socket of `iswitch switch --watch PATH`, or the folder of a network (default: "
        "the network that `iswitch run`, demo, train or bench started last)",
    )


def add_order(parser: argparse.ArgumentParser) -> None:
    """Add the options of an operator's order."""
    add_place(parser)
    parser.add_argument(
        "--name", metavar="SWITCH", help="of the switches of a network, only this one"
    )
    parser.add_argument(
        "--move-to",
        type=host_port,
        metavar="IP:PORT",
        help="the switch at which workers are told to join",
    )
    parser.add_argument(
        "--grace",
        type=quantity(0, TIME),
        default=2.0,
        metavar="SECONDS",
        help="how long a job may take to end its round, before it is ended within it "
        "(default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def switch_address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT, and tell a path what it is for."""
    if "/" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is a path, not HOST:PORT; jobs, queue, status, snapshot, drain and evict "
            f"take it without --switch: iswitch ctl jobs {text}"
        )
    return host_port(text)


def round_number(text: str) -> int | None:
    """Parse a round; None: the current one."""
    if text == "current":
        return None
    try:
        return whole(0, MOST)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, nor `current`") from None


def _stay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stay",
        action="store_true",
        help="remain a member until `iswitch ctl leave`, or until the lease runs out: no "
        "heartbeats are sent",
    )


def _threshold(parser: argparse.ArgumentParser) -> None:
    what = "contributions that complete a segment; 0: every worker's"
    parser.add_argument("threshold", type=whole(0, MOST), metavar="H", help=what)


def _segments(parser: argparse.ArgumentParser) -> None:
    index = whole(0, MOST)
    which = "its number, or `current`"
    parser.add_argument("round", type=round_number, metavar="ROUND", help=which)
    parser.add_argument("start", type=index, metavar="START", help="first segment")
    parser.add_argument(
        "count",
        type=whole(1, MOST),
        nargs="?",
        default=1,
        metavar="COUNT",
        help="how many segments (default: 1)",
    )


class Command(NamedTuple):
    """An action: its help and its own options; lab/control/actions.py has its function."""

    help: str
    configure: Callable[[argparse.ArgumentParser], None] = lambda _: None


COMMANDS = {
    "jobs": Command("list the jobs of a switch, and its memory"),
    "queue": Command("list the jobs that wait for the switch's memory, and those that have it"),
    "status": Command("show H in force, round, workers, who they are, halted or not"),
    "join": Command("try whether the job can be joined", _stay),
    "leave": Command("end a membership that `join --stay` left at --bind"),
    "seth": Command("set H, the contributions that complete a segment", _threshold),
    "fbcast": Command("broadcast segments now, partial as they are", _segments),
    "help": Command("show whose contributions segments wait for, and ask these", _segments),
    "halt": Command("suspend the job on all workers"),
    "reset": Command("clear the job's buffers and end a halt"),
}
