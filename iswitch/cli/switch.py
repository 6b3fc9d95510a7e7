"""Run a switch: on a UDP socket (the loopback world), or on network interfaces (the raw world).

Prints `listening HOST:PORT` when ready, serves until SIGINT, SIGTERM or SIGHUP, then prints its
counters; with --json each as an object on a line of its own. SIGUSR1 makes it print the counters so
far on stderr and serve on. On a UDP socket it needs no privileges, and serves workers on other
machines as well. With --ports, hosts are plugged into it: it forwards all other packets, as any
switch does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from iswitch.core.format.wire import LEAST_SLOTS, MOST_PRIORITY, MOST_SLOTS
from iswitch.core.jobs.policies import POLICIES
from iswitch.faults.units import MEMORY, TIME
from iswitch.lab.options import (
    MAX_JOB,
    host_port,
    integer,
    mac,
    port_here,
    quantity,
    udp_port,
    whole,
)

if TYPE_CHECKING:
    from iswitch.serving.settings import Settings

Granted = tuple[int | str | None, float]  # for whom, and how much
LEAST_LEASE = 5.0  # seconds; workers send a heartbeat every three


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--listen",
        type=host_port,
        metavar="HOST:PORT",
        help="address to serve on; port 0: any (default: 127.0.0.1:26963; without :PORT 26963)",
    )
    parser.add_argument(
        "--ports",
        type=lambda text: text.split(","),
        default=(),
        metavar="IF,IF...",
        help="be a switch with these network interfaces as its ports (needs root)",
    )
    parser.add_argument(
        "--world",
        choices=("loopback", "raw", "bmv2"),
        help="with --ports: raw, or bmv2 for the P4 program in a bmv2 (docs/p4.md); without: "
        "loopback",
    )
    parser.add_argument(
        "--address",
        type=IPv4Address,
        metavar="IP",
        help="with --ports: the switch's own address, in the hosts' network",
    )
    parser.add_argument(
        "--mac",
        type=mac,
        metavar="MAC",
        help="with --ports: the switch's own MAC (default: 02:69 and the address)",
    )
    parser.add_argument(
        "--port",
        type=udp_port,
        metavar="PORT",
        help="with --ports: UDP port (default: the protocol's, 26963)",
    )
    parser.add_argument(
        "--capture",
        metavar="FILE.pcapng",
        help="write all frames that come and go to a file; without --ports, packets with made-up "
        "headers",
    )
    parser.add_argument(
        "--parent",
        type=host_port,
        metavar="HOST:PORT",
        help="the switch above, to which this one contributes the sums of its members (without "
        ":PORT 26963)",
    )
    parser.add_argument(
        "--uplink",
        metavar="IF",
        help="with --ports and --parent: the port that leads to it (default: the last)",
    )
    parser.add_argument(
        "--hold",
        type=quantity(0, TIME),
        metavar="SECONDS",
        help="with --parent: how long a partial sum of an asynchronous job waits for more "
        "contributions (default: about as long as a version takes)",
    )
    add_limits(parser, LEAST_LEASE)
    add_grants(parser)
    parser.add_argument(
        "--keys",
        metavar="FILE",
        help='keys of keyed jobs, lines such as 7 = "KEY"; without it, ISWITCH_KEY or '
        "ISWITCH_KEY_FILE in the environment is the key of all jobs",
    )
    parser.add_argument(
        "--reproducible",
        action="store_true",
        help="sum every synchronous job in rank order, so that runs repeat bit for bit",
    )
    parser.add_argument(
        "--counting",
        choices=("exact", "paper", "none"),
        default="exact",
        help="exact: each member's contribution once; paper: a bare counter, as in the paper, "
        "which loss makes wrong (docs/guarantees.md); none: nothing is added, every packet goes "
        "back to its sender, for `iswitch bench` (default: %(default)s)",
    )
    parser.add_argument(
        "--spin",
        type=quantity(0, TIME),
        default=0.0,
        metavar="SECONDS",
        help="poll this long before sleeping: lower latency for a busy core (default: 0)",
    )
    parser.add_argument(
        "--cpu",
        type=integer,
        metavar="N",
        help="run on this core only (default: as the kernel chooses)",
    )
    parser.add_argument(
        "--no-replicate",
        action="store_false",
        dest="replicate",
        help="with --ports: send broadcasts to each port, rather than have the kernel copy them",
    )
    parser.add_argument(
        "--no-offload",
        action="store_false",
        dest="offload",
        help="send packets one by one, without segmentation offload",
    )
    parser.add_argument(
        "--no-shm",
        dest="shm",
        action="store_false",
        help="serve workers of this machine by UDP only, not through shared memory "
        "(ISWITCH_SHM=0 does so, too)",
    )
    parser.add_argument(
        "--no-fast",
        action="store_false",
        dest="fast",
        help="handle all packets in Python, even if Numba is installed (docs/switch.md)",
    )
    parser.add_argument(
        "--shm-at",
        metavar="PATH",
        help="with --ports: a UNIX socket at which hosts of this machine get shared memory besides "
        "their cables, as iswitch run --cable shm uses it",
    )
    parser.add_argument(
        "--shm-hosts",
        type=lambda text: text.split(","),
        default=(),
        metavar="HOST=IF,...",
        help="with --shm-at: the addresses of these hosts, and the ports where they are",
    )
    parser.add_argument(
        "--shm-link",
        dest="shm_links",
        action="append",
        default=[],
        metavar="IF:SPEC",
        help="with --shm-at: the rate and the queue of the link there, which packets in shared "
        "memory keep, such as s1-eth1:rate=10Gbit,queue=1000; may be repeated",
    )
    parser.add_argument(
        "--impair",
        action="append",
        default=[],
        metavar="[IF:][in:|out:]SPEC",
        help="make a link bad, such as s1-eth1:out:loss=1%%,delay=5ms,seed=1; may be repeated "
        "(docs/links.md; default: both directions)",
    )
    parser.add_argument(
        "--seed",
        type=integer,
        metavar="N",
        help="seed of --impair's chances, unless a SPEC names one (default: 0)",
    )
    parser.add_argument(
        "--watch",
        metavar="PATH.sock",
        help="show what it does to `iswitch top` and `iswitch ctl snapshot`, at a UNIX socket that "
        "only its owner can open (docs/watch.md)",
    )
    parser.add_argument(
        "--metrics",
        type=port_here,
        metavar="[HOST:]PORT",
        help="serve Prometheus' metrics and the snapshot over HTTP, to whoever can connect (HOST "
        "defaults to 127.0.0.1; needs iswitch[metrics]; docs/watch.md)",
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="warning",
        help="the least of what is logged on stderr, a few lines a day at most of each kind "
        "(default: %(default)s)",
    )
    parser.add_argument("--log-json", action="store_true", help="log a JSON object a line")
    parser.add_argument("--json", action="store_true", help="print two lines, each a JSON object")


def granted(quantity_: Callable[[str], float], other: bool) -> Callable[[str], Granted]:
    """Return a parser of [WHO=]NUMBER, where WHO is a job's number or the name of a user of keys.

    Args:
        quantity_: parses the number.
        other: whether WHO may be left out: then the number is meant for every job.
    """

    def parse(text: str) -> Granted:
        who, is_named, value = text.rpartition("=")
        if not is_named and other:
            return None, quantity_(value)
        if not who:
            example = "7=4 for job 7, or alice=4 for the user alice of --keys"
            raise argparse.ArgumentTypeError(f"{text!r} does not say for whom; write {example}")
        if who.isdecimal() and who.isascii():
            return whole(0, MAX_JOB)(who), quantity_(value)
        return who, quantity_(value)

    return parse


def add_grants(parser: argparse.ArgumentParser) -> None:
    """Add the options for what single jobs and users may have."""
    parser.add_argument(
        "--quota",
        action="append",
        default=[],
        type=granted(quantity(unit=MEMORY), True),
        metavar="[WHO=]MIB",
        help="most that a job may reserve, written as --memory: job number WHO, all jobs of the "
        "user WHO of --keys together, or every job not named; may be repeated (docs/sharing.md)",
    )
    parser.add_argument(
        "--priority",
        action="append",
        default=[],
        type=granted(whole(0, MOST_PRIORITY), False),
        metavar="WHO=N",
        help="the priority, 0 to 7, of job number WHO or of the user WHO of --keys, whatever its "
        "workers ask for; may be repeated",
    )


def slots(text: str) -> int:
    """Parse a number of slots: a power of two."""
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < LEAST_SLOTS or number & (number - 1) or number > MOST_SLOTS:
        raise argparse.ArgumentTypeError(f"{text} is not a power of two of {LEAST_SLOTS} or more")
    return number


def add_limits(parser: argparse.ArgumentParser, least_lease: float | None = None) -> None:
    """Add the options for the limits that a switch sets."""
    parser.add_argument(
        "--memory",
        type=quantity(unit=MEMORY),
        default=1024,
        metavar="MIB",
        help="most that members may reserve for sums, in MiB or with a unit, such as 512KiB "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--slots",
        type=slots,
        default=0,
        metavar="N",
        help="segments of a round that a job can have under way, a power of two: longer vectors go "
        "through them one part after the other (default: a whole vector; docs/slots.md); with "
        "--policy pool the fewest of a job (16); with besteffort or preempt those that all share",
    )
    parser.add_argument(
        "--policy",
        choices=tuple(POLICIES),
        default="static",
        help="how jobs share the memory; besteffort and preempt need --slots and, to pass anything "
        "on, a --parent (default: %(default)s; docs/sharing.md)",
    )
    parser.add_argument(
        "--lease",
        type=quantity(least_lease, TIME),
        default=30.0,
        metavar="SECONDS",
        help="a member that is silent for this long loses its place (default: %(default)s)",
    )
    parser.add_argument(
        "--control-rate",
        type=quantity(1),
        default=2000.0,
        metavar="N",
        help="control packets a second taken of one source (default: %(default)g)",
    )


def settings(args: argparse.Namespace) -> Settings:
    """Make the settings of a switch from its options."""
    from iswitch.serving.settings import Settings

    return Settings(**{field.name: getattr(args, field.name) for field in fields(Settings)})


def run(args: argparse.Namespace) -> int:
    """Run the switch until it is stopped; return the exit status."""
    from iswitch.serving.process import serve

    return serve(settings(args))
