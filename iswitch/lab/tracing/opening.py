"""The trace that a command line names, and the switch in it."""

from __future__ import annotations

import argparse
import os
from ipaddress import IPv4Address
from pathlib import Path

from iswitch.core.format.wire import PORT
from iswitch.core.jobs.limits import Limits
from iswitch.core.jobs.policies import POLICIES
from iswitch.core.sums.buffers import AllOrNothing
from iswitch.core.sums.paper import Counting
from iswitch.faults.units import count
from iswitch.lab.launch.worlds import read_topology
from iswitch.lab.options import host_port
from iswitch.outside import UsageError, reading
from iswitch.system.keyfiles import KEY_FILE, given_keys
from iswitch.traces.paired import ReplayOptions
from iswitch.traces.reader import NotATrace, Reader
from iswitch.traces.survey import NothingToReplay, TraceSetting, survey

SHOWN = 8  # names of switches


def files_read(args: argparse.Namespace) -> tuple[str | None, ...]:
    """List the values that may name files, of the options of `add_trace` and of the environment."""
    return args.trace, args.keys, args.topology, os.environ.get(KEY_FILE)


def opened(args: argparse.Namespace) -> tuple[Reader, TraceSetting]:
    """Open the trace and find the switch in it.

    Raises:
        UsageError: the trace cannot be replayed.
    """
    where = named_switch(args)
    host = None if args.view is None else args.view == "host"
    with reading(args.trace):
        if Path(args.trace).is_fifo():
            raise UsageError(f"{args.trace} is no file; write what comes from it to one first")
        reader = None
        try:
            reader = Reader(args.trace)
            setting = survey(reader, where, host)
        except (NotATrace, NothingToReplay) as error:
            lost = reader.dropped if reader is not None else 0
            more = f" ({count(lost, 'packet')} missing in the file, which says so)" if lost else ""
            raise UsageError(f"{error}{more}") from None
    if args.order is not None:
        setting.ordered = args.order == "known"
    if wanted := other_policy(args, setting):
        reader.close()
        raise UsageError(f"{args.trace}: {wanted}, as it was started with")
    return reader, setting


def other_policy(args: argparse.Namespace, setting: TraceSetting) -> str:
    """Say how the switch shares its memory, and the option that is missing; "": none is.

    Another switch would add up in another order, and drop other packets.
    """
    policy = POLICIES[args.policy]
    if setting.parts and not policy.passes_on:
        return (
            "this switch passed on what found no slot; add --policy besteffort (or preempt) and "
            "--slots N"
        )
    if setting.parent is not None:  # what it has told its members is what the one above has told it
        return ""
    if setting.turns and not policy.takes_turns:
        return "jobs took turns with the switch's memory; add --policy lanes:... and --memory"
    if setting.slots and not (args.slots or policy.resizes):
        return f"jobs had {setting.slots} slots; add --slots {setting.slots}, or --policy pool"
    return ""


def named_switch(args: argparse.Namespace) -> tuple[str, int] | None:
    """Find the address of the switch that the options name."""
    if args.topology is not None:
        topology = read_topology(args.topology)
        names = [switch.name for switch in topology.tree]
        known = ", ".join(names[:SHOWN]) + (f" ... {names[-1]}" if names[SHOWN:] else "")
        if args.switch is None and len(names) > 1:
            raise UsageError(
                f"--topology {args.topology}: which of its switches was captured? add "
                f"--switch NAME, one of {known}"
            )
        if args.switch not in (None, *names):
            raise UsageError(f"--switch {args.switch}: {args.topology} has {known}")
        return str(topology.address(args.switch or names[0])), PORT
    if args.switch is None:
        return None
    try:
        host, port = host_port(args.switch)
        return str(IPv4Address(host)), port
    except (argparse.ArgumentTypeError, ValueError):
        raise UsageError(
            f"--switch {args.switch} is no address; write 10.26.255.254:26963, or name the "
            "--topology that has it"
        ) from None


def switch_names(args: argparse.Namespace) -> dict[str, str]:
    """Return the names of the switches of --topology, by address."""
    if args.topology is None:
        return {}
    topology = read_topology(args.topology)
    return {str(topology.address(switch.name)): switch.name for switch in topology.tree}


def options(args: argparse.Namespace) -> ReplayOptions:
    """Collect the options that the switch ran with."""
    limits = Limits(
        memory=int(args.memory * 2**20),
        lease=args.lease,
        control_rate=args.control_rate,
        buffers=AllOrNothing(),
        slots=args.slots,
        policy=args.policy,
    )
    return ReplayOptions(given_keys(args.keys), limits, args.reproducible, Counting(args.counting))
