"""Links of Mininet: what a topology says of them, and what the kernel has made of their options."""

from __future__ import annotations

from typing import Any

from mininet.link import TCIntf, TCLink

from ..description import Link
from ..errors import NetworkError
from ..ethtool import offloads_off
from ..netns import MAX_RATE, MIN_RATE, token_bucket
from ..units import FRAME_HEADER
from .nodes import in_namespace_of

MEGA = 1e6
NETEM = ("delay", "jitter", "loss", "max_queue_size")  # options of a TCLink that need netem
RATE_QDISCS = ("htb", "hfsc", "tbf")


class End(TCIntf):
    """An interface with the MTU, the queue and the offloads of a topology's link.

    The rate is kept by htb, as by any TCLink, with room for a super-datagram to pass whole. The
    queue is that of the interface, counted in frames, where TCLink would want netem.
    """

    bwParamMax = MAX_RATE / MEGA

    def config(
        self, described: Link | None = None, offload: bool = True, **params: Any
    ) -> dict[str, Any] | None:
        """Set it up; called by Mininet."""
        self._described = described
        if described is not None:
            mtu, room = described.mtu, described.queue.packets(described.mtu)
            self.cmd(f"ip link set dev {self.name} mtu {mtu} txqueuelen {room}")
        found: dict[str, Any] | None = super().config(**params)
        if not offload:
            with in_namespace_of(self.node):
                offloads_off(self.name)
        return found

    def bwCmds(self, **params: Any) -> tuple[list[str], str]:
        """The commands of tc for the rate."""
        commands, parent = super().bwCmds(**params)
        if self._described is not None and self._described.rate is not None:
            burst = f"burst {token_bucket(self._described)['burst']}"
            quantum = self._described.mtu + FRAME_HEADER  # else htb warns of what it makes up
            room = f"{burst} c{burst} quantum {quantum}"
            commands = [command.replace("burst 15k", room) for command in commands]
        return commands, parent


class Cable(TCLink):
    """A link with such ends."""

    def __init__(self, *args: Any, **params: Any) -> None:
        super().__init__(*args, **{"cls1": End, "cls2": End} | params)


def cable_options(link: Link, offload: bool) -> dict[str, Any]:
    """The options of a `Cable` for a topology's link; none if any link will do.

    Raises:
        NetworkError: a rate that cannot be kept.
    """
    if offload and not link.settings():
        return {}
    found: dict[str, Any] = {"cls": Cable, "described": link, "offload": offload}
    if link.rate is not None:
        if not MIN_RATE <= link.rate <= MAX_RATE:
            raise NetworkError(
                f"link {link.a}-{link.b}: rate {link.rate} bit/s is not in 64kbit to 34Gbit; leave "
                "it out for as fast as the machine is"
            )
        found["bw"] = link.rate / MEGA
    return found


def check_in_force(interface: Any) -> None:
    """Whether the kernel does what the options of an interface say.

    Mininet logs an error where tc refuses, ignores what it finds too large, and leaves the link as
    it is.

    Raises:
        NetworkError: it does not.
    """
    options = {name: value for name, value in interface.params.items() if value}
    for_netem = [f"{name}={options[name]}" for name in NETEM if name in options]
    if not for_netem and "bw" not in options:
        return
    queues = interface.cmd(f"tc qdisc show dev {interface.name}")
    where = f"link {interface.link.intf1}-{interface.link.intf2}"
    if for_netem and "netem" not in queues:
        raise NetworkError(
            f"{where}: {', '.join(for_netem)} is not in force: this kernel lacks netem "
            "(CONFIG_NET_SCH_NETEM), or the link is no TCLink, and Mininet has left it unimpaired; "
            "leave that out"
        )
    if "bw" in options and not any(name in queues for name in RATE_QDISCS):
        raise NetworkError(
            f"{where}: bw={options['bw']} is not in force: use a TCLink (mn --link tc), without "
            f"use_hfsc, and at most {interface_limit(interface)} Mbit/s"
        )


def interface_limit(interface: Any) -> float:
    """The largest bw of an interface."""
    limit: float = getattr(interface, "bwParamMax", TCIntf.bwParamMax)
    return limit
