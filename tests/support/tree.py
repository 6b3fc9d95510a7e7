"""A tree of switches in virtual time, with what is asked of it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.keys import Keys
from iswitch.core.format.packets import Address
from iswitch.core.format.wire import (
    Action,
    DType,
    Segments,
    Shape,
    Status,
    Value,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.support.world import SWITCH, Faults, World, worker_address
from worker_lib.protocol.session import Answered, Event

SHAPE = Shape.of(23, DType.FLOAT32, elements=4)  # six segments
ALL = Segments(0, 0, 6)
TYPICAL = Faults(loss=0.05, duplicate=0.05, jitter=200e-6)


def switch_address(number: int) -> Address:
    return Address(f"10.0.1.{number}", 26963)


class Tree(World):
    """A tree of switches: fan-outs from the root down, the last of workers."""

    def __init__(
        self,
        *fan_outs: int,
        seed: int = 0,
        faults: Faults | None = None,
        lease: float = 30.0,
        shape: Shape = SHAPE,
        key: bytes | None = None,
        **kwargs: object,
    ) -> None:
        self.lease = lease
        self.keys = Keys(default=key)
        super().__init__(self.new_root(), faults or Faults(), seed)
        self.above: dict[Address, Address] = {}
        numbers = itertools.count(1)
        level = [SWITCH]
        for fan_out in fan_outs[:-1]:
            below = []
            for parent in level:
                for _ in range(fan_out):
                    address = switch_address(next(numbers))
                    self.above[address] = parent
                    self.switches[address] = self.new_switch(address)
                    below.append(address)
            level = below
        places = [address for address in level for _ in range(fan_outs[-1])]
        ways: dict[str, Any] = {"expected": len(places), "heartbeat": 1.0, "key": key, **kwargs}
        self.workers = [self.join(i, shape, at=at, **ways) for i, at in enumerate(places)]

    def new_switch(self, address: Address) -> Switch:
        incarnation = 1000 + int(self.now * 100)
        limits = Limits(lease=self.lease)
        switch = Switch(limits, False, self.above[address], incarnation, self.keys)
        switch.record.listening = address.port
        return switch

    def new_root(self) -> Switch:
        return Switch(Limits(lease=self.lease), keys=self.keys)

    def restart(self, address: Address) -> None:
        if address == SWITCH:
            self.switch = self.new_root()
        else:
            self.switches[address] = self.new_switch(address)

    def vector(self, number: int, round_: int) -> np.ndarray:
        """Whole numbers, so that sums are exact in any order."""
        return (np.arange(SHAPE.numel) + 100 * number + 7 * (round_ % 50)).astype(np.float32)

    def all_there(self) -> None:
        self.gather(self.workers)
        everybody = len(self.workers)
        self.run(lambda: all(s.joined == everybody for s in self.workers), limit=10.0)

    def round_of_all(self) -> None:
        (round_,) = {session.round for session in self.workers}
        vectors = [self.vector(i, round_) for i in range(len(self.workers))]
        total = np.sum(vectors, 0)
        for out in self.allreduce(self.workers, vectors):
            assert (out == total).all()

    def begin(self, *numbers: int) -> dict[int, np.ndarray]:
        outs = {i: np.zeros(SHAPE.numel, np.float32) for i in numbers}
        for i in numbers:
            session = self.workers[i]
            session.begin(self.vector(i, session.round), outs[i], self.now)
        return outs

    def end(self, *numbers: int) -> None:
        sessions = [self.workers[i] for i in numbers]
        self.run(lambda: all(s.transfer is not None and s.transfer.done for s in sessions))
        for session in sessions:
            session.finish()

    def let_pass(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end and self.step():
            pass
        self.now = max(self.now, end)
        self.pump()

    def ask(self, number: int, action: Action, value: Value = None) -> Answered:
        """Have a worker ask for something; the answer."""
        request = self.workers[number].request(action, value, self.now)
        found: list[Answered] = []

        def is_answered() -> bool:
            answers = (e for e in self.news(number, Answered) if isinstance(e, Answered))
            found.extend(answer for answer in answers if answer.request == request)
            return bool(found)

        self.run(is_answered)
        return found[0]

    def news(self, number: int, *kinds: type[Event]) -> list[Event]:
        return [e for e in self.events[worker_address(number)] if isinstance(e, kinds)]

    def drop(self, number: int) -> None:
        """The last worker is gone."""
        assert number == len(self.workers) - 1
        del self.sessions[worker_address(number)]
        self.workers.pop()


@pytest.fixture(params=[(2, 3), (3, 1), (2, 2, 2), (1, 1, 1, 2), (4, 4)], ids=str)
def tree(request: pytest.FixtureRequest) -> Tree:
    return Tree(*request.param)


def reset(tree: Tree, number: int = 0) -> None:
    answer = tree.ask(number, Action.RESET)
    assert answer.status is Status.OK
    tree.run(lambda: {s.round for s in tree.workers} == {answer.ack.round})
    tree.let_pass(0.5)


def halt_and_reset(tree: Tree) -> None:
    assert tree.ask(1, Action.HALT).status is Status.OK
    tree.run(lambda: all(s.halted for s in tree.workers))
    assert tree.ask(2, Action.HELP, ALL).status is Status.HALTED
    reset(tree)
    assert not any(s.halted for s in tree.workers)


def leave(tree: Tree) -> None:
    assert tree.ask(3, Action.LEAVE).status is Status.OK
    tree.drop(3)
