"""Run a command on every host of a network whose switches are iSwitches.

iswitch run --topology rack:2x3 --world netns -- python train.py

Builds the network, starts a switch process for every switch, and runs the command on every host,
with ISWITCH_SWITCH (HOST:PORT of the host's switch), ISWITCH_JOB, RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment: `Worker.from_env` reads these.
Lines of output begin with the host's name. A switch that dies is started again, and so is a command
that fails, with --max-restarts. When the commands have ended, or one of them has failed for good,
everything is ended and removed. The exit status is that of the first that failed, 128 + n if it was
killed by signal n.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from iswitch.lab.launch.worlds import (
    WORLDS,
    add_capture,
    add_switch_kind,
    capture_folder,
    p4_switches,
)
from iswitch.lab.options import check_writable
from iswitch.outside import UsageError
from iswitch.system.files import write

if TYPE_CHECKING:
    from pathlib import Path

    from topologies import Topology


def configure(parser: argparse.ArgumentParser, captures: bool = True) -> None:
    """Add the options; without `captures` the one for them is left out."""
    kinds = "; ".join(f"{name}: {meaning}" for name, meaning in WORLDS.items())
    parser.add_argument(
        "--topology",
        required=True,
        metavar="FORM",
        help="such as star:4, rack:2x3, tree:2x2x3, leafspine:2x4x4, or a .toml file",
    )
    parser.add_argument(
        "--world", choices=WORLDS, default="loopback", help=f"{kinds} (default: %(default)s)"
    )
    parser.add_argument(
        "--workers-per-host", type=int, default=1, metavar="N", help="processes on each host (1)"
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="start a command that fails again, so many times, as the same RANK (0)",
    )
    parser.add_argument(
        "--job", type=int, default=1, metavar="N", help="ISWITCH_JOB (default: %(default)s)"
    )
    parser.add_argument(
        "--no-offload",
        action="store_true",
        help="all packets one by one: no segmentation offload in switches, nor in links",
    )
    if captures:
        add_capture(parser)
    add_switch_kind(parser)
    parser.add_argument(
        "--key-file",
        metavar="FILE",
        help="a key of all jobs, for switches and commands (ISWITCH_KEY_FILE in their environment)",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write how each worker ended, and the switches' counters"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND...", help="what to run"
    )
    # argparse would write "..." for what follows the options.
    parser.usage = "%(prog)s [options] --topology FORM -- COMMAND..."


def run(args: argparse.Namespace) -> int:
    """Run it."""
    from iswitch.lab.launch.launch import Signals, Stopped
    from iswitch.lab.launch.worlds import read_topology

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("nothing to run: put a command at the end, such as -- python train.py")
    if not 0 <= args.job <= 0xFFFF:
        raise UsageError(f"--job {args.job}: a job number is 0..65535")
    if args.max_restarts < 0:
        raise UsageError(f"--max-restarts {args.max_restarts}: 0 or more")
    topology = read_topology(args.topology)
    check_members(topology, args.workers_per_host)
    check_writable(args.json, args.topology, args.key_file)
    p4_switches(args.world, topology, args.switch, args.capture)
    capture = capture_folder(args.capture)
    hand_on_key(args.key_file)
    report: dict[str, Any] = {
        "topology": args.topology,
        "world": args.world,
        "job": args.job,
        "status": 1,
        "workers": [],
        "switches": {},
        "switch_restarts": {},
    }
    with Signals() as signals:
        try:
            status = _run(args, topology, command, capture, report, signals)
        except Stopped as stopped:  # while the network was being built
            name = signal.Signals(stopped.signum).name
            tell(args.chosen, f"stopped by {name}; all processes have ended")
            status = 128 + stopped.signum
    report["status"] = status
    if args.json:
        write(args.json, json.dumps(report, indent=1))
    return status


def _run(
    args: argparse.Namespace,
    topology: Topology,
    command: list[str],
    capture: Path | None,
    report: dict[str, Any],
    signals: Any,
) -> int:
    from iswitch.lab.launch.launch import Crew, Stopped, broken_pipe_is_an_end, how
    from iswitch.lab.launch.processes import Fleet
    from iswitch.lab.launch.switches import Switches, SwitchFailed
    from iswitch.lab.launch.worlds import make_world

    say = partial(tell, args.chosen)
    built = make_world(args.world, topology, offload=not args.no_offload, switches=args.switch)
    with built as world, Fleet() as fleet:
        switches = Switches(fleet, world, capture, say)
        crew = Crew(fleet, world, switches, args.workers_per_host, args.max_restarts, say)
        say(f"{crew.size} x {command[0]} in {args.topology} ({args.world})")
        status = 0
        try:
            switches.start()
            say(f"{switches.addresses()}, job {args.job}")
            crew.start(command, args.job)
            with broken_pipe_is_an_end():
                crew.run()
            signals.hold()
            if crew.failed is not None:
                status = crew.failed.status or 1
                others = any(worker.status is None for worker in crew.workers)
                tail = "; ending the others" if others else ""
                say(f"{crew.failed.called} {how(crew.failed)}{tail}")
            crew.end()
            report["switches"] = switches.stop()
            incomplete = switches.tell_incomplete()
            status = status or incomplete
        except SwitchFailed as error:
            signals.hold()
            status = status or error.status
            say(str(error))
            crew.end()
        except Stopped as stopped:
            status = 128 + stopped.signum
            crew.end(stopped.signum)
            if capture is not None:
                with suppress(SwitchFailed):
                    switches.stop()
                switches.tell_incomplete()
            say(f"stopped by {signal.Signals(stopped.signum).name}; all processes have ended")
        report["workers"] = crew.report()
        report["switches"] = switches.counters
        report["switch_restarts"] = switches.restarted()
    return status


def hand_on_key(path: str | None) -> None:
    """Put a key file into the environment, which switches and commands get.

    Raises:
        KeyUnusable: there is no key in it, or in what the environment names.
    """
    from iswitch.system.keyfiles import KEY, KEY_FILE, key_in

    if path is not None:
        os.environ[KEY_FILE] = os.path.abspath(path)
        os.environ.pop(KEY, None)
    key_in(os.environ)


def check_members(topology: Topology, per_host: int) -> None:
    """Whether every switch can take the workers of its hosts.

    Raises:
        UsageError: one cannot.
    """
    from iswitch.core.format.wire import MAX_MEMBERS

    if per_host < 1:
        raise UsageError(f"--workers-per-host {per_host}: at least 1")
    hosts = Counter(topology.switch_of(host.name) for host in topology.hosts)
    children = Counter(switch.parent for switch in topology.tree)
    for switch in topology.tree:
        members = hosts[switch.name] * per_host + children[switch.name]
        if members > MAX_MEMBERS:
            raise UsageError(
                f"switch {switch.name} would have {members} workers and child switches, "
                f"{MAX_MEMBERS} at most; take fewer --workers-per-host, or put switches between, "
                "such as rack:2x48"
            )


def tell(command: str, message: str) -> None:
    """Tell the user, beside what the command prints; `run` or `record` does."""
    print(f"iswitch {command}: {message}", file=sys.stderr, flush=True)
