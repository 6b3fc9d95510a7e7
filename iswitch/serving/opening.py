"""A switch with its ports open: at a UDP socket, at network interfaces, or as a P4 program."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from socket import inet_aton
from typing import Any, NamedTuple

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.pcapng import OUTSIDE, OWN
from iswitch.core.format.wire import IP_UDP_HEADERS, MTU_PAYLOAD, PART, ROUND_MASK
from iswitch.core.forward import CopySwitch
from iswitch.core.jobs.hierarchy import Hierarchy
from iswitch.core.jobs.policies import POLICIES
from iswitch.core.jobs.record import Record
from iswitch.core.sums.paper import Counting
from iswitch.core.switch import Switch
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.made_up import MAC_PREFIX
from iswitch.fast import loading
from iswitch.fast.capturing import cutter
from iswitch.fast.engine import FastEngine
from iswitch.outside import LIMITS, UsageError, reason
from iswitch.ports.capture import Capture
from iswitch.ports.engine import Engine
from iswitch.ports.impaired import ImpairedDatagrams, ImpairedPorts
from iswitch.ports.interface import RawPortError
from iswitch.ports.lines import LinedPort
from iswitch.ports.port import Port
from iswitch.ports.raw import RawPorts
from iswitch.ports.recorded import RecordedDatagrams
from iswitch.ports.rings import meeting
from iswitch.ports.rings.hub import Rings
from iswitch.ports.rings.memory import supported
from iswitch.ports.rings.pacing import Lanes
from iswitch.ports.rings.serving import ImpairedRingPorts, RingChassis, RingPort, RingPorts
from iswitch.ports.udp import UdpPort
from iswitch.system.logs import log

from .impairments import impairments, shm_links
from .parent import check_parent, parent_of, uplink
from .settings import LISTEN, Settings

PARTS_MTU = IP_UDP_HEADERS + MTU_PAYLOAD + PART.itemsize  # bytes
MENDS = {
    errno.EADDRINUSE: "is another switch running there? --listen 127.0.0.1:0 takes any free port",
    errno.EADDRNOTAVAIL: "no address of this machine (`ip address` lists them); "
    "--listen 0.0.0.0:26963 serves on all it has",
    errno.EACCES: "ports below 1024 are for root; take a higher one, such as 26963",
}


class Opened(NamedTuple):
    """A switch that can run: engine, address as text, counters, jobs; what speaks to a parent."""

    engine: Engine[Any, Any]
    where: str
    counters: Counters
    record: Record
    hierarchy: Hierarchy | None = None


def opened(settings: Settings) -> Opened:
    """Open the ports of a switch.

    Raises:
        OutsideError: this machine or the settings do not allow it.
    """
    settings.check()
    if settings.world == "bmv2":
        return p4(settings)
    counting = Counting.PAPER if settings.counting == "paper" else Counting.EXACT
    switch = (CopySwitch if settings.counting == "none" else Switch)(
        settings.limits,
        settings.reproducible,
        parent_of(settings),
        incarnation(),
        settings.keyring(),
        counting,
    )
    impaired, seed = impairments(settings)
    if settings.cpu is not None:
        pin(settings.cpu)
    engine, at = (raw if settings.ports else loopback)(settings, switch)
    if impaired:
        kind: Any = ImpairedPorts if settings.ports else ImpairedDatagrams
        kind = ImpairedRingPorts if settings.shm_at else kind
        engine.port = kind(engine.port, impaired, seed, switch.counters)
    if settings.capture and not settings.ports:
        capture = capture_of(settings, [str(at)], engine.port, switch.counters)
        engine.port = RecordedDatagrams(engine.port, at, capture)
    if isinstance(engine, FastEngine):
        engine.load()
    if counting is Counting.PAPER:
        log.warning(
            "counting packets as the paper does: loss makes sums wrong; leave out --counting paper "
            "for exact sums"
        )
    if POLICIES[settings.policy].passes_on and settings.parent is None:
        log.warning(
            "--policy %s has no switch above to pass anything on to, and is static; name one with "
            "--parent HOST:PORT (a network of `iswitch run` has one with --fallback %s:%d)",
            settings.policy,
            settings.policy,
            settings.slots,
        )
    return Opened(engine, str(at), switch.counters, switch.record, switch.control.hierarchy)


def engine_of(settings: Settings) -> type[Engine[Any, Any]]:
    """Choose the engine: one with compiled kernels, where these can be used."""
    return FastEngine if settings.fast and loading.available() else Engine


def incarnation() -> int:
    """Return the current second as this process's number: so later processes have larger ones."""
    return int(time.time()) & ROUND_MASK


def pin(cpu: int) -> None:
    """Run on one core only.

    Raises:
        UsageError: this process may not use that core.
    """
    cores = os.sched_getaffinity(0)
    if cpu not in cores:
        there = ", ".join(map(str, sorted(cores)))
        raise UsageError(f"--cpu {cpu}: the cores this process may use are {there}")
    os.sched_setaffinity(0, {cpu})


def loopback(settings: Settings, switch: Switch) -> tuple[Engine[Any, Any], Address]:
    """Open a UDP socket for the switch.

    Raises:
        UsageError: the system refuses the address, or the parent has it.
    """
    listen = settings.listen or LISTEN
    try:
        check_parent(settings, socket.gethostbyname(listen[0]), listen[1])
        port = UdpPort(
            listen, offload=settings.offload, counters=switch.counters, members=switch.sources
        )
    except OSError as error:
        where = "{}:{}".format(*listen)
        raise UsageError(f"cannot listen at {where}: {error.strerror}; {mend(error)}") from None
    switch.record.room, switch.record.listening = port.buffer, port.address.port
    lined = LinedPort(port, switch.sources, switch.counters) if settings.parent else port
    ported = ringed(settings, lined, port.address)
    return engine_of(settings)(switch, ported, spin=settings.spin), port.address


def ringed(settings: Settings, port: Port[Burst, Outgoing], at: Address) -> Port[Burst, Outgoing]:
    """Offer rings to the workers of this machine, where that is wanted and possible."""
    if not (settings.shm and meeting.is_wanted() and supported()):
        return port
    try:
        return RingPort(port, Rings(meeting.paths(at.host, at.port)[0], at, port.fileno()))
    except OSError as error:
        print(f"no shared memory for workers here: {reason(error)}", file=sys.stderr)
        return port


def mend(error: OSError) -> str:
    """Say what to do when the system refuses an address to listen at."""
    if error.errno in LIMITS:
        return LIMITS[error.errno]
    if isinstance(error, socket.gaierror):
        return "mend the name, or give an IPv4 address of this machine"
    return MENDS.get(error.errno or 0, "--listen 127.0.0.1:0 takes any free port")


def raw(settings: Settings, switch: Switch) -> tuple[Engine[Any, Any], Address]:
    """Open the network interfaces that are the switch's ports.

    Raises:
        UsageError: an interface cannot be a port, or the capture cannot be written.
    """
    at, own = addresses(settings)
    counters = switch.counters
    try:
        ports = RawPorts(
            settings.ports,
            offload=settings.offload,
            counters=counters,
            replicate=settings.replicate,
        )
    except RawPortError as error:
        instead = ", or leave --ports out to serve on a UDP socket"
        hint = instead if error.errno == errno.EPERM else ""
        raise UsageError(f"--ports {','.join(settings.ports)}: {error.strerror}{hint}") from None
    above = ports.ports[uplink(settings)] if switch.record.pool is not None else None
    if above is not None and above.mtu < PARTS_MTU:
        raise UsageError(
            f"--policy {settings.policy}: contributions go up in parts of up to {PARTS_MTU} bytes, "
            f"and {above.ifname} takes {above.mtu}; ip link set {above.ifname} mtu 1600, at both "
            "ends (in a topology: mtu=1600)"
        )
    for port in ports.ports:
        if not port.is_up():
            log.warning("%s is down: ip link set %s up", port.ifname, port.ifname)
    if settings.capture:
        ports.recorder = capture_of(settings, settings.ports, ports, counters)
    if settings.shm_at:
        return plugged(settings, switch, ports), at
    chassis = Chassis(switch, inet_aton(at.host), own, ports.jacks, at.port)
    return engine_of(settings)(chassis, ports, spin=settings.spin), at


def plugged(settings: Settings, switch: Switch, ports: RawPorts) -> Engine[Any, Any]:
    """Offer rings to the hosts at a switch's ports, besides their cables.

    Raises:
        UsageError: a host is at no port, or there can be no such UNIX socket here.
    """
    assert settings.shm_at is not None
    at, own = addresses(settings)
    hosts: dict[str, int] = {}
    for text in settings.shm_hosts:
        host, _, ifname = text.partition("=")
        if ifname not in settings.ports:
            raise UsageError(f"--shm-hosts {text}: write HOST=IF, with IF one of --ports")
        hosts[host] = list(settings.ports).index(ifname)
    if not supported():
        raise UsageError("--shm-at: rings in shared memory need Linux 5.1 and x86-64")

    def place(host: str, port: int) -> Address | None:
        return Address(host, port, hosts[host]) if host in hosts else None

    counters = switch.counters
    links = {number: Lanes(link, counters) for number, link in shm_links(settings).items()}
    try:
        rings = Rings(Path(settings.shm_at), at, ports.fileno(), place, links, counters)
    except OSError as error:
        raise UsageError(f"--shm-at {settings.shm_at}: {reason(error)}") from None
    chassis = RingChassis(switch, inet_aton(at.host), own, ports.jacks, at.port)
    chassis.issuer.rings = rings
    ringed = RingPorts(ports, rings, chassis.issuer, ports.recorder)  # type: ignore[arg-type]
    return engine_of(settings)(chassis, ringed, spin=settings.spin)


def p4(settings: Settings) -> Opened:
    """Start the P4 program at the network interfaces.

    Raises:
        UsageError: its tools are missing, or it does not start.
    """
    from iswitch.bmv2.pipeline import Own
    from iswitch.bmv2.process import Bmv2Failed
    from iswitch.bmv2.world import build
    from p4.tools import CompilationFailed, ToolMissing, cache_folder

    parent = parent_of(settings)
    at, own = addresses(settings)
    try:
        engine = build(
            settings.ports, Own(own, inet_aton(at.host), at.port), settings.limits,
            settings.keyring(), cache_folder(), parent, incarnation(),
        )  # fmt: skip
    except (ToolMissing, CompilationFailed, Bmv2Failed) as error:
        raise UsageError(f"--world bmv2: {error}") from None
    switch: Switch = engine.machine.switch  # type: ignore[attr-defined]
    return Opened(engine, str(at), switch.counters, switch.record, switch.control.hierarchy)


def addresses(settings: Settings) -> tuple[Address, bytes]:
    """Find the address and the MAC of a switch with ports.

    Raises:
        UsageError: the address is missing or the parent's, or an interface is named twice.
    """
    if settings.address is None:
        raise UsageError("--ports needs the switch's own address: --address 10.26.255.254")
    for ifname in settings.ports:
        if settings.ports.count(ifname) > 1:
            raise UsageError(f"--ports names {ifname} twice; each port is an interface of its own")
    at = Address(str(settings.address), settings.udp_port)
    check_parent(settings, *at[:2])
    return at, settings.mac or MAC_PREFIX + settings.address.packed


def capture_of(
    settings: Settings, ports: Sequence[str], opened: Port[Any, Any], counters: Counters
) -> Capture:
    """Begin the capture of a switch.

    Args:
        settings: name the file.
        ports: the names of the ports in the capture.
        opened: the ports, which are closed if the capture cannot be written.
        counters: counts the frames that could not be kept.

    Raises:
        UsageError: the file cannot be written.
    """
    assert settings.capture is not None
    # A replay cannot rely on the order of frames that impaired ports have handled first.
    writer = OUTSIDE if settings.ports and settings.impair else OWN
    try:
        return Capture(settings.capture, ports, counters, writer=writer, cut=cutter())
    except OSError as error:
        opened.close()
        raise UsageError(f"cannot write {settings.capture}: {reason(error)}") from None
