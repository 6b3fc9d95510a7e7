"""A world that writes down each packet of a conversation, and loses chosen ones.

A line of a conversation is `A> seg 4.0` (A sends segment 0 of round 4) or `A< help 4.0+1` (the
switch asks A for it). Everything sent is in it, whether it arrives or not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import (
    FLAG_NEW,
    TOS_DATA,
    Ack,
    Action,
    Control,
    DType,
    Join,
    Round,
    Segments,
    Shape,
    Status,
    Threshold,
    split_seg,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.support.world import LATENCY, SWITCH, Faults, World, worker_address
from worker_lib.protocol.session import Event, Session

SHAPE = Shape.of(9, DType.INT32, elements=2)  # five segments, the last with one element


class Scene(World):
    """A world that writes down what is sent, and loses what it is told to lose."""

    def __init__(self, workers: int = 2, switch: Switch | None = None, **kwargs: object) -> None:
        super().__init__(switch or Switch(Limits(lease=1e6)), Faults())
        self.lines: list[tuple[float, str]] = []
        self.to_lose: list[str] = []
        self.since = 0.0
        self.workers = [
            self.join(i, SHAPE, **{"expected": workers, **kwargs})  # type: ignore[arg-type]
            for i in range(workers)
        ]

    def join(self, number: int, shape: Shape, job: int = 7, **kwargs: object) -> Session:
        """Without heartbeats, and asking for Help alone, but where the rest is looked at."""
        ways = {"heartbeat": float("inf"), "resends": False, **kwargs}
        return super().join(number, shape, job, **ways)

    def start(self) -> Scene:
        """All have joined; the conversation begins."""
        self.gather(self.workers)
        return self.quiet()

    def quiet(self) -> Scene:
        """Let what is under way arrive, and forget it."""
        self.pump()
        self.let_pass(3 * LATENCY if self.network.link_counts().under_way() else 0.0)
        self.lines.clear()
        self.since = self.now
        return self

    def lose(self, *lines: str) -> Scene:
        self.to_lose += lines
        return self

    def lost(self, source: Address, peer: Address, tos: int, payload: bytes) -> bool:
        worker, arrow = (source, ">") if peer == SWITCH else (peer, "<")
        line = f"{chr(ord('A') + worker.port - 40000)}{arrow} {tell(tos, payload)}"
        self.lines.append((self.now, line))
        if line in self.to_lose:
            self.to_lose.remove(line)
            return True
        return super().lost(source, peer, tos, payload)

    def let_pass(self, seconds: float) -> None:
        end = self.now + seconds
        self.pump()
        while (when := self.network.next_time()) is not None and when <= end:
            self.step()
            self.pump()
        self.now = max(self.now, end)

    def told(self) -> list[str]:
        return [line for _, line in self.lines]

    def recovery(self) -> list[str]:
        """What was said more than 10 ms after the conversation began: what a loss brings."""
        return [line for t, line in self.lines if t - self.since > 0.01]

    def times(self, line: str) -> list[float]:
        """When it was sent, in milliseconds since the conversation began."""
        return [round((t - self.since) * 1000, 2) for t, said in self.lines if said == line]

    def vector(self, number: int, round_: int) -> np.ndarray:
        """What a worker contributes to a round; no two are alike."""
        scale = 10 ** (2 + number) * (1 + round_ % 7)
        return np.arange(9, dtype=np.int32) + np.int32(scale)

    def total(self, round_: int, *numbers: int) -> np.ndarray:
        vectors = np.array([self.vector(i, round_) for i in numbers])
        return np.asarray(vectors.sum(0, np.int32))

    def begin(self, *numbers: int) -> dict[int, np.ndarray]:
        """These begin the allreduce of their round; where the results will be."""
        outs = {}
        for i in numbers:
            session = self.workers[i]
            outs[i] = np.zeros(9, np.int32)
            session.begin(self.vector(i, session.round), outs[i], self.now)
        return outs

    def end(self, *numbers: int) -> None:
        """Wait for the allreduces of these, and go on to the next round."""
        sessions = [self.workers[i] for i in numbers]
        self.run(lambda: all(s.transfer is not None and s.transfer.done for s in sessions))
        for session in sessions:
            session.finish()

    def round_of_all(self) -> None:
        """One allreduce of all workers, with the exact sums."""
        everyone = range(len(self.workers))
        (round_,) = {s.round for s in self.workers}
        outs = self.begin(*everyone)
        self.end(*everyone)
        for i in everyone:
            assert (outs[i] == self.total(round_, *everyone)).all(), i
        assert {s.round for s in self.workers} == {round_ + 1}

    def news(self, number: int) -> list[Event]:
        """The events of a worker since it was last asked."""
        self.pump()
        events = self.events[worker_address(number)]
        news = list(events)
        events.clear()
        return news


def tell(tos: int, payload: bytes) -> str:
    if tos == TOS_DATA:
        return "seg {}.{}".format(*split_seg(int.from_bytes(payload[:8], "big")))
    packet = Control.parse(payload)
    match packet.value:
        case Ack(action=action):
            text = f"ack {Action(action).name.lower()}"
            if packet.status:
                text += f" {Status(packet.status).name}"
            elif action == Action.HELP and packet.value.missing:
                text += f" {packet.value.missing:b}"
            return text
        case Segments(round_, index, count):
            return f"{packet.action.name.lower()} {round_}.{index}+{count}"
        case Round(round_):
            return f"reset {round_}"
        case Threshold(threshold):
            return f"seth {threshold}"
        case Join(flags=flags, round=round_) if flags & ~FLAG_NEW:
            return f"join {flags} {round_}"
    return packet.action.name.lower()


def in_round(round_: int, workers: str = "AB", lost: int | None = None) -> list[str]:
    """All that is said in a round, in some order; of a lost segment there is no aggregate."""
    there = [f"{w}> seg {round_}.{i}" for w in workers for i in range(5)]
    back = [f"{w}< seg {round_}.{i}" for w in workers for i in range(5) if i != lost]
    return sorted(there + back)


def second_round(*lost: str, workers: int = 2, seconds: float = 2.0) -> Scene:
    """Round 1 of a job, in which these are lost."""
    scene = Scene(workers).start()
    scene.round_of_all()
    scene.quiet().lose(*lost)
    scene.round_of_all()
    scene.let_pass(seconds)
    assert not scene.to_lose, "that was not sent"
    return scene


def outgoing(number: int, payload: bytes) -> Outgoing:
    return Outgoing.control(worker_address(number), payload)


def burst_from_switch(payload: bytes) -> Burst:
    from iswitch.core.format.packets import Burst
    from iswitch.core.format.wire import TOS_CONTROL

    return Burst.single(SWITCH, TOS_CONTROL, payload)


def bursts(workers: int = 2, **kwargs: Any) -> tuple[World, list[Session]]:
    """Workers that send bursts of eight segments."""
    world = World()
    shape = Shape.of(2000 * 80, DType.INT32, elements=2000)
    ways: dict[str, Any] = {"expected": workers, "heartbeat": float("inf"), **kwargs}
    sessions = [world.join(i, shape, **ways) for i in range(workers)]
    world.gather(sessions)
    vectors = [np.full(shape.numel, 10**i, np.int32) for i in range(workers)]
    for out in world.allreduce(sessions, vectors):
        assert (out == sum(vectors)).all()
    return world, sessions
