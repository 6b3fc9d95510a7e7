"""Run a switch: on a UDP socket (the loopback world), or on network interfaces (the raw world).

Prints `listening HOST:PORT` when ready, serves until SIGINT, SIGTERM or SIGHUP, then prints its
counters; with --json each as an object on a line of its own. SIGUSR1 has it print those so far on
stderr, and serve on. On a UDP socket it needs no privileges, and
serves workers on other machines as well. With --ports it is what its hosts are plugged into: it
forwards what is not for it, as any switch does.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import socket
import sys
import time
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

from iswitch.faults.units import count
from iswitch.lab.options import check_unread, host_port, quantity
from iswitch.outside import LIMITS, IncompleteError, UsageError, reason
from iswitch.system.interrupts import answered

if TYPE_CHECKING:
    from iswitch.core.format.keys import Keys
    from iswitch.core.format.packets import Address
    from iswitch.core.jobs.limits import Limits
    from iswitch.core.switch import Switch
    from iswitch.faults.impairment import Impairment, Impairments
    from iswitch.ports.engine import Engine

LISTEN = "127.0.0.1:26963"
MOST_DIGITS = 40  # of a seed
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
        metavar="HOST:PORT",
        help=f"address to serve on; port 0: any (default: {LISTEN})",
    )
    parser.add_argument(
        "--ports",
        type=lambda text: text.split(","),
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
        help="write all frames that come and go to a file; without --ports those that packets "
        "would be in",
    )
    parser.add_argument(
        "--parent",
        type=host_port,
        metavar="HOST:PORT",
        help="the switch above: jobs go on to it, as contributions of one member",
    )
    parser.add_argument(
        "--uplink",
        metavar="IF",
        help="with --ports and --parent: the port that leads to it (default: the last)",
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
        "--control-rate",
        type=quantity(1),
        default=2000.0,
        metavar="N",
        help="control packets a second taken of one source (default: %(default)g)",
    )
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
        type=quantity(0),
        default=0.0,
        metavar="SECONDS",
        help="poll this long before sleeping: lower latency for a busy core (default: 0)",
    )
    parser.add_argument(
        "--cpu",
        type=int,
        metavar="N",
        help="run on this core only (default: as the kernel chooses)",
    )
    parser.add_argument(
        "--no-replicate",
        action="store_true",
        help="with --ports: send broadcasts to each port, rather than have the kernel copy them",
    )
    parser.add_argument(
        "--no-offload",
        action="store_true",
        help="send packets one by one, without segmentation offload",
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
        type=int,
        metavar="N",
        help="of --impair's chances, if none of them names it (default: 0)",
    )
    parser.add_argument("--json", action="store_true", help="print two lines, each a JSON object")


def udp_port(text: str) -> int:
    """An argparse type: a number."""
    if not (text.isdecimal() and len(text) <= 5 and 0 < int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is no UDP port; write 1 to 65535")
    return int(text)


def mac(text: str) -> bytes:
    """An argparse type: a MAC of a single station."""
    try:
        value = bytes.fromhex(text.replace(":", ""))
    except ValueError:
        value = b""
    if len(value) != 6 or value[0] & 1:
        raise argparse.ArgumentTypeError(f"{text!r}: write it as 02:69:0a:1a:ff:fe")
    return value


def run(args: argparse.Namespace) -> int:
    """Serve."""
    from iswitch.core.format.packets import Address
    from iswitch.core.format.wire import PORT, ROUND_MASK
    from iswitch.core.forward import CopySwitch
    from iswitch.core.jobs.limits import Limits
    from iswitch.core.sums.paper import Counting
    from iswitch.core.switch import Switch
    from iswitch.ports.reserved import SystemBuffers
    from iswitch.system.keyfiles import KEY_FILE

    for option in ("address", "mac", "port", "uplink", "no_replicate"):
        if getattr(args, option) and not args.ports:
            option = option.replace("_", "-")
            raise UsageError(f"--{option} is for a switch with ports: name them with --ports IF,IF")
    if args.ports and args.listen:
        raise UsageError("--listen is for a switch without --ports; with them it has an --address")
    if args.uplink and not args.parent:
        raise UsageError(f"--uplink {args.uplink} leads to no --parent; name it, or leave both out")
    if args.world not in (None, *(("raw", "bmv2") if args.ports else ("loopback",))):
        raise UsageError(
            f"--world {args.world}: a switch with --ports is raw or bmv2, one without is loopback"
        )
    check_unread(args.capture, args.keys, os.environ.get(KEY_FILE))
    args.port = args.port or PORT
    limits = Limits(
        memory=int(args.memory * 2**20),
        lease=args.lease,
        control_rate=args.control_rate,
        buffers=SystemBuffers(),
    )
    parent = None
    if args.parent:
        parent = Address(*resolved(args.parent), uplink(args))
    incarnation = int(time.time()) & ROUND_MASK
    if args.world == "bmv2":
        return serve(args, *bmv2(args, limits, parent, incarnation))
    if args.reproducible and args.counting != "exact":
        raise UsageError(
            f"--counting {args.counting} does not know whose packets it counts, so it cannot sum "
            "in rank order; leave out --reproducible"
        )
    make = CopySwitch if args.counting == "none" else Switch
    switch = make(
        limits,
        args.reproducible,
        parent,
        incarnation,
        keys(args.keys),
        Counting.PAPER if args.counting == "paper" else Counting.EXACT,
    )
    impaired, seed = impairments(args)
    if args.cpu is not None:
        pin(args.cpu)
    engine, where = raw(args, switch) if args.ports else loopback(args, switch)
    if impaired:
        from iswitch.ports.impaired import ImpairedDatagrams, ImpairedPorts

        kind = ImpairedPorts if args.ports else ImpairedDatagrams
        engine.port = kind(engine.port, impaired, seed, switch.counters)
    if args.capture and not args.ports:
        engine.port = recorded(args, engine.port, where, switch)
    if args.counting == "paper":
        print("counting packets as the paper does: loss makes sums wrong", file=sys.stderr)
    return serve(args, engine, where, switch.counters)


def serve(
    args: argparse.Namespace, engine: Engine[Any, Any], where: str, counters: dict[str, int]
) -> int:
    """Serve until told to end; then print the counters."""
    from iswitch.ports.memory import keep_freed, settle

    keep_freed()
    settle()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:  # nohup
            signal.signal(signum, lambda *_: engine.stop())
    with answered(lambda: as_text(args, counters)):
        print(json.dumps({"listening": where}) if args.json else f"listening {where}", flush=True)
        engine.run()
    failed = ""
    counters["given_up"] += engine.given_up
    try:
        engine.port.close()
    except OSError as error:
        failed = reason(error)
    print(as_text(args, counters), end="", flush=True)
    missing = counters.get("capture_full")
    if missing or failed:
        frames = f", {count(missing, 'frame')} missing" if missing else ""
        why = failed or "the disk was too slow, or memory ran out"
        raise IncompleteError(f"{args.capture} is not complete{frames}: {why}")
    return 0


def pin(cpu: int) -> None:
    """Run on one core only."""
    cores = os.sched_getaffinity(0)
    if cpu not in cores:
        there = ", ".join(map(str, sorted(cores)))
        raise UsageError(f"--cpu {cpu}: the cores this process may use are {there}")
    os.sched_setaffinity(0, {cpu})


def keys(path: str | None) -> Keys:
    """From the file named, or of all jobs from the environment."""
    from iswitch.core.format.keys import Keys
    from iswitch.system.keyfiles import key_in, read_keys

    return read_keys(path) if path else Keys(default=key_in(os.environ))


def resolved(parent: tuple[str, int]) -> tuple[str, int]:
    """The parent's IPv4 address and port."""
    host, port = parent
    if not port:
        raise UsageError("--parent needs the port it listens at, such as 10.26.255.254:26963")
    try:
        return socket.gethostbyname(host), port
    except OSError as error:
        raise UsageError(f"--parent {host}: {reason(error)}; name a host or address") from None


def check_parent(args: argparse.Namespace, host: str, port: int) -> None:
    """Whether the parent is another switch than this one, which serves at an address.

    Raises:
        UsageError: it is this one.
    """
    if not args.parent:
        return
    above, at = resolved(args.parent)
    anywhere = "0.0.0.0" in (host, above)
    if at == port and (above == host or (anywhere and is_here(above))):
        given = "{}:{}".format(*args.parent)
        raise UsageError(f"--parent {given} is this switch; name the one above it")


def is_here(host: str) -> bool:
    """Whether an IPv4 address is one of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((host, 0))
        except OSError:
            return False
    return True


def uplink(args: argparse.Namespace) -> int:
    """The place among the ports of the one that leads to the parent."""
    if not args.ports:
        return 0
    if args.uplink is not None and args.uplink not in args.ports:
        raise UsageError(f"--uplink {args.uplink} is none of --ports {','.join(args.ports)}")
    return len(args.ports) - 1 if args.uplink is None else args.ports.index(args.uplink)


def impairments(args: argparse.Namespace) -> tuple[Impairments, int]:
    """By port and direction; and the seed of their chances."""
    from iswitch.faults.impairment import DIRECTIONS, Impairment
    from iswitch.faults.units import QuantityError

    if args.seed is not None and args.seed < 0:
        raise UsageError(f"--seed {args.seed}: 0 or more")
    if args.seed is not None and not args.impair:
        raise UsageError("--seed is of the chances of --impair; name one, or leave it out")
    seed: int | None = args.seed
    found: dict[tuple[int, str], Impairment] = {}
    for text in args.impair:
        *where, spec = text.split(":")
        port = 0
        directions: tuple[str, ...] = DIRECTIONS
        if args.ports:
            if not where or where[0] not in args.ports:
                raise UsageError(
                    f"--impair {text}: name one of --ports {','.join(args.ports)} first, such as "
                    f"--impair {args.ports[0]}:loss=1%"
                )
            port = args.ports.index(where.pop(0))
        if where and where[0] in DIRECTIONS:
            directions = (where.pop(0),)
        if where:
            raise UsageError(
                f"--impair {text}: {':'.join(where)!r} is no direction; write in, out, or neither "
                f"for both, such as --impair out:loss=1%"
            )
        spec, named = named_seed(spec)
        if named is not None and seed not in (None, named):
            raise UsageError(
                f"--impair {text}: the seed is {seed} already; all chances have one, so name it "
                "once, by seed=N in an --impair or by --seed N"
            )
        seed = seed if named is None else named
        try:
            impairment = Impairment.parse(spec)
        except QuantityError as error:
            raise UsageError(f"--impair {text}: {error}") from None
        for direction in directions:
            if (port, direction) in found:
                raise UsageError(
                    f"--impair {text}: that direction is impaired already; write all of it in one "
                    "--impair, with commas"
                )
            found[port, direction] = impairment
    return found, seed or 0


def named_seed(spec: str) -> tuple[str, int | None]:
    """A SPEC without its `seed=N`, and N."""
    parts = spec.split(",")
    seeds = [part for part in parts if part.partition("=")[0].strip() == "seed"]
    if not seeds:
        return spec, None
    text = seeds[0].partition("=")[2].strip()
    if len(seeds) > 1 or not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        raise UsageError(f"--impair {spec}: write one seed=N, N a whole number of 0 or more")
    rest = [part for part in parts if part not in seeds]
    if not rest:
        raise UsageError(f"--impair {spec} impairs nothing; write loss=1%,{seeds[0]}, or --seed")
    return ",".join(rest), int(text)


def loopback(args: argparse.Namespace, switch: Switch) -> tuple[Engine[Any, Any], str]:
    """The switch on a UDP socket, and its address."""
    from iswitch.ports.engine import Engine
    from iswitch.ports.udp import UdpPort

    listen = args.listen or host_port(LISTEN)
    try:
        port = UdpPort(
            listen,
            offload=not args.no_offload,
            counters=switch.counters,
            members=switch.sources,
        )
    except OSError as error:
        where = "{}:{}".format(*listen)
        raise UsageError(f"cannot listen at {where}: {error.strerror}; {mend(error)}") from None
    try:
        check_parent(args, *port.address[:2])
    except UsageError:
        port.close()
        raise
    return Engine(switch, port, spin=args.spin), str(port.address)


def recorded(args: argparse.Namespace, port: Any, where: str, switch: Switch) -> Any:
    """A port for datagrams that writes down what comes and goes."""
    from iswitch.core.format.packets import Address
    from iswitch.ports.capture import Capture
    from iswitch.ports.recorded import RecordedDatagrams

    try:
        capture = Capture(args.capture, [where], switch.counters)
    except OSError as error:
        port.close()
        raise UsageError(f"cannot write {args.capture}: {reason(error)}") from None
    return RecordedDatagrams(port, Address(*host_port(where)), capture)


def raw(args: argparse.Namespace, switch: Switch) -> tuple[Engine[Any, Any], str]:
    """The switch on network interfaces, and its address."""
    from iswitch.core.format.pcapng import OUTSIDE, OWN
    from iswitch.ethernet.chassis import Chassis
    from iswitch.ports.capture import Capture
    from iswitch.ports.engine import Engine
    from iswitch.ports.raw import RawPortError, RawPorts

    own_address(args)
    address = args.address.packed
    counters = switch.counters
    try:
        ports = RawPorts(
            args.ports,
            offload=not args.no_offload,
            counters=counters,
            replicate=not args.no_replicate,
        )
    except RawPortError as error:
        instead = ", or leave --ports out to serve on a UDP socket"
        refused = instead if error.errno == errno.EPERM else ""
        raise UsageError(f"--ports {','.join(args.ports)}: {error.strerror}{refused}") from None
    for port in ports.ports:
        if not port.is_up():
            print(f"{port.ifname} is down: ip link set {port.ifname} up", file=sys.stderr)
    if args.capture:
        try:
            writer = OUTSIDE if args.impair else OWN
            ports.recorder = Capture(args.capture, args.ports, counters, writer=writer)
        except OSError as error:
            ports.close()
            raise UsageError(f"cannot write {args.capture}: {reason(error)}") from None
    from iswitch.ethernet.made_up import MAC_PREFIX

    own = args.mac or MAC_PREFIX + address
    chassis = Chassis(switch, address, own, ports.jacks, args.port)
    return Engine(chassis, ports, spin=args.spin), f"{args.address}:{args.port}"


def bmv2(
    args: argparse.Namespace, limits: Limits, parent: Address | None, incarnation: int
) -> tuple[Engine[Any, Any], str, dict[str, int]]:
    """The P4 program on network interfaces, its address and its counters."""
    from iswitch.bmv2.process import Bmv2Failed
    from iswitch.bmv2.world import build
    from p4.tools import CompilationFailed, ToolMissing, cache_folder

    check_p4(args)
    address = own_address(args).packed
    from iswitch.ethernet.made_up import MAC_PREFIX

    mac = args.mac or MAC_PREFIX + address
    try:
        engine = build(
            args.ports, mac, address, args.port, limits, keys(args.keys), cache_folder(),
            parent, incarnation,
        )  # fmt: skip
    except (ToolMissing, CompilationFailed, Bmv2Failed) as error:
        raise UsageError(f"--world bmv2: {error}") from None
    return engine, f"{args.address}:{args.port}", engine.machine.counters  # type: ignore[attr-defined]


def check_p4(args: argparse.Namespace) -> None:
    """Whether the P4 program does what these options ask for.

    Raises:
        UsageError: it does not.
    """
    for option in ("capture", "impair", "reproducible"):
        if getattr(args, option):
            raise UsageError(
                f"--{option} is not for --world bmv2: docs/p4.md says what the P4 program lacks"
            )
    if args.counting != "exact":
        raise UsageError(f"--counting {args.counting}: the P4 program counts exactly")


def own_address(args: argparse.Namespace) -> IPv4Address:
    """The address that a switch with ports has to be told."""
    if args.address is None:
        raise UsageError("--ports needs the switch's own address: --address 10.26.255.254")
    for ifname in args.ports:
        if args.ports.count(ifname) > 1:
            raise UsageError(f"--ports names {ifname} twice; each port is an interface of its own")
    address: IPv4Address = args.address
    check_parent(args, str(address), args.port)
    return address


def mend(error: OSError) -> str:
    """What to do when an address cannot be listened at."""
    if error.errno in LIMITS:
        return LIMITS[error.errno]
    if isinstance(error, socket.gaierror):
        return "mend the name, or give an IPv4 address of this machine"
    return MENDS.get(error.errno or 0, "--listen 127.0.0.1:0 takes any free port")


def as_text(args: argparse.Namespace, counters: dict[str, int]) -> str:
    """The counters that are not zero, with what they mean; with --json all, as an object."""
    from iswitch.core.format.counters import COUNTERS, DROPS

    if args.json:
        return json.dumps(counters.copy()) + "\n"  # another thread may count meanwhile
    lines = []
    for name, meaning in (COUNTERS | DROPS).items():
        value = counters.get(name, 0)
        if value or name in ("rx_packets", "tx_packets"):
            kind = "drop: " if name in DROPS else ""
            lines.append(f"{name:20} {value:>15,}  {kind}{meaning}\n")
    return "".join(lines)
