"""Build a topology of network namespaces: one for each host and each switch, links of veth.

A switch's namespace holds nothing but its ports, without addresses and without IPv6, so that the
kernel sends nothing of its own into them: a switch process started inside opens them all. Rates
are kept by tbf at both ends of a link. **Delay and loss are not applied**: they are for the switch
process's impaired ports, which find them in `Network.ports(switch)`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Self

from .description import Link, Port, Topology
from .errors import NetworkError, PrivilegeError
from .ethtool import offloads_off
from .namespaces import LIBC, Claim, inside
from .units import FRAME_HEADER

PATIENCE = 3.0  # seconds to end in, before a process is killed
PR_SET_PDEATHSIG = 1  # linux/prctl.h
LO = 1  # index of the loopback interface in a new namespace
SUPER_DATAGRAM = 72_000  # bytes of 64 kB in 50 packets, as a qdisc counts them
MIN_RATE, MAX_RATE = 64_000, 8 * (2**32 - 1)  # bit/s; what 32 bits hold of bytes/s and of ticks

File = int | IO[Any] | None


class Network:
    """A topology as namespaces, from `start` to `close`; use it as a context.

    Namespaces are called PREFIX-PID-SERIAL-NODE. If this process dies without closing, its
    children started by `popen` are killed, and the next Network (or `clean`) removes the rest.
    """

    def __init__(self, topology: Topology, *, prefix: str = "isw", offload: bool = True) -> None:
        """Prepare; nothing is built yet.

        Args:
            topology: what to build. Links and switches that stand by are left out.
            prefix: what all names begin with: 1 to 8 small letters.
            offload: let super-frames and unfinished checksums pass whole, as they do between
                namespaces; False: frames are as they would be on a wire.
        """
        self.topology = topology
        self.offload = offload
        self._prefix = prefix
        self._claim: Claim | None = None
        self._namespaces: dict[str, int] = {}
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Build it, after removing what dead processes left.

        Raises:
            PrivilegeError: not root, or root without the capabilities.
            NetworkError: pyroute2 or a kernel feature lacks, or a rate is beyond tbf's.
        """
        if self._claim is not None:
            raise NetworkError("the network is built already; close it, or make another one")
        with ExitStack() as undo, privileges():
            undo.callback(self.close)
            clean()
            self._claim = Claim.new(self._prefix)
            self._build()
            undo.pop_all()

    def close(self) -> None:
        """End the children, then remove all that was built. Closing twice is no harm."""
        end(self._children)
        self._children.clear()
        for namespace in self._namespaces.values():
            os.close(namespace)
        self._namespaces.clear()
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def namespace(self, node: str) -> str:
        """The name for `ip netns exec`.

        Raises:
            NetworkError: the network is not built.
        """
        if self._claim is None:
            raise NetworkError("the network is not built; use it as a context, or call start()")
        return f"{self._claim.name}-{node}"

    def inside(self, node: str) -> AbstractContextManager[None]:
        """A context in which the calling thread stands in the node's namespace.

        What it starts and what it opens meanwhile belongs there, and stays there.

        Raises:
            NetworkError: no such node in this network, or it is not built, or stands by.
        """
        if node not in self._namespaces:
            built = ", ".join(self._namespaces) or "nothing: call start()"
            raise NetworkError(f"no node {node!r} is built; built is {built}")
        return inside(self._namespaces[node])

    def popen(
        self,
        node: str,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: File = subprocess.DEVNULL,
        stdout: File = None,
        stderr: File = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command on a node; `env` is added to this process's own.

        It leads its own process group, which `close` ends, and is killed when the thread that
        started it dies: start it from one that lasts as long.
        """
        parent = os.getpid()

        def die_with_parent() -> None:
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before it could matter
                os._exit(1)

        with self.inside(node):
            child = subprocess.Popen(
                argv,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._children.append(child)
        return child

    def ports(self, switch: str) -> tuple[Port, ...]:
        """The interfaces of a switch, each with its link (rate, delay, loss, queue) and peer."""
        return self.topology.ports(switch)

    def _build(self) -> None:
        for link in self.topology.links:
            if link.rate is not None and not MIN_RATE <= link.rate <= MAX_RATE:
                raise NetworkError(
                    f"link {link.a}-{link.b}: rate {link.rate} bit/s is not in tbf's reach, 64kbit "
                    "to 34Gbit; leave it out for as fast as the machine is"
                )
        IPRoute = pyroute2().IPRoute
        assert self._claim is not None
        for node in self.topology.nodes:
            self._namespaces[node] = self._claim.create(node)
            with self.inside(node):
                without_ipv6()
        with IPRoute() as netlink, kernel_feature("veth", "CONFIG_VETH"):
            for link in filter(self.topology.active, self.topology.links):
                near, far = self._end(link, link.a), self._end(link, link.b)
                netlink.link("add", kind="veth", **near, peer=far)
        for node in self.topology.nodes:
            with self.inside(node), IPRoute() as netlink:
                self._configure(node, netlink)

    def _end(self, link: Link, node: str) -> dict[str, Any]:
        """What one end of a link is to be, in the terms of pyroute2."""
        ports = self.topology.ports(node)
        place = next(i for i, port in enumerate(ports) if port.link is link)
        is_switch = any(switch.name == node for switch in self.topology.tree)
        topology = self.topology
        return {
            "ifname": ports[place].ifname,
            "index": index(place),
            "net_ns_fd": self._namespaces[node],
            "address": topology.port_mac(node, place + 1) if is_switch else topology.mac(node),
            "mtu": link.mtu,
            "txqlen": link.queue.packets(link.mtu),
        }

    def _configure(self, node: str, netlink: Any) -> None:
        """Inside the namespace: what can only be set once the interfaces are there."""
        netlink.link("set", index=LO, state="up")
        for place, port in enumerate(self.topology.ports(node)):
            if not self.offload:
                offloads_off(port.ifname)
            if port.link.rate is not None:
                with kernel_feature("tbf", "CONFIG_NET_SCH_TBF, or leave the rate out"):
                    netlink.tc("add", "tbf", index=index(place), **token_bucket(port.link))
            netlink.link("set", index=index(place), state="up")
        if any(host.name == node for host in self.topology.hosts):
            address = str(self.topology.address(node))
            netlink.addr(
                "add", index=index(0), address=address, prefixlen=self.topology.subnet.prefixlen
            )


def clean() -> list[str]:
    """Remove the networks of processes that have died; the names of their namespaces.

    Whatever a living process holds, and whatever this package did not make, stays.

    Raises:
        PrivilegeError: not root, or root without the capabilities.
    """
    with privileges():
        return [name for claim in Claim.left_over() for name in claim.release()]


def index(place: int) -> int:
    """The number of an interface in its namespace, after the loopback's."""
    return LO + 1 + place


def token_bucket(link: Link) -> dict[str, int]:
    """The parameters of tbf: rate and burst and limit, in bytes.

    The limit is the link's queue. The burst is what may pass at once after a pause. It lets a
    super-datagram pass whole if that is no more than 1 ms of the rate, holds at least two frames,
    and outlasts a timer that is 0.25 ms late. What is larger than the burst, tbf cuts into packets;
    what is larger than the limit, it drops: so the burst is the smaller one.
    """
    assert link.rate is not None
    second = link.rate // 8
    frame = link.mtu + FRAME_HEADER
    room = max(link.queue.bytes(link.mtu), frame)
    burst = max(min(SUPER_DATAGRAM, second // 1000), second // 4000, 2 * frame)
    burst = min(burst, room) + second // 1_000_000 + 1  # pyroute2 cuts it to whole microseconds
    return {"rate": second, "burst": burst, "limit": max(room, burst)}


def without_ipv6() -> None:
    """No router solicitations and no neighbour discovery, from the start."""
    for which in ("all", "default"):
        path = Path(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6")
        if path.exists():  # else the kernel has no IPv6
            path.write_text("1")


def end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """End process groups: politely, then for certain."""
    running = [child for child in children if child.poll() is None]
    for child in running:
        os.killpg(child.pid, signal.SIGTERM)
    limit = time.monotonic() + PATIENCE
    for child in running:
        try:
            child.wait(max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def pyroute2() -> Any:
    """The library, imported late: it takes longer than everything else here."""
    try:
        import pyroute2
    except ImportError as error:
        raise NetworkError(
            "networks of namespaces need pyroute2; pip install 'iswitch[netns]'"
        ) from error
    return pyroute2


@contextmanager
def privileges() -> Iterator[None]:
    """Say what is needed where the kernel only says no."""
    try:
        yield
    except PrivilegeError:
        raise
    except PermissionError as error:
        raise PrivilegeError(
            f"building networks needs CAP_SYS_ADMIN and CAP_NET_ADMIN ({error}); run as root "
            "(sudo), in a container started with --privileged, or use the loopback world"
        ) from error


@contextmanager
def kernel_feature(name: str, mend: str) -> Iterator[None]:
    """Say what is needed where the kernel knows no such thing."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        yield
    except NetlinkError as error:
        raise NetworkError(
            f"the kernel refuses {name} ({error}); use a kernel with {mend}"
        ) from error
