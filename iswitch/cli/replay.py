"""Put a packet trace through the switch again, and compare what it sends with what was captured.

iswitch replay s1.pcapng

TRACE is a pcap or pcapng file: a capture of all ports of one switch (`iswitch run --capture`,
tcpdump, dumpcap), or of one host. Prints who took part, how long rounds took and who was last, and
names every packet that does not agree. With --inject the trace is sent instead, to a switch under
test. docs/traces.md. Exit status: 0 all that could be compared agrees, 1 something does not, or the
trace is incomplete, 2 it cannot be replayed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import ExitStack
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iswitch.faults.units import count
from iswitch.lab.options import check_unread, check_writable, host_port, quantity
from iswitch.outside import UsageError, reading, writing

if TYPE_CHECKING:
    from collections.abc import Callable

    from iswitch.traces.paired import Options
    from iswitch.traces.reader import Reader
    from iswitch.traces.survey import Setting

MAX = "max"
SHOWN = 8  # names of switches


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_trace(parser)
    parser.add_argument(
        "--out", metavar="OUT.pcapng", help="write what the switch would have sent to a file"
    )
    parser.add_argument(
        "--inject", metavar="IF", help="send what the trace's workers sent at this interface"
    )
    parser.add_argument(
        "--speed",
        type=speed,
        metavar="max|real|Nx",
        help="as fast as can be, as recorded, or N times as fast (default: max; with --inject: "
        "real)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_trace(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what a trace is of."""
    parser.add_argument("trace", metavar="TRACE", help="a pcap or pcapng file")
    parser.add_argument(
        "--topology", metavar="FORM", help="the network it was captured in, such as rack:2x3"
    )
    parser.add_argument(
        "--switch",
        metavar="NAME|IP:PORT",
        help="the switch to be replayed: a name in --topology, or its address (default: the only "
        "one there, or the first that is joined)",
    )
    parser.add_argument(
        "--view",
        choices=("switch", "host"),
        help="of what it is a capture (default: found out)",
    )
    parser.add_argument(
        "--order",
        choices=("known", "unknown"),
        help="whether packets are in the order in which the switch handled them (default: known "
        "in captures by iswitch)",
    )
    parser.add_argument(
        "--keys", metavar="FILE", help="keys of keyed jobs, as for `iswitch switch`"
    )
    parser.add_argument(
        "--reproducible", action="store_true", help="the switch summed in rank order"
    )
    parser.add_argument(
        "--counting", choices=("exact", "paper"), default="exact", help="as for `iswitch switch`"
    )
    parser.add_argument(
        "--lease", type=quantity(), default=30.0, metavar="SECONDS", help="of its members (30)"
    )
    parser.add_argument(
        "--memory", type=quantity(), default=1024, metavar="MIB", help="most for sums (1024)"
    )
    parser.add_argument(
        "--control-rate", type=quantity(1), default=2000.0, metavar="N", help="of a source (2000)"
    )


def speed(text: str) -> float:
    """An argparse type: 0 for `max`, 1 for `real`, N for `Nx`."""
    if text in (MAX, "real"):
        return float(text == "real")
    try:
        return quantity()(text.removesuffix("x"))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r}: write max, real, or 10x") from None


def run(args: argparse.Namespace) -> int:
    """Replay, or inject."""
    if args.inject and args.out:
        raise UsageError(
            "--out is what a switch would send, and --inject drives one; leave one out"
        )
    check_unread(args.out, *files_read(args))
    reader, setting = opened(args)
    with reader:
        if args.inject:
            return inject(args, reader, setting)
        check_writable(args.out)
        return report(args, reader, setting)


def files_read(args: argparse.Namespace) -> tuple[str | None, ...]:
    """Whatever of the options of `add_trace` may name a file."""
    from iswitch.system.keyfiles import KEY_FILE

    return args.trace, args.keys, args.topology, os.environ.get(KEY_FILE)


def opened(args: argparse.Namespace) -> tuple[Reader, Setting]:
    """The trace, and what it is of.

    Raises:
        UsageError: it cannot be replayed.
    """
    from iswitch.traces.reader import NotATrace, Reader
    from iswitch.traces.survey import NothingToReplay, survey

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
    return reader, setting


def named_switch(args: argparse.Namespace) -> tuple[str, int] | None:
    """Where the switch was that the options name."""
    from iswitch.core.format.wire import PORT

    if args.topology is not None:
        from iswitch.lab.launch.worlds import read_topology

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


def options(args: argparse.Namespace) -> Options:
    """Of the switch."""
    from iswitch.core.jobs.limits import Limits
    from iswitch.core.sums.buffers import AllOrNothing
    from iswitch.core.sums.paper import Counting
    from iswitch.traces.paired import Options

    from .switch import keys

    limits = Limits(
        memory=int(args.memory * 2**20),
        lease=args.lease,
        control_rate=args.control_rate,
        buffers=AllOrNothing(),
    )
    return Options(keys(args.keys), limits, args.reproducible, Counting(args.counting))


def report(args: argparse.Namespace, reader: Reader, setting: Setting) -> int:
    """Replay, and print."""
    from iswitch.traces.report import is_clean, is_whole, lines, replay
    from iswitch.traces.survey import NothingToReplay
    from iswitch.traces.writing import TraceWriter

    writer = None
    with writing(args.out or "standard output"), ExitStack() as stack:
        if args.out:
            writer = TraceWriter(args.out)
            stack.callback(writer.close)
        try:
            found = replay(
                reader,
                setting,
                options(args),
                sink=writer,
                pace=pace(args.speed, reader) if args.speed else None,
            )
        except NothingToReplay as error:
            raise UsageError(str(error)) from None
    if writer:
        found["written"] = writer.frames
    print(json.dumps(found, indent=1) if args.json else "\n".join(lines(found)))
    return 0 if is_clean(found) and is_whole(found) else 1


def pace(times: float, reader: Reader) -> Callable[[float], None]:
    """Wait until it is time, so many times as fast as recorded; the trace must be whole then."""
    begun: list[float] = []

    def wait(seconds: float) -> None:
        now = time.monotonic()
        if not begun:
            begun.append(now - seconds / times)
        time.sleep(max(0.0, begun[0] + seconds / times - now))
        reader.check_whole()

    return wait


def inject(args: argparse.Namespace, reader: Reader, setting: Setting) -> int:
    """Send the trace's contributions."""
    from iswitch.ports.raw import RawPortError
    from iswitch.traces.inject import Injector

    times = 1.0 if args.speed is None else args.speed
    try:
        injector = Injector(reader, setting, args.inject, pace(times, reader) if times else None)
    except RawPortError as error:
        raise UsageError(f"--inject {args.inject}: {error.strerror}") from None
    begin = time.monotonic()
    with injector:
        injector.run()
    seconds = time.monotonic() - begin
    found: dict[str, Any] = {
        "interface": args.inject,
        "packets": injector.sent,
        "bytes": injector.sent_bytes,
        "refused": injector.refused,
        "seconds": round(seconds, 6),
    }
    if args.json:
        print(json.dumps(found))
    else:
        rate = injector.sent_bytes / max(seconds, 1e-9) / 1e9
        print(
            f"sent {injector.sent:,} packets at {args.inject} in {seconds:.3f} s ({rate:.2f} GB/s)"
        )
        if injector.refused:
            print(f"the kernel did not take {injector.refused:,} more", file=sys.stderr)
    return 1 if injector.refused else 0
