"""Asynchronous jobs in trees: random histories against an oracle that knows every contribution.

The elements of a contribution are zeros but for a one at a place of its own. So a version shows
which contributions are in it, and how often each.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import TOS_DATA, Action, DType, Mode, Shape, Threshold
from iswitch.core.sums.asynchronous import AsynchronousAccelerator
from iswitch.core.sums.partial import PartialAccelerator
from iswitch.core.switch import Switch
from tests.support.tree import TYPICAL, Tree
from tests.support.world import SWITCH, Faults
from worker_lib.protocol.versions import AsynchronousSession

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "5"))  # `make model` takes more
MOST = 150  # contributions of a history
SEGMENTS = 3
JOB = 7
EACH = MOST + 1  # elements of a segment; the last counts contributions that are not told apart
SHAPE = Shape.of(SEGMENTS * EACH, DType.INT32, mode=Mode.ASYNCHRONOUS, elements=EACH)


class Versions(Tree):
    """A tree whose workers are in an asynchronous job, and all that its switches send down."""

    def __init__(
        self, *fan_outs: int, seed: int, faults: Faults | None = None, key: bytes | None = None
    ) -> None:
        super().__init__(*fan_outs[:-1], 0, seed=seed, faults=faults, key=key)
        self.key = key
        above = set(self.above.values())
        self.leaves = [address for address in self.above if address not in above] or [SWITCH]
        self.places = [at for at in self.leaves for _ in range(fan_outs[-1])]
        self.made: dict[tuple[int, int], bytes] = {}
        self.given = 0  # contributions
        self.restarts = False  # a root may be restarted
        self.incarnation = 1000
        self.members = [self.come(number) for number in range(len(self.places))]

    def come(self, number: int) -> AsynchronousSession:
        """Have a worker join, maybe in place of another."""
        self.incarnation += 10
        return self.join_asynchronous(number, SHAPE, JOB, self.incarnation, **self.ways(number))

    def ways(self, number: int) -> dict[str, Any]:
        """What sessions at the place of a worker have in common."""
        at, expected = self.places[number], len(self.places)
        return {"at": at, "expected": expected, "heartbeat": 1.0, "key": self.key}

    def lost(self, source: Address, peer: Address, tos: int, payload: bytes) -> bool:
        home, to = self.network.home(source), self.network.home(peer)
        of_job = tos == TOS_DATA and len(payload) == SHAPE.packet_size
        if of_job and home in self.switches and self.above.get(home) != to:
            seg = int.from_bytes(payload[:4], "big"), int.from_bytes(payload[4:8], "big")
            # What a root that is restarted has sent and nobody has taken was never made.
            if home != SWITCH or not self.restarts:
                assert self.made.setdefault(seg, payload) == payload, f"two versions {seg}"
        return super().lost(source, peer, tos, payload)

    def pump(self) -> None:
        super().pump()
        for session in self.asynchronous.values():
            if session.member and session.behind and session.gathered:
                session.resume_at(session.newest, self.now)  # as with a state of another worker
            while (found := session.next_made()) is not None:
                version, vector = found
                for index in range(SEGMENTS):
                    part = vector[index * EACH : (index + 1) * EACH]
                    assert part.tobytes() == self.made[version, index][8:]

    def contribute(self, session: AsynchronousSession) -> None:
        if session.can_contribute:
            vector = np.zeros(SHAPE.numel, np.int32)
            vector[self.given :: EACH] = 1
            session.contribute(vector)
            self.given = min(self.given + 1, MOST)

    def racks(self) -> list[Switch]:
        return [switch for address, switch in self.switches.items() if address in self.above]

    def is_at_rest(self) -> bool:
        """Whether every partial sum has reached the root."""
        for switch in self.racks():
            sums = switch.jobs[JOB].accelerator if JOB in switch.jobs else None
            if not isinstance(sums, PartialAccelerator) or sums.is_open() or sums.uncounted():
                return False
        sessions = self.asynchronous.values()
        return all(s.member and s.gathered and s.in_flight == 0 for s in sessions)

    def counted(self) -> np.ndarray:
        """How often each contribution is in a version or in the root's open sum, by segment."""
        found = np.zeros((SEGMENTS, EACH), int)
        for (_, index), payload in self.made.items():
            found[index] += np.frombuffer(payload[8:], "<i4")
        sums = self.switch.jobs[JOB].accelerator
        assert isinstance(sums, AsynchronousAccelerator)
        for index in range(SEGMENTS):
            _, slot, count, _ = sums.state.get(index)
            if count:
                found[index] += sums.rows[slot, index, 8:].view("<i4")
        return found

    def total(self, name: str) -> int:
        return sum(switch.counters[name] for switch in self.racks())

    def all_there(self) -> None:
        sessions = self.members
        self.run(lambda: all(s.member and s.gathered for s in self.asynchronous.values()))
        assert all(session.joined == len(sessions) for session in sessions)

    def settle(self) -> None:
        """Contribute until all partial sums have gone up: one waits if its segment is ahead."""
        for _ in range(40):
            self.let_pass(1.5)
            if self.is_at_rest():
                return
            for session in self.members:
                self.contribute(session)
        raise AssertionError("there is always a sum that has not gone up")


TREES = [(2, 2), (3, 1), (2, 2, 2), (1, 3), (2, 1, 2)]


def accumulated_at(tree: Versions, switches: list[Address]) -> int:
    return sum(tree.switches[address].counters["accumulated"] for address in switches)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_contribution_counts_once(seed: int) -> None:
    """Whatever is lost, doubled and late, what a rack has added up is in one version, once."""
    tree = Versions(*TREES[seed % len(TREES)], seed=seed, faults=TYPICAL)
    tree.all_there()
    while tree.given < MOST:
        what = tree.random.random()
        number = tree.random.randrange(len(tree.members))
        if what < 0.03:
            tree.members[number] = tree.come(number)
        elif what < 0.05:
            threshold = Threshold(tree.random.choice([0, 1, 2, 5]))
            session = tree.members[number]
            if session.member:
                session.request(Action.SETH, threshold, tree.now)
        elif what < 0.07:
            tree.let_pass(tree.random.random() / 5)
        else:
            tree.contribute(tree.members[number])
        for _ in range(tree.random.randrange(12)):
            tree.step()
    tree.settle()
    counted = tree.counted()
    assert counted[:, :MOST].max() == 1
    if not tree.total("sums_given_up"):  # as when the only worker of a switch is replaced
        assert counted.sum() == accumulated_at(tree, tree.leaves)
    newest = {session.newest for session in tree.members}
    assert len(newest) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_between_switches(seed: int) -> None:
    """Where only the links between switches are bad, all count but those that are dropped."""
    tree = Versions(*TREES[seed % len(TREES)], seed=seed)
    tree.all_there()
    for (source, peer), link in tree.network.links.items():
        if source in tree.switches and peer in tree.switches:
            link.impairment = Faults(loss=0.1, duplicate=0.1, jitter=300e-6).impairment
    while tree.given < MOST:
        tree.contribute(tree.random.choice(tree.members))
        for _ in range(tree.random.randrange(12)):
            tree.step()
    tree.settle()
    counted = tree.counted()
    assert counted[:, :MOST].max() == 1
    assert counted.sum() == accumulated_at(tree, tree.leaves)
    dropped = sum(tree.switches[address].counters["ahead"] for address in tree.leaves)
    assert counted.sum() + dropped == SEGMENTS * sum(s.stats["contributed"] for s in tree.members)
    if not any(session.stats["behind"] for session in tree.members):
        # (Who was behind resumes at the newest version, which may not be complete.)
        assert len({session.version for session in tree.members}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("segments", [13])
def test_losses_that_cut_sums_into_many_runs_are_repaired(segments: int) -> None:
    """A switch asks for all of them in turn: not for some that wait for others that it forgets."""
    tree = Tree(2, 0, seed=1, faults=Faults(loss=0.02))
    shape = Shape.of(4 * segments, DType.INT32, mode=Mode.ASYNCHRONOUS, elements=4)
    members = [
        tree.join_asynchronous(i, shape, JOB, 1000 + 10 * i, at=at, expected=4, heartbeat=1.0)
        for i, at in enumerate([at for at in tree.above for _ in range(2)])
    ]
    tree.run(lambda: all(s.member and s.gathered and s.joined == 4 for s in members))
    vector = np.ones(shape.numel, np.int32)

    def play(seconds: float) -> int:
        """Contribute whenever that is possible, for a time; the version then."""
        end = tree.now + seconds
        while tree.now < end:
            for session in members:
                if session.behind:
                    session.resume_at(session.newest, tree.now)
                while session.next_made() is not None:
                    pass
                if session.can_contribute:
                    session.contribute(vector)
            assert tree.step()
        sums = tree.switch.jobs[JOB].accelerator
        assert isinstance(sums, AsynchronousAccelerator)
        return sums.version

    before = play(0.15)
    assert before > 100  # 75 where only four sums were asked about at a time
    tree.faults = Faults()
    assert play(0.1) > before + 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_switches_that_restart_make_nothing_count_twice(seed: int) -> None:
    """Sums that a restarted switch held are lost; no version is made twice, or told in two ways."""
    tree = Versions(*TREES[seed % len(TREES)], seed=seed, faults=TYPICAL)
    tree.restarts = True
    tree.all_there()
    while tree.given < MOST:
        what = tree.random.random()
        number = tree.random.randrange(len(tree.members))
        if what < 0.02:
            tree.restart(tree.random.choice([SWITCH, *tree.above]))
            if tree.random.random() < 0.7:
                tree.let_pass(3.0)
                tree.run(lambda: all(s.member for s in tree.members))
        elif what < 0.04:
            tree.members[number] = tree.come(number)
        else:
            tree.contribute(tree.members[number])
        for _ in range(tree.random.randrange(12)):
            tree.step()
        if tree.random.random() < 0.02 and not any(s.can_contribute for s in tree.members):
            tree.let_pass(1.0)
    tree.settle()
    assert tree.counted()[:, :MOST].max() == 1
    assert len({session.newest for session in tree.members}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("key", [None, b"of all jobs"], ids=["open", "keyed"])
@pytest.mark.parametrize("seed", range(2))
def test_a_synchronous_job_beside(seed: int, key: bytes | None) -> None:
    """Both go through one tree, keyed or not; each has what is its own."""
    tree = Versions(2, 2, seed=seed, faults=TYPICAL, key=key)
    shape = Shape.of(23, DType.INT32, elements=4)
    rounds = [tree.join(20 + i, shape, 9, **tree.ways(i)) for i in range(len(tree.places))]
    tree.all_there()
    tree.gather(rounds)
    steps = 15
    for step in range(steps):
        vectors = [np.full(23, 1000 * step + i, np.int32) for i in range(len(rounds))]
        for session in tree.members:
            tree.contribute(session)
        assert all((out == sum(vectors)).all() for out in tree.allreduce(rounds, vectors))
    tree.settle()
    counted = tree.counted()
    assert counted[:, :MOST].max() == 1
    of_rounds = steps * shape.segments * len(rounds)
    assert counted.sum() == accumulated_at(tree, tree.leaves) - of_rounds
