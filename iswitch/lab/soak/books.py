"""Checks what a switch has counted and keeps against what the network has seen."""

from __future__ import annotations

from iswitch.core.format.counters import COUNTED, DATA_DROPS, EGRESS_DROPS, FRAME_DROPS
from iswitch.core.format.packets import Cutter
from iswitch.core.jobs.answers import PER_MEMBER, REMEMBERED
from iswitch.core.jobs.job import Job as SwitchJob
from iswitch.core.jobs.limits import STRANGERS
from iswitch.core.sums.accelerator import NumPyAccelerator
from iswitch.core.sums.numpy_plane import APART
from iswitch.core.sums.passing import PassingAccelerator
from iswitch.core.sums.slotted import SlottedAccelerator
from iswitch.core.switch import Switch
from iswitch.sim.network import VirtualNetwork
from iswitch.sim.node import Node
from iswitch.sim.plugged import SPARE, Plugged

from .strangers import Arrived, Stranger
from .violation import Violation

Sums = NumPyAccelerator | SlottedAccelerator | APART | PassingAccelerator


class Books:
    """Checks counters and memory of a switch process from its start.

    Args:
        node: node of the switch.
        switch: its process.
        stranger: sends to the switch without being a member; None: there is no stranger.
    """

    def __init__(self, node: Node, switch: Switch, stranger: Stranger | None) -> None:
        self.node = node
        self.switch = switch
        self._taken, self._given = node.taken, node.given
        self._arrived = stranger.arrived[node.address] if stranger else Arrived()
        self._before = self._arrived.copy()

    def look(self) -> None:
        """Check that all arrived packets are accounted for, and memory is within its reserve."""
        name, n = self.node.name, self.switch.counters
        door = n["ordinary"] + n["short"]
        taken = sum(n[name] for name in (*COUNTED, *DATA_DROPS))
        equations = {
            **self._at_the_door(),
            "rx_packets = control + data + drops": (
                n["rx_packets"],
                n["control"] + n["data"] + door,
            ),
            f"data = {' + '.join(COUNTED)} + drops": (n["data"], taken),
        }
        for equation, (left, right) in equations.items():
            if left != right:
                raise Violation("not accounted for", f"{name}: {equation}: {left} and {right}")
        self._look_at_memory()
        self._look_for_strangers()

    def _look_for_strangers(self) -> None:
        """Check that no stranger is a member, and that all their packets were dropped as such."""
        n, name = self.switch.counters, self.node.name
        machine = self.node.machine
        spare = machine.spare if isinstance(machine, Plugged) else SPARE
        inside = [str(peer) for peer in self.switch.sources if peer.ingress == spare]
        if inside:
            raise Violation("not entitled", f"a stranger is a member at {name}: {inside}")
        came = self._arrived - self._before
        reasons = {
            "data": ("stranger", "spoofed", "no_memory"),
            "spoofed": ("spoofed",),
            "without key": ("bad_mac", "throttled", "short", "given_up"),
        }
        for kind, drops in reasons.items():
            counted = sum(n[reason] for reason in drops)
            if came[kind] > counted:
                raise Violation(
                    "not accounted for",
                    f"{name}: of {came[kind]} packets of strangers ({kind}) {counted} were dropped",
                )

    def _at_the_door(self) -> dict[str, tuple[int, int]]:
        """Pair the network's counts of packets or frames with the switch's."""
        n = self.switch.counters
        came, went = self.node.taken - self._taken, self.node.given - self._given
        if not isinstance(self.node.machine, Plugged):
            return {
                "packets taken from the network = rx_packets": (came, n["rx_packets"]),
                "packets given to the network = tx_packets": (went, n["tx_packets"]),
            }
        dropped = sum(n[reason] for reason in FRAME_DROPS)
        return {
            "frames taken from the network = rx_frames - answered": (
                came,
                n["rx_frames"] - n["answered"],
            ),
            "frames given to the network = tx_frames - own_frames": (
                went,
                n["tx_frames"] - n["own_frames"],
            ),
            "rx_frames = rx_packets + forwarded + answered + drops": (
                n["rx_frames"],
                n["rx_packets"] + n["forwarded"] + n["answered"] + dropped,
            ),
            "tx_packets + copies + own_frames = tx_frames + drops": (
                n["tx_packets"] + n["copies"] + n["own_frames"],
                n["tx_frames"] + sum(n[reason] for reason in EGRESS_DROPS),
            ),
        }

    def _look_at_memory(self) -> None:
        name = self.node.name
        reserved = self.switch.record.reserved
        if reserved > self.switch.record.limits.memory:
            raise Violation("memory", f"{name} has reserved {reserved} bytes, beyond its limit")
        record = self.switch.record
        members = [m for job in self.switch.jobs.values() for m in job.members.by_address.values()]
        for what, count, most in (
            ("former members", len(record.former), 2 * REMEMBERED),
            ("allowances of strangers", record.throttle.strangers, STRANGERS),
            (
                "answers to one member",
                max((len(m.answers) for m in members), default=0),
                PER_MEMBER,
            ),
        ):
            if count > most:
                raise Violation("memory", f"{name} remembers {count} {what}, beyond {most}")
        held = sum(map(bytes_held, self.switch.jobs.values()))
        held += record.pool.rows.nbytes if record.pool is not None else 0
        if held > record.limits.memory:
            raise Violation("memory", f"{name}: jobs hold {held} bytes, beyond its limit")
        for job in self.switch.jobs.values():
            held, reserved = bytes_held(job), sum(job.reserved.values())
            if held > reserved:
                raise Violation(
                    "memory", f"{name}, job {job.number}: {held} bytes held, {reserved} reserved"
                )

    def made_once(self, segments: dict[int, int]) -> None:
        """Check that no aggregate was made twice; `segments`: those that were begun, by job."""
        made = self.switch.counters["aggregates"]
        most = sum(segments.values())
        if made > most:
            raise Violation(
                "made again",
                f"{self.node.name} has made {made} aggregates, of {most} segments that were begun",
            )


def bytes_held(job: SwitchJob) -> int:
    """Count the bytes of a job's buffers at a switch."""
    accelerator = job.accelerator
    if accelerator is None:
        return 0
    assert isinstance(accelerator, Sums)
    parts = sum(assembly.nbytes() for assembly in job.assemblies.values())
    return accelerator.nbytes() + headers_of(accelerator) * Cutter.MEMORY + parts


def headers_of(sums: Sums) -> int:
    """Count the segments whose headers are kept: with slots, those of a set besides."""
    if isinstance(sums, APART):
        return sums.headers()
    slots = sums.slots if isinstance(sums, SlottedAccelerator) else 0
    return sums.shape.segments + slots


def check_links(network: VirtualNetwork) -> None:
    """Check that every packet is delivered, under way, or lost for a reason."""
    links, nodes = network.link_counts(), list(network.nodes.values())
    gone = sum(node.taken + node.overflow + node.dead + node.unread for node in nodes)
    waiting = sum(node.waiting_packets() for node in nodes)
    given = sum(node.given - node.unreachable for node in nodes)
    given += network.echoed
    if network.beside is not None:
        given -= network.beside.leaving
        waiting += network.beside.entering
    if given != links.sent or links.delivered != gone + waiting or links.under_way() < 0:
        raise Violation("not accounted for", f"on the links: {links}, {given}, {gone}, {waiting}")
