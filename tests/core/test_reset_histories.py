"""Resets of jobs whose workers die and start again, several times in one round, in stars and trees.

A process that starts at the address of a dead one begins beyond that one's first round, so that
nothing the dead one has sent can count as its own. So it may begin beyond what the root has seen.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from iswitch.core.format.lines import line_of
from iswitch.core.format.packets import Address, Burst
from iswitch.core.format.wire import (
    TOS_CONTROL,
    Ack,
    Action,
    Control,
    DType,
    Join,
    MemberType,
    Round,
    Shape,
    Status,
    round_distance,
)
from tests.support.keyed import KEY
from tests.support.parts import JOB, Below, Bench, controls
from tests.support.states import ONES, effects
from tests.support.states import SHAPE as THREE
from tests.support.tree import TYPICAL, Tree
from tests.support.world import Faults, worker_address
from worker_lib.protocol.session import Dropped, Gone, Session, WasReset

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "8"))  # `make model` takes more
MOST = 60  # processes in a history
SHAPE = Shape.of(2 * MOST, DType.INT32, elements=MOST)


class History(Tree):
    """Workers that do one allreduce after the other, and resume where a Reset tells them.

    Args:
        fan_outs: of the tree.
        seed: of the history.
        keyed: the job has a key, and an attacker sends Resets again that it has recorded.
        whole: no sum may hold fewer contributions than there are workers.
    """

    def __init__(self, *fan_outs: int, seed: int, keyed: bool, whole: bool) -> None:
        self.whole = whole
        self.key = KEY if keyed else None
        super().__init__(*fan_outs, seed=seed, faults=TYPICAL, key=self.key)
        self.places = [session.switch for session in self.workers]
        self.born = 0  # processes so far
        self.identities: dict[Session, int] = {}
        self.outs: dict[Session, np.ndarray] = {}
        self.begun: set[tuple[int, int]] = set()  # identities with their rounds
        self.done: dict[Session, int] = {}  # the number of rounds
        self.resets: dict[Address, list[bytes]] = {}  # as they were sent, by receiver
        self.network.lose = self.recorded
        for place in range(len(self.places)):
            self.be_born(place)

    def recorded(self, source: Address, peer: Address, tos: int, payload: bytes) -> bool:
        from_above = source in self.switches and self.above.get(source) != peer
        if tos == TOS_CONTROL and payload[0] == Action.RESET and from_above:
            self.resets.setdefault(peer, []).append(payload)
        return self.lost(source, peer, tos, payload)

    def session(self, place: int) -> Session:
        return self.sessions[worker_address(place)]

    def be_born(self, place: int) -> None:
        session = self.join(
            place,
            SHAPE,
            at=self.places[place],
            incarnation=2000 + self.born,
            expected=len(self.places),
            heartbeat=1.0,
            whole=self.whole,
            key=self.key,
        )
        self.identities[session] = self.born
        self.outs[session] = np.zeros(SHAPE.numel, np.int32)
        self.done[session] = 0
        self.born += 1

    def go_on(self) -> None:
        self.pump()
        for address, session in self.sessions.items():
            identity = self.identities[session]
            for event in self.events[address]:
                if isinstance(event, WasReset):
                    later = [r for i, r in self.begun if i == identity]
                    ahead = [r for r in later if round_distance(r, event.round) > 0]
                    assert not ahead, f"{identity} is reset to {event.round}, has begun {ahead}"
                if isinstance(event, Dropped | Gone):
                    session.request(Action.RESET, None, self.now)
            self.events[address].clear()
            transfer = session.transfer
            if transfer is not None and transfer.done:
                self.check(session, transfer.round)
                session.finish()
                self.done[session] += 1
            if session.transfer is None and session.member and not session.asks(Action.RESET):
                self.begun.add((identity, session.round))
                vector = np.zeros((SHAPE.segments, MOST), np.int32)
                vector[:, identity] = 1
                session.begin(vector.reshape(-1), self.outs[session], self.now)

    def check(self, session: Session, round_: int) -> None:
        counts = self.outs[session].reshape(SHAPE.segments, MOST)
        assert counts.max() <= 1, "counted twice"
        assert (counts[:, self.identities[session]] == 1).all(), "not counted"
        if self.whole:
            assert (counts.sum(1) == len(self.places)).all(), "a sum of fewer, or of more"
        for row in counts:
            for identity in np.flatnonzero(row).tolist():
                assert (identity, round_) in self.begun, "the contribution to another round"

    def live(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.go_on()
            self.step()

    def replay(self) -> None:
        """Deliver a recorded Reset once more to where it went."""
        peer = self.random.choice(sorted(self.resets))
        payload = self.random.choice(self.resets[peer])
        home = self.network.home(peer)
        if home in self.switches:
            source, machine = self.above[home]._replace(line=line_of(7)), self.switches[home]
            machine.receive(Burst.single(source, TOS_CONTROL, payload), self.now)
        else:
            self.sessions[peer].receive(
                Burst.single(self.sessions[peer].switch, TOS_CONTROL, payload), self.now
            )

    def everybody_gets_on(self, by_reset: bool) -> None:
        """Have all workers do three rounds, without another Reset."""
        self.faults = Faults()
        end = self.now + 60
        while not all(session.member for session in self.sessions.values()):
            self.go_on()
            self.step()
            assert self.now < end, "not all are members\n" + "\n".join(self.trace[-40:])
        if by_reset:
            asker = self.random.choice(list(self.sessions.values()))
            asker.request(Action.RESET, None, self.now)
        goals = {session: self.done[session] + 3 for session in self.sessions.values()}
        while any(self.done[session] < goal for session, goal in goals.items()):
            self.go_on()
            assert self.step()
            state = [(self.identities[s], s.round, self.done[s]) for s in goals]
            assert self.now < end, f"no progress: {state}\n" + "\n".join(self.trace[-60:])
        self.faults = TYPICAL


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_reset_leads_back(seed: int, keyed: bool) -> None:
    """No Reset names a round before one that a worker has begun, and after one all get on."""
    shapes = [(3,), (2, 2), (2, 1, 2), (1, 3), (3, 1), (2, 1)]
    history = History(*shapes[seed % 6], seed=seed, keyed=keyed, whole=seed // 6 % 3 == 2)
    rng = history.random
    for _ in range(3):
        history.live(rng.choice((1e-3, 5e-3, 2e-2)))
        for _ in range(rng.randrange(1, 5)):
            place = rng.randrange(len(history.places))
            for _ in range(rng.choice((1, 1, 2, 4))):
                del history.sessions[worker_address(place)]
                history.live(2e-3)  # what it has sent arrives
                history.be_born(place)
                history.live(rng.choice((0.0, 3e-4, 1e-3, 1e-2)))
            if rng.random() < 0.4:
                asker = history.session(rng.randrange(len(history.places)))
                if asker.member:
                    asker.request(Action.RESET, None, history.now)
            if keyed and history.resets and rng.random() < 0.5:
                history.replay()
        history.everybody_gets_on(by_reset=not history.whole)


def joins(bench: Bench, who: int, request: int) -> list[Control]:
    """Return the control packets that a worker's Join brings about."""
    join = Join.for_shape(THREE, MemberType.WORKER)
    packet = Control(Action.JOIN, JOB, request, join)
    return controls(bench.send(who, TOS_CONTROL, packet.build()))


def begin_again(bench: Bench, who: int, times: int) -> None:
    """Processes of a worker die one after the other, and none has contributed."""
    for i in range(1, times + 1):
        told = [packet.value for packet in joins(bench, who, 1000 + i)]
        assert [value.round for value in told if isinstance(value, Ack)] == [1 + i]


def test_a_reset_is_not_before_the_first_round_of_a_worker() -> None:
    bench = Bench()
    bench.gather(THREE, 3)
    bench.contribute(0, THREE, 0, ONES)
    begin_again(bench, 2, 4)
    status, ack, sends = bench.control(0, Action.RESET)
    assert (status, ack.round) == (Status.OK, 5)
    assert effects(sends) == [f"{who}: RESET 5" for who in range(3)]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_switch_below_names_the_round_that_a_worker_has_begun(ahead: bool) -> None:
    """Its Reset goes beyond that; a worker's Reset names none."""
    bench = Bench()
    below = MemberType.SWITCH
    bench.join(0, THREE, below)
    bench.join(1, THREE)
    status, ack, sends = bench.control(0, Action.RESET, Round(5 if ahead else 0))
    assert (status, ack.round) == (Status.OK, 7 if ahead else 2)
    assert effects(sends) == [f"{who}: RESET {ack.round}" for who in range(2)]
    assert bench.control(1, Action.RESET, Round(9))[0] is Status.BAD_REQUEST


def test_a_switch_asks_for_another_reset_when_one_leads_a_worker_back() -> None:
    bench = Below()
    (join,) = joins(bench, 0, 1000)
    bench.answers(join)
    joins(bench, 1, 1000)
    bench.contribute(0, THREE, 0, ONES)
    begin_again(bench, 1, 4)

    def hears(number: int, round_: int) -> list[Control]:
        reset = Control(Action.RESET, JOB, number, Round(round_))
        sent = controls(bench.hears(TOS_CONTROL, [reset.build()]))
        return [packet for packet in sent if packet.action is Action.RESET]

    told, again, asked = hears(1, 2)
    assert told.value == again.value == Round(2)
    assert asked.value == Round(5)
    assert hears(1, 2) == hears(2, 2) == []  # repeats
    assert [packet.value for packet in hears(3, 7)] == [Round(7)] * 2
