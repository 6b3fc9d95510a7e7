"""Run a switch on a UDP socket (the loopback world).

Prints `listening HOST:PORT` when ready, serves until SIGINT or SIGTERM, then prints its counters;
with --json each as an object on a line of its own. Needs no privileges, and serves workers on other
machines as well.
"""

from __future__ import annotations

import argparse
import errno
import json
import signal
import socket
import sys
import time

from . import UsageError, host_port, quantity

LEAST_LEASE = 5.0  # seconds; workers send a heartbeat every three
MENDS = {
    errno.EADDRINUSE: "is another switch running there? --listen 127.0.0.1:0 takes any free port",
    errno.EADDRNOTAVAIL: "no address of this machine (`ip address` lists them); "
    "--listen 0.0.0.0:26963 serves on all it has",
    errno.EACCES: "ports below 1024 are for root; take a higher one, such as 26963",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--listen",
        type=host_port,
        default="127.0.0.1:26963",
        metavar="HOST:PORT",
        help="address to serve on; port 0: any (default: %(default)s)",
    )
    parser.add_argument(
        "--parent",
        type=host_port,
        metavar="HOST:PORT",
        help="the switch above: jobs go on to it, as contributions of one member",
    )
    parser.add_argument(
        "--memory",
        type=quantity(),
        default=1024,
        metavar="MIB",
        help="most that members may reserve for sums (default: %(default)s)",
    )
    parser.add_argument(
        "--lease",
        type=quantity(LEAST_LEASE),
        default=30.0,
        metavar="SECONDS",
        help="a member that is silent for so long is out (default: %(default)s)",
    )
    parser.add_argument(
        "--reproducible",
        action="store_true",
        help="sum every synchronous job in rank order, so that runs repeat bit for bit",
    )
    parser.add_argument(
        "--spin",
        type=quantity(0),
        default=0.0,
        metavar="SECONDS",
        help="poll this long before sleeping: lower latency for a busy core (default: 0)",
    )
    parser.add_argument(
        "--no-offload",
        action="store_true",
        help="send and receive packets one by one, without UDP_SEGMENT and UDP_GRO",
    )
    parser.add_argument("--json", action="store_true", help="print two lines, each a JSON object")


def run(args: argparse.Namespace) -> int:
    """Serve."""
    from ..control import Limits
    from ..engine import Engine
    from ..packets import Address
    from ..ports.udp import UdpPort
    from ..switch import Switch
    from ..wire import ROUND_MASK

    limits = Limits(memory=int(args.memory * 2**20), lease=args.lease)
    parent = Address(*resolved(args.parent)) if args.parent else None
    incarnation = int(time.time()) & ROUND_MASK
    switch = Switch(limits, args.reproducible, parent, incarnation)
    try:
        port = UdpPort(args.listen, offload=not args.no_offload, counters=switch.counters)
    except OSError as error:
        where = "{}:{}".format(*args.listen)
        raise UsageError(f"cannot listen at {where}: {error.strerror}; {mend(error)}") from None
    engine = Engine(switch, port, spin=args.spin)
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: engine.stop())
    ready = {"listening": str(port.address)}
    print(json.dumps(ready) if args.json else f"listening {port.address}", flush=True)
    engine.run()
    port.close()
    if args.json:
        print(json.dumps(switch.counters))
    else:
        print_counters(dict(switch.counters))
    sys.stdout.flush()
    return 0


def resolved(parent: tuple[str, int]) -> tuple[str, int]:
    """The parent's IPv4 address and port."""
    host, port = parent
    if not port:
        raise UsageError("--parent needs the port it listens at, such as 10.26.255.254:26963")
    try:
        return socket.gethostbyname(host), port
    except OSError as error:
        raise UsageError(f"--parent {host}: {error.strerror}; name a host or address") from None


def mend(error: OSError) -> str:
    """What to do when an address cannot be listened at."""
    if isinstance(error, socket.gaierror):
        return "mend the name, or give an IPv4 address of this machine"
    return MENDS.get(error.errno or 0, "--listen 127.0.0.1:0 takes any free port")


def print_counters(counters: dict[str, int]) -> None:
    """Print what is not zero, with what it means."""
    from ..counters import COUNTERS, DROPS

    for name, meaning in (COUNTERS | DROPS).items():
        if counters[name] or name in ("rx_packets", "tx_packets"):
            kind = "drop: " if name in DROPS else ""
            print(f"{name:20} {counters[name]:>15,}  {kind}{meaning}")
