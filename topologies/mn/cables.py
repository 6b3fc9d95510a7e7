"""Makes Mininet's links as a topology describes them; checks that the kernel obeys."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from mininet.link import TCIntf, TCLink

from iswitch.faults.units import FRAME_HEADER
from iswitch.ports.kernel.ethtool import offloads_off
from topologies.errors import NetworkError
from topologies.netns import MAX_RATE, check_rate, token_bucket
from topologies.parts import Link

from .nodes import in_namespace_of

MEGA = 1e6
RATES = ("class htb 5:1 ", "class hfsc 5:1 ", "qdisc tbf 5: ")  # what keeps one, as tc shows it


class Need(NamedTuple):
    """Options of a TCLink that need a queueing discipline of the kernel.

    Attributes:
        options: names of the options.
        mend: what to do if the kernel lacks the discipline.
    """

    options: tuple[str, ...]
    mend: str


NEEDS = {
    "netem": Need(
        ("delay", "jitter", "loss", "max_queue_size"),
        "give delay, loss and queue to the topology (--topo star,4,delay=5ms), whose switch ports "
        "keep them",
    ),
    "hfsc": Need(("use_hfsc",), "leave it out: htb keeps bw, too"),
    "red": Need(("enable_ecn", "enable_red"), "leave it out"),
}


class End(TCIntf):
    """An interface with the MTU, the queue and the offloads of a topology's link.

    The rate is kept by htb, as by any TCLink, with room for a super-datagram to pass whole. The
    queue is that of the interface, counted in frames, where TCLink would need netem.
    """

    bwParamMax = MAX_RATE / MEGA

    def config(
        self, described: Link | None = None, offload: bool = True, **params: Any
    ) -> dict[str, Any] | None:
        """Set the interface up; called by Mininet."""
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
        """Return the commands of tc for the rate, and the parent of further queues."""
        commands, parent = super().bwCmds(**params)
        if self._described is not None and self._described.rate is not None:
            burst = f"burst {token_bucket(self._described)['burst']}"
            quantum = self._described.mtu + FRAME_HEADER  # else htb warns of what it makes up
            room = f"{burst} c{burst} quantum {quantum}"
            commands = [command.replace("burst 15k", room) for command in commands]
        return commands, parent


class Cable(TCLink):
    """A link whose ends are of the class `End`."""

    def __init__(self, *args: Any, **params: Any) -> None:
        super().__init__(*args, **{"cls1": End, "cls2": End} | params)


def cable_options(link: Link, offload: bool) -> dict[str, Any]:
    """Return the options of a `Cable` for a topology's link; empty if a plain link suffices.

    Raises:
        NetworkError: the link's rate is too high for the kernel.
    """
    if offload and not link.settings():
        return {}
    found: dict[str, Any] = {"cls": Cable, "described": link, "offload": offload}
    if link.rate is not None:
        check_rate(link)
        found["bw"] = link.rate / MEGA
    return found


def check_in_force(interface: Any) -> None:
    """Refuse an interface whose options are not in force in the kernel.

    If tc refuses an option, Mininet only logs an error; if a rate is too large, Mininet ignores it.

    Raises:
        NetworkError: an option is not in force; the message names it.
    """
    where = f"link {interface.link.intf1}-{interface.link.intf2}"
    options = {name: value for name, value in interface.params.items() if value}
    if "described" in options:
        check_device(interface, options["described"], where)
    wanted = {
        kind: [name for name in need.options if name in options] for kind, need in NEEDS.items()
    }
    if not any(wanted.values()) and "bw" not in options:
        return
    shows = (f"tc {what} show dev {interface.name}" for what in ("qdisc", "class"))
    queues = interface.cmd("; ".join(shows))
    for kind, names in wanted.items():
        if names and f"qdisc {kind} " not in queues:
            said = ", ".join(f"{name}={options[name]}" for name in names)
            raise NetworkError(
                f"{where}: {said} is not in force, and Mininet goes on without: this kernel lacks "
                f"{kind} (CONFIG_NET_SCH_{kind.upper()}), or the link is no TCLink (mn --link tc); "
                f"{NEEDS[kind].mend}"
            )
    if "bw" in options and not any(rate in queues for rate in RATES):
        limit: float = getattr(interface, "bwParamMax", TCIntf.bwParamMax)
        mend = f"use a TCLink (mn --link tc) of at most {limit} Mbit/s"
        if isinstance(interface, TCIntf) and options["bw"] <= limit:
            mend = "tc refuses it; use a kernel with CONFIG_NET_SCH_HTB, or leave the rate out"
        raise NetworkError(f"{where}: bw={options['bw']} is not in force: {mend}")


def check_device(interface: Any, link: Link, where: str) -> None:
    """Refuse an interface without the MTU and the queue of its link.

    Args:
        interface: the interface, of Mininet.
        link: the link, of the topology.
        where: name of the link in errors.

    Raises:
        NetworkError: the MTU or the queue differs.
    """
    shown = interface.cmd(f"ip link show dev {interface.name}").split()
    found = dict(pairwise(shown))
    room = link.queue.packets(link.mtu)
    for setting, shown_as, value in (("mtu", "mtu", link.mtu), ("queue", "qlen", room)):
        if found.get(shown_as) != str(value):
            raise NetworkError(
                f"{where}: {shown_as} of {interface} is {found.get(shown_as, 'unknown')} rather "
                f"than {value}, for `ip link set` has failed; use a kernel whose veth takes it, or "
                f"leave the {setting} out"
            )
