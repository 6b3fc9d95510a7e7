"""Put a packet trace through the switch again, and compare what it sends with what was captured.

iswitch replay s1.pcapng

TRACE is a pcap or pcapng file: a capture of all ports of one switch (`iswitch run --capture`,
tcpdump, dumpcap), or of one host. Prints the members, how long rounds took and who was last, and
names every packet that differs. With --inject, the contributions in the trace are sent to a switch
under test instead. docs/traces.md. Exit status: 0 all packets that could be compared are equal, 1
one differs, or the trace is incomplete, 2 the trace cannot be replayed.
"""

from __future__ import annotations

import argparse

from iswitch.lab.options import quantity

from .switch import add_limits

MAX = "max"


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


def add_trace(parser: argparse.ArgumentParser, name: str = "trace") -> None:
    """Add the options that describe a trace and its switch; `name` is that of the trace itself."""
    parser.add_argument(name, metavar="TRACE", help="a pcap or pcapng file")
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
        help="what the trace is a capture of (default: detected)",
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
    add_limits(parser)


def speed(text: str) -> float:
    """Parse a speed: 0 for `max`, 1 for `real`, N for `Nx`."""
    if text in (MAX, "real"):
        return float(text == "real")
    try:
        return quantity()(text.removesuffix("x"))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r}: write max, real, or 10x") from None


def run(args: argparse.Namespace) -> int:
    """Replay, or inject."""
    from iswitch.lab.tracing.replaying import replay_or_inject

    return replay_or_inject(args)
