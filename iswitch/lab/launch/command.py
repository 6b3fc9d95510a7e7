"""`iswitch run` and `iswitch record`: a command on every host of a topology."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from iswitch.outside import UsageError
from iswitch.system.files import check_writable, write
from iswitch.system.interrupts import Signals, Stopped
from iswitch.system.keyfiles import KEY, KEY_FILE, key_in
from iswitch.watch.places import Watch
from topologies import Topology

from . import shares
from .launch import Crew, broken_pipe_is_an_end, how
from .placing import placed, ranges
from .processes import Fleet
from .programs import Logs, Printer, Program, WorkerProcess, everywhere
from .restarts import Restarts
from .simulated import Network, Simulated, check_command, make_switches, virtual_of
from .switches import Switches, SwitchFailed
from .world import World
from .worlds import check_members, made_folder, make_world, p4_switches, read_topology

Say = Callable[[str], None]  # tells the user something
Hear = Callable[[WorkerProcess, str, bool], None]  # takes a line, and whether to stderr


def run_everywhere(args: argparse.Namespace, capture_option: str = "--capture") -> int:
    """Run the command of `iswitch run` on every host; return the exit status.

    `capture_option` is the option that named the folder for captures.
    """
    topology = read_topology(args.topology)
    check_members(topology, args.workers_per_host)
    programs = programs_of(args, topology)
    check_writable(args.json, args.topology, args.key_file, args.jobs)
    check_p4(p4_switches(args.world, topology, args.switch, args.capture), topology, programs)
    if args.world == "sim":
        for program in programs:
            check_command(program.command)
    capture = made_folder(args.capture, capture_option)
    logs = made_folder(args.logs, "--logs")
    hand_on_key(args.key_file)
    report: dict[str, Any] = {
        "topology": args.topology,
        "world": args.world,
        **({"jobs": {}} if args.jobs else {"job": args.job}),
        "status": 1,
        "workers": [],
        "switches": {},
        "share_added": {},
        "switch_restarts": {},
    }
    with Signals() as signals:
        try:
            hear = heard(programs, None if logs is None else Logs(logs, programs))
            status = _run(args, topology, programs, hear, capture, report, signals)
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
    programs: Sequence[Program],
    hear: Hear,
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
        virtual=virtual_of(args, max(len(one.hosts) for one in programs)),
        cable=args.cable,
        fallback=args.fallback,
    )
    with built as world, world.watched(world.title) as watch, Fleet() as fleet:
        switches = make_switches(fleet, world, capture, say, watch=watch)
        restarts = partial(Restarts, args.max_restarts, inf)
        crew = Crew(switches, programs, restarts, say, hear)
        _tell_what(programs, world.title, say)
        status = 0
        try:
            switches.start()
            if not isinstance(world, Simulated):
                _tell_where(world, switches, programs[0], say, watch)
            crew.start()
            with broken_pipe_is_an_end():
                crew.run()
            signals.hold()
            status = _status_of(crew, say)
            crew.end()
            _stop(switches, report, say if status == 0 else None)
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
        report |= {"jobs": crew.statuses()} if args.jobs else {}
        report |= {"switches": switches.counters, "share_added": shares.shares(switches.counters)}
        report["switch_restarts"] = switches.restarted()
    return status


def _stop(switches: Switches, report: dict[str, Any], say: Say | None) -> None:
    """Stop the switches; report the virtual time, and what a fallback was given, if any."""
    switches.stop()
    added = shares.told(switches.counters)
    if added and say is not None:
        say(f"contributions added: {added}")
    if isinstance(switches, Network):
        report["seconds"] = switches.seconds
        if say is not None:
            say(f"ended at {switches.seconds:.6g} s of virtual time")


def _tell_what(programs: Sequence[Program], title: str, say: Say) -> None:
    """Tell what runs where."""
    for one in programs:
        what = f"{len(one.hosts)} x {one.command[0]} in {title}"
        say(f"{one.name}: {what}, job {one.job} on {ranges(one.hosts)}" if one.name else what)


def _tell_where(
    world: World, switches: Switches, program: Program, say: Say, watch: Watch | None
) -> None:
    """Tell where the switches are, how to watch them, and how to query that of the first host."""
    job, host = program.job, program.hosts[0]
    say(switches.addresses() + (f", job {job}" if not program.name else ""))
    if entry := world.entry(host):
        asks = f"iswitch ctl status --job {job} --switch {switches.at(host)}"
        say(f"to ask the switch: {entry} {asks}")
    if watch is not None:
        say(f"to watch: iswitch top {watch.folder}")


def _status_of(crew: Crew, say: Say) -> int:
    """Return 0, or the status of the worker that failed; tell the user of the failure."""
    if crew.failed is None:
        return 0
    if len(crew.programs) > 1:  # told already
        return crew.failed.status or 1
    others = any(worker.status is None for worker in crew.workers)
    say(f"{crew.failed.called} {how(crew.failed)}{'; ending the others' if others else ''}")
    return crew.failed.status or 1


def programs_of(args: argparse.Namespace, topology: Topology) -> list[Program]:
    """Make the programs that the options describe: one everywhere, or those of --jobs.

    Raises:
        OutsideError: options exclude each other, or the jobs cannot be read, placed or run.
    """
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.jobs is None:
        if not command:
            raise UsageError("nothing to run: put a command at the end, such as -- python train.py")
        if not 0 <= args.job <= 0xFFFF:
            raise UsageError(f"--job {args.job}: a job number is 0..65535")
        for option, value in (("--policy", args.policy), ("--logs", args.logs)):
            if value is not None:
                raise UsageError(f"{option} goes with --jobs FILE; add that, or leave it out")
        return [everywhere(topology, command, args.job, args.workers_per_host)]
    if command:
        raise UsageError(f"--jobs {args.jobs} has the commands; leave out {' '.join(command)}")
    if args.workers_per_host != 1 or args.job != 1:
        option = "--job" if args.job != 1 else "--workers-per-host"
        raise UsageError(f"{option}: {args.jobs} says how many workers and which job; leave it out")
    found = placed(topology, args.jobs, args.policy or "pack")
    for job in found.jobs:
        if not job.command:
            raise UsageError(
                f"{args.jobs}: job {job.name!r} has no command to run; add one, such as "
                'command = "python train.py"'
            )
    return [Program(job.command, job.number, found.places[job.name], 1, job.name, job.variables)
            for job in found.jobs]  # fmt: skip


def check_p4(p4: Collection[str], topology: Topology, programs: Sequence[Program]) -> None:
    """Refuse several jobs in a tree with a P4 program, below which all jobs share one line.

    Raises:
        UsageError: there are several.
    """
    if p4 and len(topology.tree) > 1 and len(programs) > 1:
        raise UsageError(
            "--jobs: a tree of P4 programs has one job at a time (docs/hierarchy.md); take a star, "
            "or iswitch switches"
        )


def heard(programs: Sequence[Program], logs: Logs | None) -> Hear:
    """Make what takes the lines of processes: it prints them, and writes them to logs."""
    printer = Printer(programs)

    def hear(worker: WorkerProcess, line: str, is_error: bool) -> None:
        printer.print(worker, line, is_error)
        if logs is not None:
            logs.note(worker, line)

    return hear


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
