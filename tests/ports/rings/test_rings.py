"""A switch with rings: as by UDP in all it does, and safe from what workers do to their memory."""

from __future__ import annotations

import random
import select
from pathlib import Path

import numpy as np
import pytest

from iswitch.core.format.packets import Burst, Outgoing
from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA, DType, Shape
from iswitch.fast import loading
from iswitch.ports.rings import channel, link, meeting
from iswitch.ports.rings.channel import LocalPort
from iswitch.ports.rings.members import Group
from iswitch.ports.rings.memory import LINE
from iswitch.ports.rings.ring import (
    GROUP,
    GROUP_SHIFT,
    SLEEPS,
    TAKEN,
    WRITTEN,
    group_taken,
)
from iswitch.ports.rings.serving import RingPort
from tests.support import open_files, python
from tests.support.parts import segments_of

from .bench import HOME, Bench, bench, whole_group

WORKERS = 3
SHAPE = Shape.of(203, DType.INT32, elements=8)
NO_NUMBA = pytest.mark.skipif(not loading.installed(), reason="Numba is not installed")
WAYS = pytest.mark.parametrize("fast", [False, pytest.param(True, marks=NO_NUMBA)])


def joined(made: Bench) -> Bench:
    """Connect workers that join."""
    first = len(made.workers)
    made.plug(WORKERS)
    for number in range(first, first + WORKERS):
        made.join(number, SHAPE, WORKERS)
    return made


def vector(round_: int, rank: int, start: int, stop: int) -> Outgoing:
    """Segments start..stop-1 of a rank's vector of a round."""
    segments = segments_of(SHAPE, round_, np.full(203, 1 << 8 * rank, np.int32))[start:stop]
    rows = np.zeros((len(segments), SHAPE.packet_size), np.uint8)
    for row, segment in zip(rows, segments, strict=True):
        row[: len(segment)] = np.frombuffer(segment, np.uint8)
    return Outgoing((), TOS_DATA, rows, len(segments[-1]))


def drawn(chance: random.Random, round_: int) -> Outgoing:
    """A batch as workers send it, or a damaged, late or strange one."""
    start = chance.randrange(SHAPE.segments)
    stop = chance.randint(start + 1, SHAPE.segments)
    out = vector(
        max(0, round_ + chance.choice((0, 0, 0, -1, 1, 5))), chance.randrange(3), start, stop
    )
    strange = chance.randrange(8)
    if strange == 0:
        out = out._replace(tos=chance.choice((TOS_CONTROL, 0, TOS_DATA | 1)))
    elif strange == 1:
        size = chance.randint(1, SHAPE.packet_size)
        out = out._replace(rows=out.rows[:, :size].copy(), tail=chance.randint(1, size))
    elif strange == 2:
        order = chance.sample(range(stop - start), stop - start)
        out = out._replace(rows=out.rows[order], tail=SHAPE.packet_size)
    return out


def state_of(made: Bench) -> list[object]:
    job = made.switch.jobs[7]
    assert job.accelerator is not None
    sums = [(run, bits) for run, _, bits in job.accelerator.begun()]  # type: ignore[attr-defined]
    rows = job.accelerator.rows.copy()  # type: ignore[attr-defined]
    rows[:, -1, SHAPE.last_size :] = 0  # means nothing
    for slot, table in enumerate(job.accelerator.state):  # type: ignore[attr-defined]
        rows[slot, table.words[:, 0] >> np.uint64(32) == 0, :8] = 0  # no header before it is whole
    return [
        sums,
        rows.tobytes(),
        job.window.high,
        job.window.base,
        sorted(m.rank for m in job.members),
    ]


@WAYS
def test_batches_have_equal_effects_by_udp_and_by_ring(path: Path, fast: bool) -> None:
    for seed in range(2):
        found = []
        for at in (None, path):
            chance = random.Random(seed)
            with bench(at) as made:
                joined(made)
                assert {worker.way for worker in made.workers} == {"shm" if at else "udp"}
                if fast and at:
                    made.compile()
                for step in range(40):
                    round_ = step // 6
                    if chance.random() < 0.3:  # a whole round, so that sums complete
                        for rank in range(WORKERS):
                            made.say(rank, vector(round_, rank, 0, SHAPE.segments))
                    else:
                        made.say(chance.randrange(WORKERS), drawn(chance, round_))
                counters = {name: n for name, n in made.switch.counters.items() if n}
                found.append((made.came, counters, state_of(made)))
        assert found[0] == found[1], f"seed {seed}"
        assert found[0][1]["aggregates"] > 26


def test_sums_are_written_once_for_all(path: Path) -> None:
    with bench(path) as made:
        joined(made)
        for rank in range(WORKERS):
            made.say(rank, vector(0, rank, 0, SHAPE.segments))
        assert whole_group(made)
        assert not made.switch.counters["tx_failed"]
        assert made.switch.counters["rx_packets"] == WORKERS * (SHAPE.segments + 1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rings of 8 kB."""
    for module in ("link", "members"):
        monkeypatch.setattr(f"iswitch.ports.rings.{module}.SIZE", 1 << 13)


@WAYS
@pytest.mark.usefixtures("small")
def test_sums_are_written_once_though_the_count_of_lines_begins_again(
    path: Path, fast: bool
) -> None:
    """A word has room for the lines of 70 TB, which a job can write within a day."""
    with bench(path) as made:
        workers = joined(made).workers
        if fast:
            made.compile()
        for rank in range(WORKERS):
            made.say(rank, vector(0, rank, 0, SHAPE.segments))
        assert whole_group(made)
        assert isinstance(made.port, RingPort)
        group = made.port.rings.holder_of(tuple(worker.address for worker in workers))
        assert isinstance(group, Group)
        before = (LINE << GROUP_SHIFT) - group.down.size  # so it lies at the same place as 0
        group.down.written += before
        group.down.words[WRITTEN] = group.down.written
        for member, worker in zip(group.members, workers, strict=True):
            assert isinstance(worker, LocalPort)
            assert worker.link is not None
            assert worker.link.group is not None
            member.group_taken += before
            worker.link.group.taken += before
            worker.link.up.words[GROUP] += before // LINE
        for round_ in range(1, 40):
            for rank in range(WORKERS):
                made.say(rank, vector(round_, rank, 0, SHAPE.segments))
        assert not group.is_left
        assert group.down.written > LINE << GROUP_SHIFT


def test_more_than_was_written_is_not_taken() -> None:
    """Whatever a worker says, the count stays one of what is there."""
    taken = 0
    for _ in range(1000):
        taken = group_taken((taken // LINE + (1 << 39)) | 5 << GROUP_SHIFT, taken, LINE * 100)
        taken = group_taken(taken // LINE + 7, taken, LINE * 100)
    assert taken == LINE * 98


def test_what_was_taken_of_a_former_group_does_not_count_for_the_next(path: Path) -> None:
    with bench(path) as made:
        addresses = [worker.address for worker in joined(made).workers]
        assert isinstance(made.port, RingPort)
        for peers in (addresses[:2], addresses[1:]):
            out = vector(0, 0, 0, 3)._replace(peers=tuple(peers))
            made.port.push([out])
            group = made.port.rings.holder_of(out.peers)
            assert isinstance(group, Group)
            assert [member.taken_of(group.down.written) for member in group.members] == [0, 0]
            made.settle()
            assert [member.taken_of(group.down.written) for member in group.members] == [
                group.down.written
            ] * 2


@WAYS
@pytest.mark.usefixtures("small")
def test_a_worker_that_is_stopped_stalls_nobody(path: Path, fast: bool) -> None:
    """The sums for it go by UDP when its rings are full; the others get theirs through theirs."""
    with bench(path) as made:
        workers = joined(made).workers
        if fast:
            made.compile()
        made.came.clear()
        made.workers = workers[:2]
        for round_ in range(8):
            for rank in range(2):
                made.say(rank, vector(round_, rank, 0, SHAPE.segments))
            mine = vector(round_, 2, 0, SHAPE.segments)
            workers[2].push([mine._replace(peers=(made.address,))])
            made.settle()
        assert made.switch.counters["aggregates"] == 8 * SHAPE.segments
        assert len(made.came) == 2 * 8 * SHAPE.segments
        made.came.clear()
        made.workers = workers
        made.settle()
        assert len(made.came) == 8 * SHAPE.segments  # from its rings, and by UDP
        for rank in range(WORKERS):  # it gets its sums with the others again
            made.say(rank, vector(8, rank, 0, SHAPE.segments))
        assert whole_group(made)


def test_a_switch_that_is_started_again_gives_new_rings(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(meeting.VARIABLE, str(path))
    monkeypatch.setattr(channel, "PAUSE", 0.0)
    with bench(path) as made:
        joined(made)
        workers, made.workers = made.workers, []
    for worker in workers:
        assert list(worker.pull()) == []
        assert worker.way == "udp"
    with bench(path, made.address[:2]) as again:
        again.workers = workers
        again.settle()
        again.settle()
        assert {worker.way for worker in workers} == {"shm"}
        for number in range(WORKERS):
            again.join(number, SHAPE, WORKERS)
        for rank in range(WORKERS):
            again.say(rank, vector(0, rank, 0, SHAPE.segments))
        assert whole_group(again)


def test_nothing_is_left(path: Path) -> None:
    before = open_files()
    for _ in range(3):
        with bench(path) as made:
            joined(made)
            for rank in range(WORKERS):
                made.say(rank, vector(0, rank, 0, SHAPE.segments))
            made.workers.pop(1).close()
            made.settle()
            for plan in made.port.rings._plans.values():  # type: ignore[attr-defined]
                assert plan.group is None or len(plan.group.members) < WORKERS
    assert open_files() == before


@WAYS
def test_what_a_worker_scribbles_harms_nobody_else(path: Path, fast: bool) -> None:
    chance = random.Random(1)
    for _ in range(5):
        with bench(path) as made:
            joined(made)
            for round_ in range(2):  # afterwards the job is plain
                for rank in range(WORKERS):
                    made.say(rank, vector(round_, rank, 0, SHAPE.segments))
            if fast:
                made.compile()
                assert made.lane.ready()
            bad = made.workers[2]
            assert isinstance(bad, LocalPort)
            assert bad.link is not None
            words, heads = bad.link.up.words, bad.link.up._heads
            reads_at = bad.link.up.written  # where the switch looks for the next record
            values = (0, 1, -1, 64, 1 << 21, -(1 << 63), (1 << 63) - 1, chance.getrandbits(20))
            for _ in range(20):
                at = chance.choice((0, 0, 8, 16, 24, 32, 64, chance.randrange(1 << 20) & ~7))
                at += reads_at
                heads[at : at + 8] = chance.choice(values).to_bytes(8, "little", signed=True)
                words[chance.choice((WRITTEN, SLEEPS, TAKEN, GROUP))] = chance.choice(values)
                made.settle()
            made.came.clear()
            before = made.switch.counters["accumulated"]
            for rank in range(2):
                made.say(rank, vector(2, rank, 0, SHAPE.segments))
            assert made.switch.counters["accumulated"] == before + 2 * SHAPE.segments
            mine = vector(2, 2, 0, SHAPE.segments)  # as if it came by UDP
            burst = Burst(bad.address, mine.tos, mine.rows, mine.tail)
            made.port.push(made.switch.receive(burst, made.now))
            made.settle()
            sums = segments_of(SHAPE, 2, np.full(203, 0x010101, np.int32))
            wanted = {b"%d %d " % (to, TOS_DATA) + one for to in range(2) for one in sums}
            assert wanted <= {*made.came}
            for worker in made.workers[:2]:
                assert worker.way == "shm"


def test_a_packet_larger_than_a_ring_goes_by_udp(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SIZE", 1 << 12)
    with bench(path) as made:
        joined(made)
        large = np.zeros((1, 5000), np.uint8)
        made.say(0, Outgoing((), TOS_DATA, large, 5000))
        assert made.switch.counters["malformed"] == 1


def test_a_member_is_named_by_its_socket(path: Path) -> None:
    with bench(path) as made:
        joined(made)
        assert sorted(made.switch.sources) == sorted(worker.address for worker in made.workers)
        guests = made.port.rings._guests.values()  # type: ignore[attr-defined]
        assert {guest.address for guest in guests} == set(made.switch.sources)


def test_the_switch_wakes_up_though_others_have_taken_its_packets(path: Path) -> None:
    """As where impaired links lose them: whoever waits has seen nothing come."""
    with bench(path) as made:
        joined(made)
        control = Outgoing.control(made.address, b"\1" * 8)
        for _ in range(3):
            made.workers[0].push([control])
            assert select.select([made.port], (), (), 5)[0]
            assert len(list(made.port.pull())) >= 1
        assert not select.select([made.port], (), (), 0)[0] or not list(made.port.pull())


def test_whoever_is_sent_to_gets_it_whatever_others_were_sent_to(path: Path) -> None:
    """Sets of receivers in any order: none is left with a ring that its members no longer read."""
    chance = random.Random(3)
    with bench(path) as made:
        addresses = [worker.address for worker in joined(made).workers]
        for step in range(60):
            some = chance.sample(range(WORKERS), chance.randint(1, WORKERS))
            peers = tuple(addresses[number] for number in some)
            made.came.clear()
            made.port.push([vector(step, 0, 0, 3)._replace(peers=peers)])
            made.settle()
            assert sorted(came[:1] for came in made.came) == sorted(b"%d" % n for n in some * 3)
            if step == 30:
                made.workers[1].close()
                made.workers[1] = LocalPort(HOME, made.address[:2])
                addresses[1] = made.workers[1].address


@pytest.mark.slow
def test_sums_are_right_while_workers_are_killed() -> None:
    """A few kills; `make kills` takes 10,000."""
    ended = python("-m", "tests.ports.rings.kills", "--kills", "12")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "12 kills" in ended.stdout
    assert " 0 wrong sums, 0 workers without rings" in ended.stdout
