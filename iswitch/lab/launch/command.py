"""`iswitch run` and `iswitch record`: a command on every host of a topology."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from iswitch.outside import UsageError
from iswitch.system.files import check_writable, write
from iswitch.system.interrupts import Signals, Stopped
from iswitch.system.keyfiles import KEY, KEY_FILE, key_in
from topologies import Topology

from .launch import Crew, broken_pipe_is_an_end, how
from .processes import Fleet
from .restarts import Restarts
from .simulated import Simulated, make_switches, virtual_of
from .switches import Switches, SwitchFailed
from .world import World
from .worlds import check_members, made_folder, make_world, p4_switches, read_topology

Say = Callable[[str], None]  # tells the user something


def run_everywhere(args: argparse.Namespace, capture_option: str = "--capture") -> int:
    """Run the command of `iswitch run` on every host; return the exit status.

    `capture_option` is the option that named the folder for captures.
    """
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
    capture = made_folder(args.capture, capture_option)
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
            tell(args.chosen, f"stopped by {stopped.name}; all processes have ended")
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
    say = partial(tell, args.chosen)
    built = make_world(
        args.world,
        topology,
        offload=not args.no_offload,
        switches=args.switch,
        virtual=virtual_of(args),
        cable=args.cable,
    )
    title = f"{args.topology} ({args.world})"
    with built as world, world.watched(title) as watch, Fleet() as fleet:
        switches = make_switches(fleet, world, capture, say, watch=watch)
        restarts = partial(Restarts, args.max_restarts, inf)
        crew = Crew(switches, args.workers_per_host, restarts, say)
        say(f"{len(crew.hosts)} x {command[0]} in {args.topology} ({args.world})")
        status = 0
        try:
            switches.start()
            if not isinstance(world, Simulated):
                _tell_where(world, switches, topology.hosts[0].name, args.job, say)
            crew.start(command, args.job)
            with broken_pipe_is_an_end():
                crew.run()
            signals.hold()
            status = _status_of(crew, say)
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
            say(f"stopped by {stopped.name}; all processes have ended")
        report["workers"] = crew.report()
        report["switches"] = switches.counters
        report["switch_restarts"] = switches.restarted()
    return status


def _tell_where(world: World, switches: Switches, host: str, job: int, say: Say) -> None:
    """Tell where the switches are, and how to query the switch that a host joins."""
    say(f"{switches.addresses()}, job {job}")
    if entry := world.entry(host):
        asks = f"iswitch ctl status --job {job} --switch {switches.at(host)}"
        say(f"to ask the switch: {entry} {asks}")


def _status_of(crew: Crew, say: Say) -> int:
    """Return 0, or the status of the worker that failed; tell the user of the failure."""
    if crew.failed is None:
        return 0
    others = any(worker.status is None for worker in crew.workers)
    say(f"{crew.failed.called} {how(crew.failed)}{'; ending the others' if others else ''}")
    return crew.failed.status or 1


def hand_on_key(path: str | None) -> None:
    """Put a key file into the environment, which switches and commands get.

    Raises:
        KeyUnusable: the file, or the variable or file that the environment names, holds no key.
    """
    if path is not None:
        os.environ[KEY_FILE] = os.path.abspath(path)
        os.environ.pop(KEY, None)
    key_in(os.environ)


def tell(command: str, message: str) -> None:
    """Print a message of `run` or `record` on stderr, apart from the output of the workers."""
    print(f"iswitch {command}: {message}", file=sys.stderr, flush=True)
