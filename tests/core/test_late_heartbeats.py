"""Late heartbeats of switches below, at parents that were restarted with them, in random trees.

A heartbeat of the process before may carry a larger Request than any of the process that lives: the
clock has stepped back, or both began in one second. Joins that are no heartbeats come late only to
the process for which they were meant (docs/protocol.md, "A switch that lost its state").
"""

from __future__ import annotations

import os
from functools import partial

import numpy as np
import pytest

from iswitch.core.format.packets import Address, Burst
from iswitch.core.format.wire import (
    FLAG_HEARTBEAT,
    NO_RANK,
    TOS_CONTROL,
    Action,
    Control,
    DType,
    Join,
    Shape,
)
from iswitch.core.switch import Switch
from iswitch.sim.runs import Run
from tests.support.tree import TYPICAL, Tree
from tests.support.world import SWITCH, Faults, worker_address
from worker_lib.protocol.session import Session

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "8"))  # `make model` takes more
MOST = 24  # processes in a history
SHAPE = Shape.of(2 * MOST, DType.INT32, elements=MOST)
LATEST = 0.06  # seconds that a copy comes late
FORMS = [(1, 1), (2, 1), (1, 2), (2, 2), (1, 1, 2), (1, 2, 1)]


class History(Tree):
    """Workers that do one allreduce after the other.

    Args:
        fan_outs: of the tree.
        seed: of the history.
        whole: the job is whole.
        numbered: workers ask for ranks.
    """

    def __init__(self, *fan_outs: int, seed: int, whole: bool, numbered: bool) -> None:
        super().__init__(*fan_outs, seed=seed, faults=TYPICAL)
        self.whole, self.numbered = whole, numbered
        self.places = [session.switch for session in self.workers]
        self.identities: dict[Session, int] = {}
        self.outs: dict[Session, np.ndarray] = {}
        self.done: dict[Session, int] = {}  # the number of rounds
        self.of_all = True  # every sum is: no worker was replaced lately
        self.copies = False  # come late
        self.network.lose = self.heard
        for place in range(len(self.places)):
            self.be_born(place)

    def be_born(self, place: int) -> None:
        identity = len(self.identities)
        session = self.join(
            place, SHAPE, at=self.places[place], incarnation=2000 + identity, heartbeat=0.1,
            expected=len(self.places), whole=self.whole, rank=place if self.numbered else NO_RANK,
        )  # fmt: skip
        self.identities[session] = identity
        self.outs[session] = np.zeros(SHAPE.numel, np.int32)
        self.done[session] = 0

    def heard(self, source: Address, peer: Address, tos: int, payload: bytes) -> bool:
        """Draw whether a Join of a switch below comes once more."""
        below = self.network.home(source)
        is_join = tos == TOS_CONTROL and payload[0] == Action.JOIN and below in self.above
        if is_join and self.copies and self.random.random() < 0.5:
            join = Control.parse(payload).value
            assert isinstance(join, Join)
            meant = None if join.flags & FLAG_HEARTBEAT else self.processes(below)
            late = self.now + self.random.random() * LATEST
            self.network.at(late, partial(self.comes_again, source, peer, payload, meant))
        return self.lost(source, peer, tos, payload)

    def processes(self, below: Address) -> tuple[Switch, Switch]:
        """The process of a switch, and that of its parent."""
        self.switches[SWITCH] = self.switch
        return self.switches[below], self.switches[self.above[below]]

    def comes_again(
        self, source: Address, peer: Address, payload: bytes, meant: tuple[Switch, Switch] | None
    ) -> None:
        below = self.network.home(source)
        if meant is None or meant == self.processes(below):
            burst = Burst.single(source, TOS_CONTROL, payload)
            self.network.deliver(self.network.nodes[self.network.home(peer)], Run(burst, self.now))

    def new_switch(self, address: Address) -> Switch:
        """A process whose clock stands near that of the one before."""
        switch = super().new_switch(address)
        hierarchy, before = switch.control.hierarchy, self.switches.get(address)
        assert hierarchy is not None
        if before is not None and before.control.hierarchy is not None:
            began = before.control.hierarchy._incarnation
            # Not equal numbers: docs/guarantees.md, "Two processes of one address within a second".
            hierarchy._incarnation = began + self.random.choice((-900, -900, -90, 90))
        return switch

    def go_on(self) -> None:
        self.pump()
        for address, session in self.sessions.items():
            self.events[address].clear()
            transfer = session.transfer
            if transfer is not None and transfer.done:
                self.check(session)
                session.finish()
                self.done[session] += 1
            if session.transfer is None and session.member:
                vector = np.zeros((SHAPE.segments, MOST), np.int32)
                vector[:, self.identities[session]] = 1
                session.begin(vector.reshape(-1), self.outs[session], self.now)

    def check(self, session: Session) -> None:
        counts = self.outs[session].reshape(SHAPE.segments, MOST)
        assert counts.max() <= 1, "counted twice"
        assert (counts[:, self.identities[session]] == 1).all(), "not counted"
        if self.of_all:
            everybody = sorted(self.identities[session] for session in self.sessions.values())
            for row in counts:
                assert np.flatnonzero(row).tolist() == everybody, "not of all"

    def live(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.go_on()
            self.step()

    def everybody_gets_on(self) -> None:
        self.faults, self.copies = Faults(), False
        goal = {session: self.done[session] + 4 for session in self.sessions.values()}
        end = self.now + 30
        while any(self.done[session] < rounds for session, rounds in goal.items()):
            self.go_on()
            assert self.step()
            assert self.now < end, "no progress:\n" + "\n".join(self.trace[-60:])
        self.faults, self.of_all = TYPICAL, True

    def replace(self, place: int) -> None:
        self.of_all = False
        del self.sessions[worker_address(place)]
        self.live(3e-3)  # what it has sent has come
        self.be_born(place)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_late_heartbeats_of_switches_end_no_job(seed: int) -> None:
    whole = seed % 3 == 0
    history = History(*FORMS[seed % 6], seed=seed, whole=whole, numbered=seed % 4 == 1)
    rng = history.random
    history.everybody_gets_on()
    for _ in range(4):
        if not whole and rng.random() < 0.5:
            history.copies = True
            for _ in range(rng.choice((1, 1, 2))):
                history.replace(rng.randrange(len(history.places)))
                history.live(rng.choice((1e-3, 0.02)))
            history.everybody_gets_on()
        history.copies = True
        history.live(rng.choice((1e-3, 0.03, 0.1)))
        below = rng.choice(list(history.above))
        both = [below, history.above[below]]
        rng.shuffle(both)
        for address in both:
            history.restart(address)
            history.live(rng.choice((1e-5, 1e-4, 1e-3, 0.01, 0.03)))
        history.live(rng.choice((1e-3, 0.03, 0.1)))
        history.everybody_gets_on()
