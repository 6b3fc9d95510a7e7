"""Build a topology of network namespaces: one for each host and each switch, links of veth.

A switch's namespace holds nothing but its ports, without addresses and without IPv6, so that the
kernel sends nothing of its own into them: a switch process started inside opens them all. Rates are
kept by tbf at both ends of a link. **Delay, loss and the like are not applied**: the switch process
applies them at its ports, by the options of `commands.impair_options`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from iswitch.faults.units import FRAME_HEADER
from iswitch.outside import extra
from iswitch.ports.kernel.ethtool import offloads_off

from .children import Nodes, clean
from .errors import NetworkError
from .namespaces import Claim
from .parts import Link

__all__ = ["Network", "clean"]

LO = 1  # index of the loopback interface in a new namespace
SUPER_DATAGRAM = 72_000  # bytes of 64 kB in 50 packets, as a qdisc counts them
MIN_RATE, MAX_RATE = 64_000, 8 * (2**32 - 1)  # bit/s; what 32 bits hold of bytes/s and of ticks


class Network(Nodes):
    """A topology as namespaces, from `start` to `close`; use it as a context.

    Namespaces are called PREFIX-PID-SERIAL-NODE. If this process dies without closing, its children
    started by `popen` are killed, and the next Network (or `clean`) removes the rest, with the
    processes that these children started.
    """

    def _build(self, claim: Claim) -> None:
        for link in self.topology.links:
            check_rate(link)
        IPRoute = pyroute2().IPRoute
        for node in self.topology.nodes:
            self._namespaces[node] = claim.create(node)
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
        """Describe one end of a link in pyroute2's terms."""
        ports = self.topology.ports(node)
        place = next(i for i, port in enumerate(ports) if port.link is link)
        return {
            "ifname": ports[place].ifname,
            "index": index(place),
            "net_ns_fd": self._namespaces[node],
            "address": ports[place].mac,
            "mtu": link.mtu,
            "txqlen": link.queue.packets(link.mtu),
        }

    def _configure(self, node: str, netlink: Any) -> None:
        """Configure a node's interfaces, inside its namespace: offloads, rates, addresses."""
        netlink.link("set", index=LO, state="up")
        for place, port in enumerate(self.topology.ports(node)):
            if not self.offload:
                offloads_off(port.ifname)
            if port.link.rate is not None:
                with kernel_feature("tbf", "CONFIG_NET_SCH_TBF, or leave the rate out"):
                    netlink.tc("add", "tbf", index=index(place), **token_bucket(port.link))
                if self.offload:
                    netlink.link("set", index=index(place), gso_max_segs=passes_whole(port.link))
            netlink.link("set", index=index(place), state="up")
        if any(host.name == node for host in self.topology.hosts):
            address = str(self.topology.address(node))
            netlink.addr(
                "add", index=index(0), address=address, prefixlen=self.topology.subnet.prefixlen
            )


def index(place: int) -> int:
    """Return the number of an interface in its namespace, after the loopback's."""
    return LO + 1 + place


def check_rate(link: Link) -> None:
    """Refuse a link's rate that the kernel cannot keep.

    Raises:
        NetworkError: the rate is too high.
    """
    if link.rate is not None and not MIN_RATE <= link.rate <= MAX_RATE:
        raise NetworkError(
            f"link {link.a}-{link.b}: rate {link.rate} bit/s is not in tbf's reach, 64kbit to "
            "34Gbit; leave it out for as fast as the machine is"
        )


def token_bucket(link: Link) -> dict[str, int]:
    """Choose the parameters of tbf: bytes a second, and bytes of burst and limit.

    The limit is the link's queue. The burst is what may pass at once after a pause. It lets a
    super-datagram pass whole if that is no more than 1 ms of the rate, holds at least two frames,
    and outlasts a timer that is 0.25 ms late. tbf cuts a super-datagram larger than the burst into
    packets, and drops one larger than the limit: so the burst is the smaller of the two.
    """
    assert link.rate is not None
    second = link.rate // 8
    frame = link.mtu + FRAME_HEADER
    room = max(link.queue.bytes(link.mtu), frame)
    burst = max(min(SUPER_DATAGRAM, second // 1000), second // 4000, 2 * frame)
    burst = min(burst, room) + second // 1_000_000 + 1  # pyroute2 cuts it to whole microseconds
    return {"rate": second, "burst": burst, "limit": max(room, burst)}


def passes_whole(link: Link) -> int:
    """Count the packets of the largest super-datagram that `token_bucket` does not cut.

    The interface's gso_max_segs is set to this, so TCP and iSwitch send no larger ones. Each packet
    that tbf cuts off costs every receiving process as much as a whole super-datagram.
    """
    return token_bucket(link)["burst"] // (link.mtu + FRAME_HEADER)


def without_ipv6() -> None:
    """Switch IPv6 off, before the interface can send router solicitations."""
    for which in ("all", "default"):
        path = Path(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6")
        if path.exists():  # else the kernel has no IPv6
            path.write_text("1")


def pyroute2() -> Any:
    """Import the library only when it is needed: that takes longer than everything else here."""
    try:
        import pyroute2
    except ImportError as error:
        raise NetworkError(
            f"networks of namespaces need pyroute2: {extra('netns,mininet')}"
        ) from error
    return pyroute2


@contextmanager
def kernel_feature(name: str, mend: str) -> Iterator[None]:
    """Name the missing kernel feature when the kernel refuses something in the `with` block."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        yield
    except NetlinkError as error:
        raise NetworkError(
            f"the kernel refuses {name} ({error}); use a kernel with {mend}"
        ) from error
