"""Keyed jobs: what sessions and switches below others take, and what of replays."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from iswitch.core.format.lines import line_of
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import (
    TOS_CONTROL,
    Ack,
    Control,
    Round,
    Segments,
    Status,
    Threshold,
)
from iswitch.core.format.wire import Action as A
from iswitch.core.format.wire import Status as S
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.support.keyed import KEY, MAC, ONES, SHAPE, mac
from tests.support.parts import packets_of
from tests.support.world import SWITCH, Faults, World, worker_address
from worker_lib.protocol.session import Answered, Halted, Session, WasReset

pytestmark = pytest.mark.unit


# Sessions


def world(workers: int = 2, faults: Faults | None = None, seed: int = 0, **kwargs: Any) -> World:
    found = World(Switch(Limits(lease=1e6), keys={7: KEY}), faults or Faults(), seed)
    for i in range(workers):
        found.join(i, SHAPE, expected=workers, key=KEY, **kwargs)
    return found


def sessions(of: World) -> list[Session]:
    return list(of.sessions.values())


def run_until_joined(of: World, count: int) -> None:
    """Let time pass until every session has joined with as many others."""
    while not all(session.joined == count for session in sessions(of)):
        of.pump()
        of.step()


def all_halted(of: World, halted: bool) -> bool:
    return all(session.halted is halted for session in sessions(of))


def rounds(of: World, count: int = 3) -> None:
    for _ in range(count):
        for out in of.allreduce(sessions(of), [ONES] * len(of.sessions)):
            assert (out == len(of.sessions)).all()


def hand(to: Session, now: float, packet: Control, key: bytes | None = KEY) -> None:
    payload = packet.build()
    payload += b"" if key is None else mac(payload, key)
    to.receive(Burst.single(SWITCH, TOS_CONTROL, payload), now)


def test_a_keyed_job_sums() -> None:
    there = world()
    there.gather(sessions(there))
    rounds(there)
    assert there.switch.counters["bad_mac"] == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_keyed_job_under_loss_doubles_and_reordering(seed: int) -> None:
    there = world(3, Faults(loss=0.15, duplicate=0.1, jitter=0.01), seed)
    there.gather(sessions(there))
    rounds(there, 5)
    a = sessions(there)[0]
    asked = a.request(A.SETH, Threshold(3), there.now)
    events = there.events[worker_address(0)]
    there.run(lambda: any(isinstance(e, Answered) and e.request == asked for e in events))
    assert [e.status for e in events if isinstance(e, Answered) and e.request == asked] == [S.OK]


def test_requests_go_on_above_those_of_the_process_before() -> None:
    there = world()
    there.gather(sessions(there))
    first = sessions(there)[0]
    first.requests.numbers.last += 500
    first.request(A.SETH, Threshold(0), there.now)
    there.run(lambda: not first.requests)
    second = there.join(0, SHAPE, expected=2, key=KEY, incarnation=1100)
    there.gather([second])
    asked = second.request(A.SETH, Threshold(2), there.now)
    there.run(lambda: not second.requests)
    last = there.events[worker_address(0)][-1]
    assert isinstance(last, Answered)
    assert (last.request, last.status) == (asked, S.OK)
    assert second.incarnation == 1502  # and never has to ask anything twice
    assert there.switch.counters["replayed"] == 0
    assert there.switch.jobs[7].threshold == 2


FORGED = [
    Control(A.HALT, 7, 50),
    Control(A.RESET, 7, 50, Round(99)),
    Control(A.ACK, 7, 1000, Ack(A.JOIN), S.NOT_MEMBER),
    Control(A.ACK, 7, 1000, Ack(A.JOIN), S.DENIED),
    Control(A.ACK, 7, 1000, Ack(A.JOIN), S.FULL),
    Control(A.ACK, 7, 1001, Ack(A.HELP, round=99), S.GONE),
    Control(A.ACK, 7, 1001, Ack(A.HELP), S.NOT_MEMBER),
]


@pytest.mark.parametrize("packet", FORGED, ids=str)
@pytest.mark.parametrize("key", [None, b"another"])
def test_a_session_takes_nothing_without_the_right_mac(packet: Control, key: bytes | None) -> None:
    there = world()
    there.gather(sessions(there))
    a = sessions(there)[0]
    a.begin(ONES, ONES.copy(), there.now)
    there.run(lambda: bool(a._help_requests))  # 1001: B does not come
    a.join(there.now)
    a.transmissions(there.now)
    before = (a.member, a.halted, a.round, a.requests.packets(), set(a._help_requests))
    hand(a, there.now, packet, key)
    assert (a.member, a.halted, a.round, a.requests.packets(), set(a._help_requests)) == before
    assert a.next_event() is None
    assert a.transmissions(there.now) == []  # nothing is acknowledged
    a.abandon()
    rounds(there)


@pytest.mark.parametrize("status", [S.DENIED, S.BAD_REQUEST])
def test_a_denial_without_a_mac_is_a_hint_until_something_better_comes(status: Status) -> None:
    there = world(1)
    (a,) = sessions(there)
    for request in (7, 1000):
        assert not a.denied
        hand(a, 0.0, Control(A.ACK, 7, request, Ack(A.JOIN), status), None)
    assert a.denied
    there.gather([a])
    assert not a.denied


def test_a_session_with_another_key_learns_why_it_is_not_taken() -> None:
    there = world(1)
    stranger = there.join(5, SHAPE, key=b"another")
    there.run(lambda: stranger.denied)
    assert not stranger.member
    assert there.switch.jobs[7].members.contributor_addresses() == (worker_address(0),)


def test_old_halts_and_resets_are_not_obeyed_again() -> None:
    there = world()
    there.gather(sessions(there))
    a, b = sessions(there)
    relayed: list[Control] = []
    true_control = a._control

    def overhear(payload: bytes, now: float) -> None:
        relayed.append(Control.parse(payload[:-MAC]))
        true_control(payload, now)

    a._control = overhear  # type: ignore[method-assign]
    for _ in range(2):
        b.request(A.HALT, None, there.now)
        there.run(lambda: a.halted and b.halted)
        b.request(A.RESET, None, there.now)
        there.run(lambda: not a.halted and not b.halted and not b.requests)
    rounds(there, 100)  # more relays than a session remembers may have come in between
    a._relayed._seen.clear()
    there.events[worker_address(0)].clear()
    round_ = a.round
    replays = [packet for packet in relayed if packet.action in (A.HALT, A.RESET)]
    assert [packet.action for packet in replays] == [A.HALT, A.RESET] * 2
    for packet in replays:
        hand(a, there.now, packet)
        assert a.next_event() is None
    assert (a.halted, a.round) == (False, round_)
    rounds(there)
    b.request(A.HALT, None, there.now)  # a new one is
    there.run(lambda: a.halted)
    assert there.events[worker_address(0)] == [Halted()]


def test_an_old_refusal_does_not_end_a_membership() -> None:
    there = world()
    there.gather(sessions(there))
    a, _ = sessions(there)
    for status in (S.FULL, S.MISMATCH, S.DENIED):
        a.join(there.now)  # a heartbeat
        hand(a, there.now, Control(A.ACK, 7, 1000, Ack(A.JOIN), status))
        assert a.member
        assert a.next_event() is None
    rounds(there)


def test_after_a_restart_old_requests_are_refused() -> None:
    """The switch has forgotten the numbers; the member that is back tells it where they are."""
    there = world()
    there.gather(sessions(there))
    a = sessions(there)[0]
    rounds(there)
    a.request(A.SETH, Threshold(1), there.now)
    there.run(lambda: not a.requests)
    old = Control(A.SETH, 7, a.requests.numbers.last, Threshold(1))
    a.request(A.SETH, Threshold(0), there.now)
    there.run(lambda: not a.requests)
    there.switch = Switch(Limits(lease=1e6), keys={7: KEY})
    rounds(there)
    payload = old.build()
    (out,) = there.switch.receive(
        Burst.single(worker_address(0), TOS_CONTROL, payload + mac(payload)), there.now
    )
    assert Control.parse(packets_of(out)[0][:-MAC]).status == S.DENIED
    assert there.switch.jobs[7].threshold == 0
    rounds(there)


# Trees


CHILD = Address("10.0.1.1", 26963)
ABOVE = SWITCH._replace(line=line_of(7))  # the root, as the child speaks to it of job 7


def tree(child_key: bytes = KEY, faults: Faults | None = None, seed: int = 0) -> World:
    there = World(Switch(Limits(lease=1e6), keys={7: KEY}), faults or Faults(), seed)
    child = Switch(Limits(lease=1e6), False, SWITCH, 1000, keys={7: child_key})
    there.switches[CHILD] = child
    for i in range(3):
        at = CHILD if i < 2 else SWITCH
        there.join(i, SHAPE, at=at, expected=3, key=child_key if i < 2 else KEY)
    return there


@pytest.mark.parametrize("seed", range(10))
def test_a_tree_shares_the_key_of_a_job(seed: int) -> None:
    there = tree(faults=Faults(loss=0.1, duplicate=0.1, jitter=0.01), seed=seed)
    there.gather(sessions(there))
    run_until_joined(there, 3)
    rounds(there, 5)
    below = sessions(there)[0]
    asked = below.request(A.RESET, None, there.now)
    events = there.events[worker_address(0)]
    there.run(lambda: any(isinstance(e, Answered) and e.request == asked for e in events))
    there.run(lambda: len({s.round for s in sessions(there)}) == 1)
    assert sum(isinstance(e, WasReset) for e in there.events[worker_address(2)]) == 1
    rounds(there)
    assert there.switch.counters["bad_mac"] == 0


def test_a_parent_with_another_key_takes_no_child() -> None:
    there = tree(b"another")
    end = there.now + 5.0
    while there.now < end:
        there.step()
    assert [s.member for s in sessions(there)] == [False, False, True]
    assert there.switch.counters["bad_mac"] > 0
    assert there.switches[CHILD].counters["bad_mac"] > 0


def test_a_child_obeys_no_replay_of_its_parent() -> None:
    there = tree()
    there.gather(sessions(there))
    run_until_joined(there, 3)
    rounds(there)
    child = there.switches[CHILD]
    packets: list[bytes] = []
    true_receive = child.receive

    def overhear(burst: Burst, now: float) -> list[Outgoing]:
        if burst.peer == ABOVE and burst.tos == TOS_CONTROL:
            packets.append(burst.rows.tobytes())
        return true_receive(burst, now)

    child.receive = overhear  # type: ignore[method-assign]
    above = sessions(there)[2]
    for action in (A.HALT, A.RESET, A.HALT, A.RESET):
        above.request(action, None, there.now)
        there.run(lambda: not above.requests)
        halted = action is A.HALT
        there.run(partial(all_halted, there, halted))
    rounds(there)
    high = child.jobs[7].window.high
    relayed = [Control.parse(payload[:-MAC]).action for payload in packets]
    assert relayed.count(A.HALT) == relayed.count(A.RESET) == 2
    hierarchy = child.control.hierarchy
    assert hierarchy is not None
    hierarchy.uplinks[7].relayed._seen.clear()  # long ago
    for payload in packets:
        true_receive(Burst.single(ABOVE, TOS_CONTROL, payload), there.now)
        assert not child.jobs[7].halted
        assert child.jobs[7].window.high == high
    rounds(there)


def halt_from_above(there: World, key: bytes) -> list[Outgoing]:
    payload = Control(A.HALT, 7, 999).build()
    burst = Burst.single(ABOVE, TOS_CONTROL, payload + mac(payload, key))
    return there.switches[CHILD].receive(burst, there.now)


def test_a_child_does_not_answer_a_forgery_of_its_parent() -> None:
    there = tree()
    there.gather(sessions(there))
    assert halt_from_above(there, b"another") == []
    assert there.switches[CHILD].counters["bad_mac"] == 1
    assert len(halt_from_above(there, KEY)) == 3  # an Ack, and to its two workers


def test_a_child_goes_on_above_the_numbers_of_its_process_before() -> None:
    there = tree()
    there.gather(sessions(there))
    run_until_joined(there, 3)
    child = there.switches[CHILD]
    assert child.control.hierarchy is not None
    uplink = child.control.hierarchy.uplinks[7]
    below = sessions(there)[0]
    for last in (uplink.requests.numbers.last + 100, uplink.requests.numbers.last):
        uplink.requests.numbers.last = last
        below.request(A.RESET, None, there.now)
        there.run(lambda: not below.requests)
    assert there.switch.counters["replayed"] == 1
    assert [e.status for e in there.events[worker_address(0)] if isinstance(e, Answered)][-2:] == [
        S.OK,
        S.OK,
    ]
    assert not uplink.forwarded


def test_a_command_under_way_to_the_parent_is_not_taken_for_a_replay() -> None:
    """Its repeat comes when a later request has been answered, and before the parent's answer."""
    there = tree()
    there.gather(sessions(there))
    run_until_joined(there, 3)
    child = there.switches[CHILD]
    number = sessions(there)[0].requests.numbers.last

    def send(packet: Control) -> list[Outgoing]:
        payload = packet.build()
        burst = Burst.single(worker_address(0), TOS_CONTROL, payload + mac(payload))
        return child.receive(burst, there.now)

    reset = Control(A.RESET, 7, number + 1)
    (to_parent,) = send(reset)
    assert to_parent.peers == (ABOVE,)
    (answer,) = send(Control(A.HELP, 7, number + 2, Segments(0, 0, 0)))
    assert Control.parse(packets_of(answer)[0][:-MAC]).status == S.OK
    assert send(reset) == []
    assert child.counters["replayed"] == 0
