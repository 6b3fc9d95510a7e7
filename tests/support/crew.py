"""Asynchronous sessions at a switch in virtual time, each with an owner that contributes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from iswitch.core.format.wire import (
    ROUND_MASK,
    DType,
    Mode,
    Op,
    Shape,
    Vector,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums.asynchronous import AsynchronousAccelerator
from iswitch.core.switch import Switch
from tests.support.world import Faults, World
from worker_lib.protocol.versions import AsynchronousSession

SHAPE = Shape.of(5 * 7 + 3, DType.INT32, Op.SUM, Mode.ASYNCHRONOUS, elements=7)


def unit(worker: int, number: int, shape: Shape = SHAPE) -> Vector:
    """A contribution that can be told from all others in a sum of few: no two pairs are alike."""
    value = 3 ** (worker % 4) * 1000 + number * 7 + worker
    return np.full(shape.numel, value, shape.dtype.numpy)


@dataclass
class Owner:
    """Contributes for a session, every few milliseconds, and takes what is made."""

    session: AsynchronousSession
    number: int
    crew: Crew
    contributed: int = 0
    enough: int = 0  # contributions to be made
    made: dict[int, bytes] = field(default_factory=dict)
    snapshots: list[int] = field(default_factory=list)  # the versions of those taken

    def act(self) -> None:
        session, now = self.session, self.crew.now
        if self.may_contribute and now >= self.due:
            session.contribute(unit(self.number, self.contributed, session.shape))
            self.contributed += 1
            self.think()
        while (news := session.next_made()) is not None:
            version, total = news
            assert version not in self.made
            if self.made or self.snapshots:  # none is left out
                before = (version - 1) & ROUND_MASK
                assert before in self.made or before == self.snapshots[-1]
            self.made[version] = total.tobytes()

    due = 0.0

    @property
    def may_contribute(self) -> bool:
        session = self.session
        return session.can_contribute and not session.behind and self.contributed < self.enough

    def think(self) -> None:
        pause = self.crew.random.expovariate(1 / self.crew.pause)
        self.due = self.crew.now + pause
        self.crew.network.at(self.due, lambda: None)

    def take_snapshot(self) -> None:
        """Take the state of whoever is furthest for its own, if it is behind."""
        furthest = max(self.crew.owners, key=lambda other: other.session.version)
        at = furthest.session.version
        if self.session.behind and not furthest.session.behind:
            self.snapshots.append(at)
            self.session.resume_at(at, self.crew.now)


class Crew(World):
    """A switch and asynchronous workers, whose owners act whenever anything happens."""

    pause = 0.003  # seconds, for a gradient

    def __init__(
        self,
        workers: int,
        faults: Faults | None = None,
        seed: int = 0,
        shape: Shape = SHAPE,
        **kwargs: object,
    ) -> None:
        super().__init__(Switch(Limits(lease=1e6)), faults, seed)
        self.owners: list[Owner] = []
        for i in range(workers):
            ways: dict[str, object] = {"expected": workers, "heartbeat": float("inf"), **kwargs}
            session = self.join_asynchronous(i, shape, **ways)  # type: ignore[arg-type]
            self.owners.append(Owner(session, i, self))

    def start(self) -> Crew:
        """All have joined, and begin at version 0."""
        self.run(lambda: all(o.session.member and o.session.has_threshold for o in self.owners))
        for owner in self.owners:
            owner.session.resume_at(0, self.now)
        return self  # so nobody has taken a snapshot yet

    def pump(self) -> None:
        for owner in getattr(self, "owners", ()):
            owner.act()
            owner.take_snapshot()
        super().pump()

    def contribute(self, each: int) -> Crew:
        for owner in self.owners:
            owner.enough += each
        return self

    def settle(self) -> int:
        """All contribute all, and come to the last version that is whole."""
        self.run(lambda: all(o.contributed == o.enough for o in self.owners))
        self.run(lambda: not any(o.session.in_flight for o in self.owners))
        late = self.now + 0.01  # all that is under way has arrived
        self.network.at(late, lambda: None)
        self.run(lambda: self.now >= late)
        last: int = min(state[0] for state in self.states())
        self.run(lambda: all(o.session.version == last for o in self.owners))
        return last

    def states(self) -> list[tuple[int, ...]]:
        """Of each segment at the switch, its version first."""
        accelerator = self.switch.jobs[7].accelerator
        assert isinstance(accelerator, AsynchronousAccelerator)
        return [accelerator.state.get(i) for i in range(accelerator.shape.segments)]

    def agree(self) -> list[dict[int, bytes]]:
        """All have the same versions with the same bits."""
        made = [owner.made for owner in self.owners]
        for version in set().union(*made):
            assert len({m[version] for m in made if version in m}) == 1, version
        return made
