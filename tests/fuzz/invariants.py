"""What holds of a Switch after every step, whatever came, and of everything that it sends.

- Everything received is accounted for (the equations of iswitch/core/format/counters.py).
- Members have reserved no more memory than allowed, and buffers take no more than was reserved.
- Each contributor has a rank of its own below 64 and belongs to one job; sources are the members.
- After the timer was handled it is not due again at once, or the engine would spin.
- What is sent is a packet of the protocol: an Ack that echoes, a relay, or data of a job's layout,
  to somebody that may get it.
"""

from __future__ import annotations

from collections.abc import Iterable

from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import (
    MAX_MEMBERS,
    SEG_SIZE,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    Shape,
    Status,
)
from iswitch.core.switch import Switch
from iswitch.lab.soak.books import bytes_held
from tests.support.parts import assert_accounted, packets_of

RELAYED = (Action.HELP, Action.HALT, Action.RESET)
UPWARDS = (Action.JOIN, Action.LEAVE, Action.HELP, Action.FBCAST, Action.RESET, Action.HALT)


def check_state(switch: Switch, now: float, timer_handled: bool = False) -> None:
    """What holds of the switch itself."""
    assert_accounted(switch.counters)
    check_memory(switch)
    sources = {}
    for number, job in switch.jobs.items():
        assert job.number == number
        members = job.members.by_address
        seats = [member.seat for member in members.values()]
        together = 0
        for member in members.values():
            assert not together & member.ranks  # no two have the same
            together |= member.ranks
        assert len(set(seats)) == len(seats) <= MAX_MEMBERS
        assert all(0 <= seat < MAX_MEMBERS for seat in seats)
        for address, member in members.items():
            assert member.address == address
            if member.contributes:
                assert address not in sources
                sources[address] = (job, member)
        assert (job.accelerator is None) == (not job.members.contributors())
    assert switch.record.by_source == sources
    deadline = switch.deadline()
    assert deadline is None or deadline == deadline  # no NaN
    if timer_handled:
        assert deadline is None or deadline > now, "the engine would spin"


def check_memory(switch: Switch) -> None:
    """Buffers fit in what was reserved, and that in what is allowed."""
    assert switch.record.reserved <= switch.record.limits.memory
    for job in switch.jobs.values():
        if job.accelerator is None:
            assert not job.reserved
            continue
        assert bytes_held(job) <= sum(job.reserved.values())


def layouts(switch: Switch) -> list[Shape]:
    """Of the jobs that have one."""
    return [job.shape for job in switch.jobs.values() if job.shape]


def check_sends(
    switch: Switch, sends: Iterable[Outgoing], sender: Address | None, before: Iterable[Shape] = ()
) -> None:
    """What holds of what is sent because of a packet of `sender` (None: of the time).

    `before` are the layouts that jobs had then: the last members may be gone now.
    """
    is_parent = switch.control.is_parent
    shapes = [*before, *layouts(switch)]
    for out in sends:
        assert out.peers
        assert len(set(out.peers)) == len(out.peers)
        n, size = out.rows.shape
        assert n >= 1
        assert SEG_SIZE <= out.tail <= size
        if out.tos == TOS_DATA:
            for payload in packets_of(out):
                index = int.from_bytes(payload[4:8], "big")
                assert any(
                    index < shape.segments and len(payload) == shape.tail(index + 1)
                    for shape in shapes
                ), "data of no job's layout"
            continue
        assert out.tos == TOS_CONTROL
        for payload in packets_of(out):
            packet = Control.parse(payload)
            assert 0 <= packet.status <= max(Status)
            if is_parent(out.peers[0]):
                assert packet.action in (*UPWARDS, Action.ACK)
            elif packet.action is Action.ACK:
                assert isinstance(packet.value, Ack)
                assert packet.value.known <= (packet.value.action in (Action.JOIN, Action.HELP))
                has_parent = switch.control.hierarchy is not None
                waiting = has_parent and (sender is None or is_parent(sender))
                assert out.peers == (sender,) or waiting, "an Ack to somebody that asked nothing"
            else:
                assert packet.action in RELAYED
                assert packet.status == 0
