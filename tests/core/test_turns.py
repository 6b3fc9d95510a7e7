"""Jobs take turns with a switch's memory, and wait for some, in virtual time: docs/sharing.md."""

from __future__ import annotations

import logging
import re
import time
from itertools import groupby, pairwise

import numpy as np
import pytest

from iswitch.core.format.wire import HEARTBEAT, Action, Shape, Status, Threshold
from iswitch.core.jobs.lanes import Lanes
from iswitch.core.sums.turns import TurnAccelerator
from iswitch.sim.grain import SINGLE
from topologies.virtual.notebook import Results, Seat, simulate
from worker_lib import Worker
from worker_lib.controller import Controller
from worker_lib.errors import Refused

pytestmark = pytest.mark.unit

NUMEL = 40_000
SHAPE = Shape.of(NUMEL)
P, E = TurnAccelerator.persistent(SHAPE), TurnAccelerator.ephemeral(SHAPE)
STAR = "star:4,rate=10Gbit,delay=10us"
Times = list[tuple[float, float]]


def rounds(seat: Seat, count: int = 12, pause: float = 0.0, tells: bool = False) -> Times:
    """Sum in job 1 or 2, two workers each; return when each round began and ended."""
    vector = np.arange(NUMEL, dtype=np.float32) % 7
    job, rank = 1 + seat.rank // 2, seat.rank % 2
    times = []
    told = count if tells else None
    with Worker(seat.switch, job, NUMEL, 2, rank=rank, rounds=told) as worker:
        for i in range(count):
            time.sleep(pause)
            began = time.monotonic()
            total = worker.allreduce(vector + i)
            assert (total == 2 * (vector + i)).all()
            times.append((began, time.monotonic()))
    return times


def span(found: Results[Times]) -> float:
    """Return the seconds from the first round to the last."""
    return max(times[-1][1] for times in found) - min(times[0][0] for times in found)


@pytest.mark.parametrize("policy", ["lanes:fifo", "lanes:srtf", "lanes:pack", "lanes:fair"])
def test_two_jobs_lend_each_other_a_vector(policy: str) -> None:
    found = simulate(STAR, rounds, policy=policy, memory=2 * P + E)
    assert found.counters["s1"]["no_turn"]
    assert found.counters["s1"]["aggregates"] == 2 * 12 * SHAPE.segments


def test_fair_gives_equal_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both jobs always want their turn until one is done: the time of their rounds is equal."""
    spent: dict[int, float] = {}
    original = Lanes.end

    def end(self: Lanes, job: int, now: float, done: bool) -> None:
        original(self, job, now, done)
        if len(self._jobs) == 2:
            spent.update({n: one.spent for n, one in self._jobs.items()})

    monkeypatch.setattr(Lanes, "end", end)
    simulate(STAR, lambda seat: rounds(seat, 40), policy="lanes:fair", memory=2 * P + E)
    assert abs(spent[1] - spent[2]) <= 0.05 * sum(spent.values()) / 2


def test_srtf_prefers_the_job_with_fewer_rounds_left() -> None:
    """Of three jobs, the one that tells 6 rounds has every second turn, not every third."""

    def work(seat: Seat) -> Times:
        return rounds(seat, (20, 20, 6)[seat.rank // 2], tells=True)

    form = "star:6,rate=10Gbit,delay=10us"
    *long, short = simulate(form, work, policy="lanes:srtf", memory=3 * P + E)[::2]
    others = sum(short[0][1] < end < short[-1][1] for times in long for _, end in times)
    assert others <= 7


@pytest.mark.parametrize("form", ["star:1", "rack:1x1"])
def test_heartbeats_tell_how_many_rounds_are_left(form: str) -> None:
    """Below a switch, too, which passes on what its worker tells."""

    def work(seat: Seat) -> None:
        with Worker(seat.switch, 1, 10, 1, rounds=9) as worker:
            for _ in range(3):
                worker.allreduce(np.ones(10, np.float32))
            time.sleep(2 * HEARTBEAT)
            for _ in range(9):  # more than it has told
                worker.allreduce(np.ones(10, np.float32))
            time.sleep(2 * HEARTBEAT)

    told: list[int] = []
    original = Lanes.tell

    def tell(self: Lanes, job: int, rounds_: int) -> None:
        told.append(rounds_)
        original(self, job, rounds_)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lanes, "tell", tell)
        simulate(form, work, policy="lanes:srtf")
    assert [number for number, _ in groupby(told)] == [9, 6, 1]


def test_lanes_of_their_own_cost_little() -> None:
    """PACK with room for both, beside static: 3 % at most."""
    static = simulate(STAR, lambda seat: rounds(seat, 30))
    packed = simulate(STAR, lambda seat: rounds(seat, 30), policy="lanes:pack", memory=2 * (P + E))
    assert span(packed) <= 1.03 * span(static)


def test_a_job_waits_and_begins_as_soon_as_there_is_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The second job has its first sum within one round's time of the other's Leave."""
    caplog.set_level(logging.WARNING)
    found = simulate(STAR, rounds, policy="lanes:fifo", memory=P + E)
    first, second = sorted((found[0], found[2]), key=lambda times: times[0][0])
    length = max(ended - began for times in found for began, ended in times[1:])
    assert 0 <= second[0][0] - first[-1][1] <= length
    told = r"job \d+( \(rank \d\))? waits for memory of the switch, at place 1 of 1"
    assert re.search(told, caplog.text)


def test_who_waits_too_long_is_told_what_to_do() -> None:
    def work(seat: Seat) -> str:
        time.sleep(0.001 * seat.rank)

        def joined() -> Worker:
            place = seat.switch, seat.rank
            return Worker(*place, numel=NUMEL, num_workers=1, timeout=0.3)

        if not seat.rank:
            with joined(), Controller(seat.switch, 0) as controller:
                time.sleep(0.1)
                listed = [(ack.rank, ack.round, ack.contributors) for ack in controller.queue()]
                time.sleep(1.0)
            return f"{listed}"
        with pytest.raises(Refused) as refused:
            joined()
        assert refused.value.status is Status.WAITING
        return str(refused.value)

    found = simulate("star:3", work, policy="lanes:fair", memory=P + E)
    assert found[0] == "[(1, 1, 2), (2, 2, 2)]"
    for place, message in enumerate(found[1:], 1):
        assert f"place {place} of 2" in message
        assert "longer timeout" in message


def test_below_the_root_of_a_tree() -> None:
    """Switches pass WAITING, turns and sums on."""

    def work(seat: Seat) -> Times:
        other = seat._replace(rank=(seat.rank % 2) * 2 + seat.rank // 2)  # a job in both racks
        return rounds(other, 6)

    for memory in (2 * P + E, P + E):
        found = simulate("rack:2x2,rate=10Gbit", work, policy="lanes:fair", memory=memory)
        assert all(before[1] <= after[0] for times in found for before, after in pairwise(times))


@pytest.mark.parametrize("form", ["star:2", "tree:1x1x2"])
def test_no_h_in_such_a_job(form: str) -> None:
    """Nor at a switch below the root, nor at one below that."""

    def work(seat: Seat) -> Status | None:
        if seat.rank:
            time.sleep(0.01)
            with Controller(seat.switch, 1) as controller:
                with controller.membership(), pytest.raises(Refused) as refused:
                    controller.request(Action.SETH, Threshold(1))
                return refused.value.status
        with Worker(numel=NUMEL, switch=seat.switch, job=1, num_workers=1) as worker:
            worker.allreduce(np.ones(NUMEL, np.float32))
            time.sleep(0.1)
        return None

    found = simulate(form, work, policy="lanes:fair", grain=SINGLE)
    assert found[1] is Status.BAD_REQUEST
