"""Asynchronous sessions against a switch: every version, in order, the same at all workers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iswitch.core.format.packets import Burst
from iswitch.core.format.wire import (
    TOS_CONTROL,
    TOS_DATA,
    VERSIONS_KEPT,
    Ack,
    Action,
    Control,
    DType,
    Mode,
    Op,
    Round,
    Shape,
    Status,
    round_distance,
    split_seg,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.support.crew import SHAPE, Crew, unit
from tests.support.parts import seg
from tests.support.world import SWITCH, Faults, worker_address
from worker_lib.protocol.events import Answered, Behind, Halted, Told, WasReset
from worker_lib.protocol.pacing import IN_FLIGHT
from worker_lib.protocol.terms import VersionTerms
from worker_lib.protocol.versions import AsynchronousSession

pytestmark = pytest.mark.unit


def test_versions_of_sound_links() -> None:
    crew = Crew(3).start().contribute(10)
    assert crew.settle() == 10
    assert [len(made) for made in crew.agree()] == [10, 10, 10]
    made = crew.owners[0].made.values()
    totals = np.sum([np.frombuffer(total, np.int32).astype(np.int64) for total in made], 0)
    assert (totals == sum(unit(w, n) for w in range(3) for n in range(10))).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_all_get_all_versions_over_bad_links(seed: int) -> None:
    faults = Faults(loss=0.1, duplicate=0.1, jitter=1e-3 * (seed % 3), burst=4.0 * (seed % 2))
    workers, threshold = 2 + seed % 3, seed % 2
    crew = Crew(workers, faults, seed, threshold=threshold * (workers - 1)).start().contribute(25)
    last = crew.settle()
    made = crew.agree()
    for owner in crew.owners:  # whoever never fell behind has all
        assert owner.snapshots or set(owner.made) == set(range(1, last + 1))
    assert any(len(each) == last for each in made)
    assert sum(len(owner.snapshots) for owner in crew.owners) <= 3
    h = threshold * (workers - 1) or workers
    assert 25 * workers // h >= last > 12 * workers // h


def watched(crew: Crew, number: int) -> list[Behind | Told | WasReset | Halted | Answered]:
    crew.pump()
    return crew.tidings[worker_address(number)]


def test_one_lost_aggregate_is_asked_for_when_the_next_comes() -> None:
    lost: list[bytes] = []

    def lose(to_switch: bool, tos: int, payload: bytes) -> bool:
        seg = split_seg(int.from_bytes(payload[:8], "big"))
        if not to_switch and tos == TOS_DATA and seg == (3, 2) and not lost:
            lost.append(payload)
            return True
        return False

    crew = Crew(1, Faults(lose=lose)).start().contribute(8)
    assert crew.settle() == 8
    assert len(lost) == 1
    (session,) = (owner.session for owner in crew.owners)
    assert session.stats["helps"] == 1
    assert session.stats["useless"] == 0
    assert crew.switch.counters["retransmitted"] == 1


def test_the_last_aggregate_is_asked_for_in_silence() -> None:
    def lose(to_switch: bool, tos: int, payload: bytes) -> bool:
        once = crew.switch.counters["retransmitted"] == 0
        return once and not to_switch and tos == TOS_DATA and payload[:4] == b"\0\0\0\2"

    faults = Faults()
    crew = Crew(2, faults).start().contribute(2)
    faults.lose = lose
    assert crew.settle() == 2
    assert crew.now < 0.2
    assert all(owner.session.stats["helps"] == 1 for owner in crew.owners)


def test_who_misses_more_than_is_kept_is_behind_until_it_has_a_state() -> None:
    crew = Crew(1).start()
    session = crew.owners[0].session
    silent = crew.join_asynchronous(1, SHAPE, expected=0, heartbeat=float("inf"))
    crew.run(lambda: silent.member)
    silent.resume_at(session.version, crew.now)
    crew.network.plug(worker_address(1), SWITCH, up=False)
    crew.owners[0].enough = 4 * VERSIONS_KEPT  # H is two now: it contributes for both
    crew.run(lambda: session.version >= VERSIONS_KEPT + 2)
    crew.network.plug(worker_address(1), SWITCH, up=True)
    crew.run(lambda: silent.behind)
    behind = [event for event in watched(crew, 1) if isinstance(event, Behind)]
    assert [event.version for event in behind] == [0]
    assert behind[0].now_at >= VERSIONS_KEPT + 2
    assert silent.next_made() is None
    silent.resume_at(session.version, crew.now)
    crew.run(lambda: silent.backlog > 0 or session.version == silent.version)
    assert not silent.behind


def test_numbers_of_a_new_process_are_ahead_of_all_of_the_old_one() -> None:
    """What the old one has still under way then makes none of the new one's a duplicate."""
    crew = Crew(2).start().contribute(3)
    crew.settle()
    reborn = crew.join_asynchronous(1, SHAPE, incarnation=1001, expected=2)
    assert round_distance(reborn.number, crew.owners[1].session.number) > 0
    crew.run(lambda: reborn.member)
    assert reborn.newest == 3
    assert reborn.behind


def test_contributions_are_bounded() -> None:
    crew = Crew(1).start()
    session = crew.owners[0].session
    for _ in range(IN_FLIGHT):
        session.contribute(unit(0, 0))
    assert not session.can_contribute
    with pytest.raises(ValueError, match="can_contribute"):
        session.contribute(unit(0, 0))
    crew.run(lambda: session.can_contribute)


def test_no_more_than_a_window_is_sent_to_a_switch_that_does_not_answer() -> None:
    shape = Shape.of(366 * 4000, DType.FLOAT32, Op.SUM, Mode.ASYNCHRONOUS)
    crew = Crew(1, shape=shape).start()
    session = crew.owners[0].session
    crew.run(lambda: session.round_trip.smoothed is not None)
    crew.network.plug(worker_address(0), SWITCH, up=False)
    window = session.window.size
    session.contribute(np.ones(shape.numel, np.float32))
    until = crew.now + 3.0
    crew.network.at(until, lambda: None)
    crew.run(lambda: crew.now >= until)
    assert 0 < session.stats["sent"] <= window
    crew.network.plug(worker_address(0), SWITCH, up=True)
    crew.run(lambda: not session.in_flight)
    assert session.stats["sent"] == 4000


def test_nothing_is_contributed_while_some_have_not_joined() -> None:
    """The switch would add it all up in one version."""
    crew = Crew(1, expected=2)
    first = crew.owners[0].session
    crew.run(lambda: first.member)
    assert not first.can_contribute
    second = crew.join_asynchronous(1, SHAPE, expected=2)
    crew.run(lambda: second.can_contribute and first.can_contribute)
    assert crew.now < 0.2


def test_a_switch_is_restarted() -> None:
    """All name the newest version that they have seen; what is made is newer."""
    crew = Crew(3).start().contribute(10)
    crew.run(lambda: min(owner.session.version for owner in crew.owners) >= 5)
    before = max(owner.session.newest for owner in crew.owners)
    crew.switch = Switch(Limits(lease=1e6))
    crew.contribute(10)
    for owner in crew.owners:
        owner.session.terms = replace(owner.session.terms, heartbeat=0.1)
        owner.session._next_heartbeat = crew.now
    crew.run(lambda: all(o.session.stats["rejoins"] == 1 for o in crew.owners))
    crew.run(lambda: all(o.session.gathered for o in crew.owners))
    assert min(state[0] for state in crew.states()) >= before
    crew.settle()
    crew.agree()


def test_what_is_watched_is_told_of_every_version() -> None:
    crew = Crew(2, watch=SHAPE.numel - 5).start().contribute(4)
    crew.settle()
    for number, owner in enumerate(crew.owners):
        told = [event for event in watched(crew, number) if isinstance(event, Told)]
        assert sorted(event.version for event in told) == [1, 2, 3, 4]
        for event in told:
            whole = np.frombuffer(owner.made[event.version], np.int32)
            assert (event.elements == whole[-5:]).all()


def test_halt_and_reset() -> None:
    crew = Crew(2).start().contribute(5)
    crew.settle()
    first, second = (owner.session for owner in crew.owners)
    first.request(Action.HALT, None, crew.now)
    crew.run(lambda: first.halted and second.halted)
    assert not first.can_contribute
    first.request(Action.RESET, None, crew.now)
    crew.run(lambda: not first.halted and not second.halted)
    assert [first.newest, second.newest] == [7, 7]
    for number in (0, 1):
        assert WasReset(7) in watched(crew, number)
        assert Halted() in watched(crew, number)
    for session in (first, second):
        assert session.behind
        session.resume_at(7, crew.now)
    for owner in crew.owners:
        owner.made.clear()
    crew.contribute(3)
    assert crew.settle() == 10
    crew.agree()


numbers = st.one_of(st.integers(0, 12), st.integers(2**32 - 3, 2**32 - 1), st.just(2**31))
indices = st.one_of(st.integers(0, 6), st.just(2**32 - 1))
said = st.one_of(
    st.builds(
        lambda version, index, size: (TOS_DATA, seg(version, index) + bytes(size)),
        numbers,
        indices,
        st.sampled_from([SHAPE.packet_size - 8, SHAPE.last_size - 8, 0, 3]),
    ),
    st.builds(
        lambda action, request, status, version: (
            TOS_CONTROL,
            Control(Action.ACK, 7, request, Ack(action, 0, 1, 2, version, 9), status).build(),
        ),
        st.sampled_from([Action.JOIN, Action.HELP, Action.SETH, Action.RESET]),
        st.integers(999, 1030),
        st.sampled_from(list(Status)),
        numbers,
    ),
    st.builds(
        lambda action, request, version: (
            TOS_CONTROL,
            Control(action, 7, request, Round(version) if action is Action.RESET else None).build(),
        ),
        st.sampled_from([Action.HALT, Action.RESET]),
        st.integers(0, 3),
        numbers,
    ),
    st.tuples(st.sampled_from([TOS_DATA, TOS_CONTROL]), st.binary(min_size=1, max_size=60)),
)
acts = st.one_of(said, said, st.sampled_from(["timer", "contribute", "take", "resume"]))


def settle_down(session: AsynchronousSession, now: float) -> None:
    """Take all that a session has to send and tell now; it must come to an end."""
    for _ in range(20):
        if not session.transmissions(now):
            break
    else:
        raise AssertionError("it does not stop sending")
    for _ in range(100):
        due = session.deadline()
        if due is None or due > now:
            break
        session.handle_timer(now)
        session.transmissions(now)
    else:
        raise AssertionError("its timer is due for ever")
    while session.next_event() is not None:
        pass


@settings(max_examples=150, deadline=None)
@given(st.lists(acts, max_size=60))
def test_whatever_a_switch_says(history: list[tuple[int, bytes] | str]) -> None:
    """Nothing raises; timers are not due for ever; what is sent and kept is bounded."""
    terms = VersionTerms(SWITCH, 7, SHAPE, expected=2, threshold=2, watch=30)
    session = AsynchronousSession(terms, 1000)
    now = 0.0
    session.join(now)
    for act in history:
        if act == "timer":
            now = max(now, session.deadline() or now)
            session.handle_timer(now)
        elif act == "contribute":
            if session.can_contribute:
                session.contribute(unit(0, 0))
        elif act == "take":
            session.next_made()
        elif act == "resume":
            session.resume_at(session.newest, now)
        elif isinstance(act, tuple):
            session.receive(Burst.single(SWITCH, *act), now)
        settle_down(session, now)
        assert len(session._versions) <= 2 * VERSIONS_KEPT
        assert len(session._spare) <= 3 * VERSIONS_KEPT
        now += 0.001
