"""Sessions against a switch, each losing one chosen packet: what follows, packet by packet.

A line of a conversation is `A> seg 4.0` (A sends segment 0 of round 4) or `A< help 4.0+1` (the
switch asks A for it). Everything sent is in it, whether it arrives or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.packets import Address, Burst, Cutter, Outgoing
from iswitch.core.format.wire import (
    FLAG_NEW,
    NO_RANK,
    SEG_SIZE,
    TOS_CONTROL,
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
from tests.support.parts import rows_of, seg
from tests.support.world import LATENCY, SWITCH, Faults, World, worker_address
from worker_lib.protocol.session import Answered, Dropped, Event, Gone, Halted, Session, WasReset
from worker_lib.protocol.terms import RoundTerms
from worker_lib.protocol.transfer import Contribution, Transfer
from worker_lib.protocol.window import RoundTrip, SendWindow

pytestmark = pytest.mark.unit

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


def test_nothing_lost() -> None:
    scene = second_round()
    assert sorted(scene.told()) == in_round(1)
    assert scene.recovery() == []


# Data


@pytest.mark.parametrize("index", [0, 2, 4], ids=["first", "middle", "last"])
def test_lost_contribution(index: int) -> None:
    """Both ask after the timer's 20 ms; only A is asked, and sends only what was lost."""
    scene = second_round(f"A> seg 1.{index}")
    said = len(scene.told()) - 9
    assert sorted(scene.told()[:said]) == in_round(1, lost=index)
    assert scene.told()[said:] == scene.recovery() == [
        f"A> help 1.{index}+1",
        f"B> help 1.{index}+1",
        "A< ack help 1",
        f"A< help 1.{index}+1",
        "B< ack help 1",
        "A> ack help",
        f"A> seg 1.{index}",
        f"A< seg 1.{index}",
        f"B< seg 1.{index}",
    ]  # fmt: skip
    assert scene.times(f"A> help 1.{index}+1") == [20.1]  # 20 ms after the last aggregate
    assert scene.times(f"A> seg 1.{index}") == [0.0, 20.2]
    assert scene.workers[0].stats["sent_again"] == 1
    assert scene.workers[1].stats["sent_again"] == 0
    assert scene.switch.counters.drops() == {}


@pytest.mark.parametrize("index", [0, 2, 4], ids=["first", "middle", "last"])
def test_lost_aggregate(index: int) -> None:
    """The switch has it still: nobody contributes again."""
    scene = second_round(f"B< seg 1.{index}")
    assert sorted(scene.told()[:20]) == in_round(1)
    assert scene.told()[20:] == [f"B> help 1.{index}+1", "B< ack help", f"B< seg 1.{index}"]
    assert scene.switch.counters["retransmitted"] == 1
    assert scene.switch.counters.drops() == {}


def test_lost_contribution_and_the_rest_of_the_burst() -> None:
    """What lacks is named in ranges, and nothing between them is sent again."""
    scene = second_round("A> seg 1.0", "A> seg 1.1", "A> seg 1.3")
    lacking = ["1.0+2", "1.3+1"]
    assert scene.recovery() == [
        *(f"{w}> help {named}" for w in "AB" for named in lacking),
        "A< ack help 1", "A< help 1.0+2", "A< ack help 1", "A< help 1.3+1",
        "B< ack help 1", "B< ack help 1",
        "A> ack help", "A> seg 1.0", "A> seg 1.1", "A> ack help", "A> seg 1.3",
        "A< seg 1.0", "A< seg 1.1", "B< seg 1.0", "B< seg 1.1", "A< seg 1.3", "B< seg 1.3",
    ]  # fmt: skip
    assert scene.workers[0].stats["sent_again"] == 3


def test_everything_of_one_worker_lost() -> None:
    scene = second_round(*(f"B> seg 1.{i}" for i in range(5)))
    assert scene.recovery() == [
        "A> help 1.0+5", "B> help 1.0+5",
        "A< ack help 10", "B< help 1.0+5", "B< ack help 10",
        "B> ack help", *(f"B> seg 1.{i}" for i in range(5)),
        *(f"{w}< seg 1.{i}" for w in "AB" for i in range(5)),
    ]  # fmt: skip


def test_the_first_round_asks_after_50_ms() -> None:
    """Nothing is known of round trips yet."""
    scene = Scene(2).start()
    scene.lose("A> seg 0.4", *(f"B> seg 0.{i}" for i in range(4)))
    scene.round_of_all()
    assert scene.times("A> help 0.0+5") == scene.times("B> help 0.0+5") == [50.0]
    assert scene.times("A< help 0.4+1") == scene.times("B< help 0.0+4") == [50.05]
    assert [line for line in scene.recovery() if "> seg" in line] == [
        "A> seg 0.4", *(f"B> seg 0.{i}" for i in range(4))
    ]  # fmt: skip


# Help


def test_lost_help() -> None:
    """With a lost contribution: the others ask as well."""
    scene = second_round("A> seg 1.2", "A> help 1.2+1")
    assert scene.recovery() == [
        "A> help 1.2+1", "B> help 1.2+1",
        "B< ack help 1", "A< help 1.2+1", "A> ack help", "A> seg 1.2", "A< seg 1.2", "B< seg 1.2",
    ]  # fmt: skip


def test_lost_helps_are_asked_again_ever_more_rarely() -> None:
    """Twice the pause each time; each under a new number."""
    lost = ["A< seg 1.2", *["A> help 1.2+1"] * 6]
    scene = second_round(*lost)
    assert scene.recovery() == [*["A> help 1.2+1"] * 7, "A< ack help", "A< seg 1.2"]
    waits = np.diff([0.1, *scene.times("A> help 1.2+1")]).tolist()
    assert waits == pytest.approx([20, 40, 80, 160, 320, 640, 1000])
    assert scene.workers[0].stats["helps"] == 7
    # What came resets the pause.
    scene.quiet().lose("A< seg 2.0")
    scene.round_of_all()
    assert scene.times("A> help 2.0+1") == [20.1]


def test_lost_ack_of_help() -> None:
    """The aggregate comes all the same; nobody asks for the Ack."""
    scene = second_round("B< seg 1.1", "B< ack help")
    assert scene.recovery() == ["B> help 1.1+1", "B< ack help", "B< seg 1.1"]


def test_resent_aggregate_lost() -> None:
    scene = second_round("B< seg 1.1", "B< seg 1.1")
    assert scene.recovery() == ["B> help 1.1+1", "B< ack help", "B< seg 1.1"] * 2
    assert scene.times("B> help 1.1+1") == [20.1, 60.1]


def test_lost_relayed_help() -> None:
    """The switch repeats it after 20 ms; the askers need not."""
    scene = second_round("B> seg 1.4", "B< help 1.4+1")
    assert scene.recovery() == [
        "A> help 1.4+1", "B> help 1.4+1",
        "A< ack help 10", "B< help 1.4+1", "B< ack help 10",
        "B< help 1.4+1", "B> ack help", "B> seg 1.4", "A< seg 1.4", "B< seg 1.4",
    ]  # fmt: skip
    assert scene.times("B< help 1.4+1") == [20.15, 40.15]
    assert scene.switch.counters["helps_relayed"] == 1


def test_lost_ack_of_relayed_help() -> None:
    """The repeat is acked, and nothing is sent again for it."""
    scene = second_round("B> seg 1.4", "B> ack help")
    assert scene.recovery() == [
        "A> help 1.4+1", "B> help 1.4+1",
        "A< ack help 10", "B< help 1.4+1", "B< ack help 10",
        "B> ack help", "B> seg 1.4", "A< seg 1.4", "B< seg 1.4",
        "B< help 1.4+1", "B> ack help",
    ]  # fmt: skip
    assert scene.workers[1].stats["sent_again"] == scene.workers[1].stats["helped"] == 1
    assert scene.switch.counters.drops() == {}


def test_contribution_lost_twice() -> None:
    """A relay is acked, but what it asked for is lost: the askers ask again, under a new number."""
    scene = second_round("B> seg 1.4", "B> seg 1.4")
    once = [
        "A> help 1.4+1", "B> help 1.4+1",
        "A< ack help 10", "B< help 1.4+1", "B< ack help 10",
        "B> ack help", "B> seg 1.4",
    ]  # fmt: skip
    assert scene.recovery() == [*once, *once, "A< seg 1.4", "B< seg 1.4"]
    assert scene.times("A> help 1.4+1") == [20.1, 60.1]


def test_doubled_relay_is_acked_but_executed_once() -> None:
    scene = Scene(2).start()
    scene.begin(0)
    scene.let_pass(0.01)
    scene.quiet()
    help_ = Control(Action.HELP, 7, 99, Segments(0, 1, 2)).build()
    for _ in range(3):
        scene.network.transmit(SWITCH, [outgoing(0, help_)])
    scene.let_pass(0.001)
    assert scene.told() == [
        *["A< help 0.1+2"] * 3,
        "A> ack help", "A> seg 0.1", "A> seg 0.2", "A> ack help", "A> ack help",
    ]  # fmt: skip
    assert scene.workers[0].stats["helped"] == 1


def outgoing(number: int, payload: bytes) -> Outgoing:
    return Outgoing.control(worker_address(number), payload)


def test_nonsense_from_the_switch_is_ignored() -> None:
    scene = Scene(2).start()
    scene.round_of_all()
    scene.quiet()
    scene.news(0)
    nonsense = [
        b"\xff" * 24,
        b"short",
        Control(Action.HELP, 8, 50, Segments(0, 0, 1)).build(),  # of another job
        Control(Action.JOIN, 7, 51, Join.for_shape(SHAPE)).build(),  # not a switch's to say
        Control(Action.ACK, 7, 4711, Ack(Action.HELP)).build(),  # answers nothing
        Control(Action.ACK, 7, 1000, Ack(Action.JOIN, rank=9)).build(),  # answered before
    ]
    scene.network.transmit(SWITCH, [outgoing(0, payload) for payload in nonsense[2:]])
    for payload in nonsense[:2]:
        scene.sessions[worker_address(0)].receive(burst_from_switch(payload), scene.now)
    scene.let_pass(0.001)
    assert [line for line in scene.told() if ">" in line] == []
    assert scene.workers[0].rank == NO_RANK  # before all were there, no Ack told one
    assert scene.news(0) == []
    # A Help for segments that the vector does not have is acked; nothing is sent.
    scene.quiet()
    beyond = Control(Action.HELP, 7, 52, Segments(0, 4, 2)).build()
    scene.network.transmit(SWITCH, [outgoing(0, beyond)])
    scene.let_pass(0.001)
    assert scene.told() == ["A< help 0.4+2", "A> ack help"]
    scene.round_of_all()


def burst_from_switch(payload: bytes) -> Burst:
    from iswitch.core.format.packets import Burst
    from iswitch.core.format.wire import TOS_CONTROL

    return Burst.single(SWITCH, TOS_CONTROL, payload)


# Membership


def test_lost_join() -> None:
    scene = Scene(1).lose("A> join", "A> join")
    scene.gather(scene.workers)
    assert scene.told() == ["A> join"] * 3 + ["A< ack join"]
    assert scene.times("A> join") == [0.0, 50.0, 150.0]
    scene.round_of_all()


def test_requests_are_repeated_after_50_ms_doubling_to_1_s() -> None:
    scene = Scene(1).lose(*["A> join"] * 8)
    scene.gather(scene.workers)
    waits = np.diff(scene.times("A> join")).tolist()
    assert waits == pytest.approx([50, 100, 200, 400, 800, 1000, 1000, 1000])


def test_lost_ack_of_join() -> None:
    """The repeat is a heartbeat: the same rank, and nobody joins twice."""
    scene = Scene(1, expected=1).lose("A< ack join")
    scene.gather(scene.workers)
    assert scene.told() == ["A> join", "A< ack join"] * 2
    assert scene.workers[0].rank == 0
    assert scene.workers[0].joined == 1
    assert len(scene.switch.jobs[7].members) == 1
    scene.round_of_all()


@pytest.mark.parametrize("lost", ["A> leave", "A< ack leave"])
def test_lost_leave_or_its_ack(lost: str) -> None:
    """What waits for A alone is completed by the first copy that comes, and by that alone."""
    scene = Scene(2).start()
    scene.round_of_all()
    scene.quiet().news(0)
    scene.lose(lost)
    out = scene.begin(1)[1]
    number = scene.workers[0].request(Action.LEAVE, None, scene.now)
    scene.let_pass(0.045)
    came = lost != "A> leave"
    assert scene.workers[1].transfer is not None
    assert scene.workers[1].transfer.done == came
    scene.let_pass(0.2)
    acks = [line for line in scene.told() if line == "A< ack leave"]
    assert len(acks) == 1 + came
    assert scene.times("A> leave") == [0.0, 50.0]
    assert scene.told().count("B< seg 1.0") == 1
    (answer,) = scene.news(0)
    assert isinstance(answer, Answered)
    assert (answer.request, answer.status) == (number, Status.OK)
    assert [m.rank for m in scene.switch.jobs[7].members.contributors()] == [1]
    scene.end(1)
    assert (out == scene.total(1, 1)).all()


@pytest.mark.parametrize("lost", ["A> seth 1", "A< ack seth"])
def test_lost_request_or_its_ack(lost: str) -> None:
    """Repeated under its number until answered, and executed once."""
    scene = Scene(2).start()
    scene.quiet().news(0)
    scene.lose(lost)
    number = scene.workers[0].request(Action.SETH, Threshold(1), scene.now)
    scene.run(lambda: not scene.workers[0].requests)
    scene.let_pass(3.0)
    answered = 2 if lost == "A< ack seth" else 1
    assert sorted(scene.told()) == ["A< ack seth"] * answered + ["A> seth 1"] * 2
    (answer,) = scene.news(0)
    assert isinstance(answer, Answered)
    assert (answer.request, answer.action, answer.ack.threshold) == (number, Action.SETH, 1)


def test_forgotten_request_is_not_repeated() -> None:
    scene = Scene(2).start().lose("A> seth 1")
    scene.workers[0].forget(scene.workers[0].request(Action.SETH, Threshold(1), scene.now))
    scene.let_pass(3.0)
    assert scene.told() == ["A> seth 1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "kwargs", "job", "status"),
    [
        (Shape.of(10, DType.INT32, elements=2), {}, 7, Status.MISMATCH),
        (Shape.of(9, DType.FLOAT32, elements=2), {}, 7, Status.MISMATCH),
        (SHAPE, {"reproducible": True}, 7, Status.MISMATCH),
        (Shape.of(1 << 28, DType.INT32), {}, 8, Status.FULL),
    ],
)
def test_refused_join(shape: Shape, kwargs: dict[str, bool], job: int, status: Status) -> None:
    scene = Scene(2).start()
    odd = scene.join(5, shape, job=job, **kwargs)
    scene.let_pass(5.0)
    assert scene.told()[1:] == [f"F< ack join {status.name}"]
    assert not odd.member
    (answer,) = scene.news(5)
    assert isinstance(answer, Answered)
    assert (answer.action, answer.status) == (Action.JOIN, status)
    scene.lines.clear()
    odd.begin(np.zeros(shape.numel, np.int32), np.zeros(shape.numel, np.int32), scene.now)
    scene.let_pass(5.0)
    assert scene.told() == []  # who is no member sends nothing
    del scene.sessions[worker_address(5)]
    scene.round_of_all()


# Leases


def test_heartbeats_keep_a_membership() -> None:
    scene = Scene(2, Switch(Limits(lease=10.0)), heartbeat=3.0).start()
    scene.let_pass(100.0)
    assert scene.switch.counters["leases_run_out"] == 0
    assert scene.told().count("A> join 16 0") == scene.told().count("A< ack join") == 33
    scene.round_of_all()


def test_repeated_heartbeats_when_the_switch_is_silent() -> None:
    scene = Scene(1, heartbeat=3.0).start().lose(*["A> join 16 0"] * 3)
    scene.let_pass(4.0)
    assert scene.times("A> join 16 0") == pytest.approx([3000, 3050, 3150, 3350], abs=0.5)
    assert scene.told()[-1] == "A< ack join"


@pytest.mark.parametrize("other_stands", ["before", "beyond"])
def test_lease_ran_out(other_stands: str) -> None:
    """A worker that was paused comes back by its heartbeat, and is told if the job went on."""
    scene = Scene(2, Switch(Limits(lease=10.0)), heartbeat=3.0).start()
    scene.round_of_all()
    paused = scene.sessions.pop(worker_address(1))
    if other_stands == "beyond":
        scene.begin(0)
    scene.let_pass(15.0)
    assert scene.switch.counters["leases_run_out"] == 1
    scene.sessions[worker_address(1)] = paused
    paused.handle_timer(scene.now)
    scene.let_pass(1.0)
    assert scene.switch.jobs[7].members.contributor_addresses() == tuple(scene.sessions)
    (answer,) = [event for event in scene.news(1) if not isinstance(event, Dropped)][-1:]
    assert isinstance(answer, Answered)
    assert answer.status is Status.OK
    if other_stands == "beyond":
        scene.end(0)
    assert scene.workers[0].round == paused.round == (1 if other_stands == "before" else 2)
    scene.round_of_all()


def test_a_second_job_takes_the_address_over() -> None:
    """A port that a process left behind in one job is used by the next one in another."""
    scene = Scene(1).start()
    first = scene.workers[0]
    second = Session(RoundTerms(SWITCH, 8, SHAPE), 400)  # its clock stepped back, too
    scene.sessions[worker_address(0)] = second
    second.join(scene.now)
    scene.let_pass(1.0)
    told = ["A> join", "A< ack join DENIED", "A> join", "A< ack join"]
    assert scene.told()[:4] == told
    assert second.incarnation > first.incarnation
    assert scene.switch.jobs[7].shape is None
    scene.sessions[worker_address(0)] = first  # if it lives, it is told, and takes nothing back
    first.join(scene.now)
    scene.let_pass(1.0)
    (answer,) = (e for e in scene.news(0) if isinstance(e, Answered) and e.ack.round)
    assert (answer.status, first.member) == (Status.DENIED, False)
    assert set(scene.switch.jobs[8].members.by_address) == {worker_address(0)}


# Halt and Reset


def controller_scene() -> Scene:
    """Three workers that have done round 0; C halts and resets."""
    scene = Scene(3).start()
    scene.round_of_all()
    scene.quiet()
    for i in range(3):
        scene.news(i)
    return scene


def test_halt_then_reset_in_mid_round() -> None:
    scene = controller_scene()
    a, b, c = scene.workers
    scene.begin(0, 1)
    scene.let_pass(0.001)
    halt = c.request(Action.HALT, None, scene.now)
    scene.let_pass(0.001)
    assert scene.told()[10:] == [
        "C> halt", "C< ack halt", "A< halt", "B< halt", "C< halt",
        "A> ack halt", "B> ack halt", "C> ack halt",
    ]  # fmt: skip
    assert scene.news(0) == scene.news(1) == [Halted()]
    news = scene.news(2)
    assert [type(event) for event in news] == [Answered, Halted]
    assert isinstance(news[0], Answered)
    assert (news[0].request, news[0].status) == (halt, Status.OK)
    # Until the Reset only a question a second, whether it still holds, also of who begins now.
    scene.lines.clear()
    scene.begin(2)
    scene.let_pass(30.0)
    for name in "ABC":
        asked = [line for line in scene.told() if line.startswith(f"{name}> ")]
        assert set(asked) == {f"{name}> help 1.0+1"}
        assert 29 <= len(asked) <= 32
    told = [line for line in scene.told() if "< " in line]
    assert set(told) == {f"{name}< ack help HALTED" for name in "ABC"}
    scene.lines.clear()
    c.request(Action.RESET, None, scene.now)
    scene.let_pass(0.001)
    assert scene.told() == [
        "C> reset", "C< ack reset", "A< reset 3", "B< reset 3", "C< reset 3",
        "A> ack reset", "B> ack reset", "C> ack reset",
    ]  # fmt: skip
    assert scene.news(0) == scene.news(1) == [WasReset(3)]
    for session in (a, b):
        assert (session.transfer, session.round, session.halted) == (None, 3, False)
    (answer,) = scene.news(2)  # who asked for it needs no other event
    assert isinstance(answer, Answered)
    assert answer.ack.round == c.round == 3
    for _ in range(3):
        scene.round_of_all()
    assert {s.round for s in scene.workers} == {6}
    assert scene.switch.counters.drops() == {}


@pytest.mark.parametrize("lost", ["B< halt", "B> ack halt", "B< reset 3", "B> ack reset"])
def test_lost_halt_or_reset(lost: str) -> None:
    """The switch repeats both after 20 ms; a repeat is acked and not executed again."""
    scene = controller_scene()
    c = scene.workers[2]
    scene.lose(lost)
    scene.begin(0, 1)
    scene.let_pass(0.001)
    c.request(Action.HALT, None, scene.now)
    scene.let_pass(1.0)
    c.request(Action.RESET, None, scene.now)
    scene.let_pass(1.0)
    assert scene.to_lose == []
    again = 2 if "halt" in lost else 1
    assert scene.told().count("B< halt") == again
    assert scene.told().count("B< reset 3") == 3 - again
    first, second = scene.times("B< halt" if "halt" in lost else "B< reset 3")
    assert second - first == pytest.approx(20)
    assert scene.news(0) == scene.news(1) == [Halted(), WasReset(3)]
    assert scene.told().count("A< halt") == scene.told().count("A< reset 3") == 1
    scene.round_of_all()
    scene.round_of_all()


def test_data_sent_while_halted_is_void() -> None:
    """A Halt that has not reached B yet: what B sends is dropped, and B learns it by asking."""
    scene = controller_scene()
    scene.lose(*["B< halt"] * 10)
    scene.workers[2].request(Action.HALT, None, scene.now)
    scene.let_pass(0.001)
    scene.begin(1)
    scene.let_pass(0.5)
    assert scene.switch.counters.drops() == {"halted": 5}
    assert scene.told().count("B> help 1.0+5") == 1
    assert scene.told().count("B< ack help HALTED") == 1
    assert scene.news(1) == [Halted()]
    scene.workers[0].request(Action.RESET, None, scene.now)
    scene.let_pass(0.1)
    assert scene.news(1) == [WasReset(2)]  # nothing had been contributed to round 1
    scene.round_of_all()


def test_reset_while_idle() -> None:
    """Everybody is between two rounds, or one has not begun the same round."""
    scene = controller_scene()
    scene.workers[0].request(Action.RESET, None, scene.now)
    scene.let_pass(0.001)
    assert scene.news(1) == scene.news(2) == [WasReset(2)]
    (answer,) = scene.news(0)
    assert isinstance(answer, Answered)
    assert answer.ack.round == 2
    assert {s.round for s in scene.workers} == {2}
    scene.round_of_all()


@pytest.mark.parametrize("lost", ["A< reset 2", "A< ack reset"])
def test_who_resets_is_told_once(lost: str) -> None:
    """By the Ack or by the relay, whichever comes first; what comes later disturbs nothing."""
    scene = controller_scene()
    scene.lose(lost)
    scene.workers[0].request(Action.RESET, None, scene.now)
    scene.let_pass(0.001)
    assert scene.workers[0].round == 2
    outs = scene.begin(0)
    scene.let_pass(0.3)  # the lost one is repeated in the middle of the round
    assert scene.told().count(lost) == 2
    outs |= scene.begin(1, 2)
    scene.end(0, 1, 2)
    assert all((out == scene.total(2, 0, 1, 2)).all() for out in outs.values())
    assert [type(event) for event in scene.news(0)] == [Answered]


def test_a_newcomer_that_resets_to_its_own_first_round_is_told_once() -> None:
    """It was to begin where the Reset leads: the Ack tells it, and the relay nothing more."""
    scene = controller_scene()
    newcomer = scene.workers[0]
    newcomer.round = 2  # as one that takes a dead worker's place is told
    scene.begin(0)
    newcomer.request(Action.RESET, None, scene.now)
    scene.let_pass(0.001)
    assert [type(event) for event in scene.news(0)] == [Answered]
    assert newcomer.transfer is None
    scene.round_of_all()


def test_late_answer_halted_after_a_reset() -> None:
    """An Ack that overtakes the Reset's relay must not suspend the worker for good."""
    scene = controller_scene()
    b = scene.workers[1]
    scene.begin(1)
    scene.lose("B< ack help 101")
    scene.let_pass(0.03)
    (number,) = b._help_requests
    scene.workers[0].request(Action.RESET, None, scene.now)
    scene.let_pass(0.001)
    late = Control(Action.ACK, 7, number, Ack(Action.HELP), Status.HALTED).build()
    scene.network.transmit(SWITCH, [outgoing(1, late)])
    scene.let_pass(0.001)
    assert not b.halted
    scene.round_of_all()


def test_two_resets_in_a_row() -> None:
    scene = controller_scene()
    for _ in range(2):
        scene.workers[0].request(Action.RESET, None, scene.now)
    scene.let_pass(0.1)
    assert {s.round for s in scene.workers[1:]} == {4}
    scene.round_of_all()


def test_old_contributions_are_not_sent_after_a_reset() -> None:
    """Numbers may come again after many rounds; what was sent before a Reset is no round's."""
    scene = controller_scene()
    scene.workers[0].request(Action.RESET, None, scene.now)
    scene.let_pass(0.1)
    scene.quiet()
    old = Control(Action.HELP, 7, 77, Segments(0, 0, 5)).build()
    scene.network.transmit(SWITCH, [outgoing(1, old)])
    scene.let_pass(0.1)
    assert scene.told() == ["B< help 0.0+5", "B> ack help"]


# A switch that lost its state


def test_switch_restarted_in_mid_round() -> None:
    """A has contributed, B has not begun: both come back to round 1 and its sum is exact."""
    scene = Scene(2).start()
    scene.round_of_all()
    scene.quiet()
    out_a = scene.begin(0)[0]
    scene.let_pass(0.001)
    scene.switch = Switch()
    scene.let_pass(0.05)
    assert scene.told() == [
        *(f"A> seg 1.{i}" for i in range(5)),
        "A> help 1.0+5", "A< ack help NOT_MEMBER",
        "A> join 1 1", "A< ack join",
        *(f"A> seg 1.{i}" for i in range(5)),
    ]  # fmt: skip
    scene.lines.clear()
    out_b = scene.begin(1)[1]
    scene.end(0, 1)
    assert (out_a == scene.total(1, 0, 1)).all()
    assert (out_b == scene.total(1, 0, 1)).all()
    assert scene.told().count("B> join 1 1") == 1
    assert [s.stats["rejoins"] for s in scene.workers] == [1, 1]
    for _ in range(3):
        scene.round_of_all()


def test_switch_restarted_between_one_workers_rounds_and_anothers() -> None:
    """A has all of round 1, B lacks segment 3: A gives its contribution to round 1 again."""
    scene = Scene(2).start()
    scene.round_of_all()
    scene.quiet().lose("B< seg 1.3")
    out_b = scene.begin(0, 1)[1]
    scene.end(0)
    out_a = scene.begin(0)[0]
    scene.let_pass(0.001)
    scene.switch = Switch()
    scene.lines.clear()
    scene.end(1)
    assert (out_b == scene.total(1, 0, 1)).all()
    assert [line for line in scene.told() if line.startswith("A> seg 1")] == ["A> seg 1.3"]
    assert [line for line in scene.told() if line.startswith("B> seg 1")] == ["B> seg 1.3"]
    outs = scene.begin(1)
    scene.end(0, 1)
    assert (out_a == scene.total(2, 0, 1)).all()
    assert (outs[1] == scene.total(2, 0, 1)).all()
    scene.round_of_all()


def test_not_restart_safe() -> None:
    """Without its last contribution A cannot help B, which waits for it rather than be wrong."""
    scene = Scene(2, restart_safe=False).start()
    scene.round_of_all()
    scene.quiet().lose("B< seg 1.3")
    scene.begin(0, 1)
    scene.end(0)
    scene.begin(0)
    scene.let_pass(0.001)
    scene.switch = Switch()
    scene.lines.clear()
    scene.let_pass(5.0)
    assert "A> join 1 2" in scene.told()
    assert "B> join 1 1" in scene.told()
    assert not any(line.startswith("A> seg 1") for line in scene.told())
    b = scene.workers[1]
    assert b.transfer is not None
    assert b.transfer.missing() == [(3, 4)]
    assert b.waiting_for == 1 << 0  # the seat of A


def test_not_restart_safe_without_a_restart() -> None:
    scene = Scene(3, restart_safe=False).start()
    for round_ in range(4):
        scene.quiet().lose(f"A> seg {round_}.1", f"B< seg {round_}.2")
        scene.round_of_all()
        assert not scene.to_lose


def test_the_numbers_of_a_restarted_switch_are_new() -> None:
    """It relays under those that the one before had used up; what it relays is executed."""
    scene = Scene(1).start()
    scene.begin(0)
    (a,) = scene.workers
    told = Control(Action.HELP, 7, 1, Segments(0, 0, 1)).build()

    def hear(payload: bytes) -> int:
        a.receive(Burst.single(SWITCH, TOS_CONTROL, payload), scene.now)
        return a.stats["helped"]

    assert [hear(told), hear(told)] == [1, 1]
    for status in (Status.NOT_MEMBER, Status.OK):  # to a heartbeat, and to the Join that follows
        if a.member:
            a.join(scene.now)
        hear(Control(Action.ACK, 7, a.incarnation, Ack(Action.JOIN), status).build())
    assert a.member
    assert a.stats["rejoins"] == 1
    assert hear(told) == 2


def test_the_halts_of_a_restarted_switch_are_new() -> None:
    """An older number would be a repeat's, were it the same switch."""
    scene = Scene(1).start()
    (a,) = scene.workers

    def hear(action: Action, request: int, value: Ack | Round | None, status: int = 0) -> bool:
        payload = Control(action, 7, request, value, Status(status)).build()
        a.receive(Burst.single(SWITCH, TOS_CONTROL, payload), scene.now)
        return a.halted

    assert hear(Action.HALT, 5, None)
    assert not hear(Action.RESET, 6, Round(3))
    assert not hear(Action.HALT, 4, None)
    a.join(scene.now)
    hear(Action.ACK, a.incarnation, Ack(Action.JOIN), Status.NOT_MEMBER)
    assert not hear(Action.ACK, a.incarnation, Ack(Action.JOIN, round=3))
    assert hear(Action.HALT, 1, None)


@pytest.mark.parametrize("stale", [2, 3, 4])
def test_a_reset_for_the_process_before_at_this_address_is_not_taken(stale: int) -> None:
    """Nor is a late copy: it names no round ahead of the worker's own."""
    scene = Scene(1).start()
    (a,) = scene.workers
    a.resume_at(4)
    scene.begin(0)
    scene.news(0)

    def hear(request: int, round_: int) -> None:
        payload = Control(Action.RESET, 7, request, Round(round_)).build()
        a.receive(Burst.single(SWITCH, TOS_CONTROL, payload), scene.now)

    hear(1, stale)
    assert a.round == 4
    assert a.transfer is not None
    hear(2, 6)
    assert a.round == 6
    assert scene.news(0) == [WasReset(6)]


def test_restarted_switch_while_idle() -> None:
    """Its loss is found out by the next round, which begins where the workers stand."""
    scene = Scene(2).start()
    for _ in range(3):
        scene.round_of_all()
    scene.switch = Switch()
    scene.round_of_all()
    scene.round_of_all()


def test_the_job_went_on_without_it() -> None:
    """The switch took B out; B comes back later and is told from where."""
    scene = Scene(2).start()
    scene.round_of_all()
    scene.quiet().news(1)
    job = scene.switch.jobs[7]
    scene.switch.control.lifecycle.remove(job, job.members.by_address[worker_address(1)], scene.now)
    for round_ in range(1, 4):
        out = scene.begin(0)[0]
        scene.end(0)
        assert (out == scene.total(round_, 0)).all()
    scene.begin(1)
    scene.let_pass(0.1)
    assert [e for e in scene.news(1) if not isinstance(e, Answered)] == [Dropped(1, 4)]
    assert scene.workers[1].transfer is None
    scene.round_of_all()
    assert scene.workers[0].round == 5


# H below the number of workers


def test_slow_worker_gets_aggregates_without_having_contributed() -> None:
    scene = threshold_of_two()
    outs = scene.begin(0, 1)
    scene.end(0, 1)
    assert all((out == scene.total(0, 0, 1)).all() for out in outs.values())
    # C was sent the aggregates too, but had no round under way.
    scene.let_pass(0.01)
    assert scene.told().count("C< seg 0.0") == 1
    assert scene.workers[2].stats["useless"] == 5
    scene.quiet()
    out = scene.begin(2)[2]
    scene.end(2)
    assert (out == scene.total(0, 0, 1)).all()
    assert scene.switch.counters.drops() == {"late": 5}
    assert sorted(scene.told()) == in_round(0, "C")


def test_a_sum_over_a_vector_in_place_does_not_get_into_its_contribution() -> None:
    """Of a slow worker: the sum comes before it has laid out what it contributes."""
    shape = Shape.of(6, elements=2)
    contribution = Contribution(shape)
    contribution.begin(0)
    vector = np.arange(6, dtype=np.float32)
    right = vector.copy()
    transfer = Transfer(contribution, vector, vector)
    total = rows_of([seg(0, i) + np.full(2, 9, np.float32).tobytes() for i in range(3)])
    assert transfer.take(total, total.shape[1], Cutter(shape), 0.0) == (3, 0)
    assert vector.tolist() == [9] * 6
    rows, _ = contribution.rows(0, 3)
    assert rows[:, SEG_SIZE:].tobytes() == right.tobytes()


def test_slow_worker_takes_what_comes_before_it_has_sent_all() -> None:
    """What has its aggregate need not be sent any more."""
    scene = threshold_of_two()
    slow = scene.workers[2]
    slow.window.size = slow.window.ceiling = 0  # one burst at a time, and only when all is back
    slow._burst = 2
    outs = scene.begin(0, 1, 2)
    scene.pump()
    scene.end(0, 1, 2)
    assert all((out == scene.total(0, 0, 1)).all() for out in outs.values())
    sent = [line for line in scene.told() if line.startswith("C> seg")]
    assert sent == ["C> seg 0.0", "C> seg 0.1"]


def fall_behind(scene: Scene, rounds: int) -> Session:
    """C begins its round, and sends nothing of it while the others do some."""
    slow = scene.workers[2]
    scene.begin(2)
    del scene.sessions[worker_address(2)]
    for _ in range(rounds):
        scene.begin(0, 1)
        scene.end(0, 1)
    scene.quiet()
    scene.sessions[worker_address(2)] = slow
    scene.news(2)
    scene.let_pass(0.2)
    return slow


def threshold_of_two() -> Scene:
    scene = Scene(3).start()
    scene.workers[0].request(Action.SETH, Threshold(2), scene.now)
    scene.let_pass(0.01)
    return scene


def test_worker_too_slow_is_told_so() -> None:
    scene = threshold_of_two()
    scene.begin(0, 1)
    scene.end(0, 1)
    scene.begin(2)
    scene.end(2)
    slow = fall_behind(scene, 4)
    assert scene.news(2) == [Gone(1, 4)]
    assert (slow.transfer, slow.round) == (None, 4)
    assert [line for line in scene.told() if "C> seg" not in line] == [
        "C> help 1.0+5", "C< ack help GONE"
    ]  # fmt: skip
    out = scene.begin(2)[2]
    scene.end(2)
    assert (out == scene.total(4, 0, 1)).all()
    assert slow.round == 5


def test_worker_too_slow_from_the_start_is_told_so() -> None:
    """It has never contributed, so that its first round is not settled."""
    scene = threshold_of_two()
    slow = fall_behind(scene, 4)
    assert scene.news(2) == [Gone(0, 3)]
    out = scene.begin(2)[2]
    scene.end(2)
    assert (out == scene.total(3, 0, 1)).all()
    assert slow.round == 4


# Timer and window


def test_round_trip_timer() -> None:
    """The numbers of RFC 6298, section 2, with alpha 1/8, beta 1/4, K 4."""
    timer = RoundTrip(floor=0.0, ceiling=100.0)
    assert timer.timeout == 0.05  # before the first sample
    timer.sample(1.0)
    assert (timer.smoothed, timer.deviation, timer.timeout) == (1.0, 0.5, 3.0)
    timer.sample(2.0)
    # RTTVAR = 3/4 * 0.5 + 1/4 * |1 - 2|, with the SRTT of before; SRTT = 7/8 * 1 + 1/8 * 2
    assert (timer.smoothed, timer.deviation, timer.timeout) == (1.125, 0.625, 3.625)
    timer.sample(1.125)
    assert (timer.smoothed, timer.deviation) == (1.125, 0.46875)
    timer.backoff = 4.0
    assert timer.timeout == 4 * (1.125 + 4 * 0.46875)


def test_round_trip_bounds() -> None:
    timer = RoundTrip(floor=0.02, ceiling=1.0)
    for _ in range(50):
        timer.sample(1e-4)
    assert timer.timeout == 0.02
    timer.backoff = 8.0
    assert timer.timeout == 0.16
    timer.backoff = 64.0
    assert timer.timeout == 1.0
    timer.sample(10.0)
    timer.backoff = 1.0
    assert timer.timeout == 1.0


def test_asked_for_segments_are_not_measured() -> None:
    """Karn: which of two copies an aggregate answers cannot be told."""
    scene = Scene(2).start()
    scene.lose(*(f"A> seg 0.{i}" for i in range(5)))
    scene.round_of_all()
    assert scene.workers[0].round_trip.smoothed is None
    scene.lose("A> seg 1.0", "A> seg 1.4")
    scene.round_of_all()
    assert scene.workers[0].round_trip.smoothed == pytest.approx(2 * LATENCY)


def test_send_window() -> None:
    window = SendWindow(burst=10, ceiling=200)
    assert window.size == 40
    window.returned(40)
    assert window.size == 80  # slow start: doubles with every window
    window.returned(80)
    assert window.size == 160
    window.lost()
    assert window.size == window.threshold == 80
    window.returned(80)
    assert window.size == 90  # a burst more with every window
    for _ in range(1000):
        window.returned(100)
    assert window.size == 200  # the ceiling
    for _ in range(10):
        window.lost()
    assert window.size == window.threshold == 10  # the floor: a burst


def test_send_window_smaller_than_four_bursts() -> None:
    window = SendWindow(burst=10, ceiling=25)
    assert window.size == 25
    window.lost()
    assert window.size == 12.5
    window.lost()
    assert window.size == 10
    tight = SendWindow(burst=10, ceiling=4)
    tight.lost()
    tight.returned(100)
    assert tight.size == 4


def test_data_waits_for_the_window() -> None:
    """Eight segments a burst, four bursts at first; then as many as come back, and as many more."""
    world = World()
    shape = Shape.of(2000 * 400, DType.INT32, elements=2000)
    session = world.join(0, shape, expected=1, ceiling=1 << 20)
    world.gather([session])
    out = np.empty(shape.numel, np.int32)
    session.begin(np.arange(shape.numel, dtype=np.int32), out, world.now)
    most = []
    while not session.transfer.done:  # type: ignore[union-attr]
        world.pump()
        most.append(session.transfer.in_flight)  # type: ignore[union-attr]
        assert most[-1] <= session.window.size
        world.step()
    assert most[0] == 32
    assert max(most) == 128  # whole bursts below 1 MiB
    assert (out == np.arange(shape.numel)).all()


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


def lose_first(world: World, *indices: int) -> None:
    """Lose the first worker's contributions to these segments, the first time they are sent."""
    left = set(indices)

    def lose(to_switch: bool, tos: int, payload: bytes) -> bool:
        index = int.from_bytes(payload[4:8], "big")
        mine = to_switch and tos == TOS_DATA and index in left
        left.discard(index) if mine else None
        return mine

    world.faults.lose = lose


@pytest.mark.parametrize("resends", [True, False])
@pytest.mark.parametrize(
    ("lost", "halved"), [((8, 17, 33), False), (range(16, 24), True), (range(16, 48), True)]
)
def test_a_lost_burst_halves_the_window_once(
    lost: Sequence[int], halved: bool, resends: bool
) -> None:
    """Single packets are a link's to lose, and no reason to send less."""
    world, sessions = bursts(workers=1, resends=resends)
    (session,) = sessions
    session.window.threshold, session.window.size = float("inf"), 64.0
    lose_first(world, *lost)
    world.allreduce(sessions, [np.ones(session.shape.numel, np.int32)])
    assert session.stats["sent_again"] == len(lost)
    assert (session.window.threshold < 128) == halved
    if halved:
        assert session.window.threshold >= 32  # not halved twice


# What is sent again without being asked for


def second_round_with_resends(*lost: str, workers: int = 2) -> Scene:
    scene = Scene(workers, resends=True).start()
    scene.round_of_all()
    scene.quiet().lose(*lost)
    scene.round_of_all()
    scene.let_pass(1.0)
    assert not scene.to_lose, "that was not sent"
    return scene


@pytest.mark.parametrize("index", [0, 2])
def test_lost_contribution_is_sent_again_when_later_ones_come(index: int) -> None:
    """Neither knows whose was lost: both send theirs, and A's counts.

    B's comes when the sum is complete, so B gets it twice.
    """
    scene = second_round_with_resends(f"A> seg 1.{index}")
    said = len(scene.told()) - 5
    assert sorted(scene.told()[:said]) == in_round(1, lost=index)
    assert scene.told()[said:] == [
        f"A> seg 1.{index}", f"B> seg 1.{index}",
        f"A< seg 1.{index}", f"B< seg 1.{index}", f"B< seg 1.{index}",
    ]  # fmt: skip
    assert scene.times(f"A> seg 1.{index}")[1] < 0.5  # milliseconds
    assert scene.switch.counters.drops() == {"late": 1}


@pytest.mark.parametrize("index", [0, 2])
def test_lost_aggregate_is_sent_again_when_later_ones_come(index: int) -> None:
    scene = second_round_with_resends(f"B< seg 1.{index}")
    assert sorted(scene.told()[:20]) == in_round(1)
    assert scene.told()[20:] == [f"B> seg 1.{index}", f"B< seg 1.{index}"]
    assert scene.switch.counters["retransmitted"] == 1
    assert scene.switch.counters.drops() == {"late": 1}


@pytest.mark.parametrize("lost", ["A> seg 1.4", "A< seg 1.4"])
def test_the_last_segment_lost_is_sent_again_after_a_silence(lost: str) -> None:
    scene = second_round_with_resends(lost)
    assert scene.times("A> seg 1.4") == [0.0, 2.1]  # nothing comes for 2 ms
    assert not any("help" in line for line in scene.told())


def test_lost_again_and_again() -> None:
    """Sent again ever more rarely; then Help is asked for."""
    scene = second_round_with_resends(*["A> seg 1.2"] * 9)
    times = scene.times("A> seg 1.2")
    assert len(times) == 10
    assert times[4] < 10  # milliseconds
    assert times[-1] > 20
    assert scene.told().count("A> help 1.2+1") >= 1


@pytest.mark.parametrize("own", [True, False])
def test_what_has_come_need_not_come_again_when_a_round_is_taken_up_again(own: bool) -> None:
    """But where somebody else may have written over it."""
    world, (session,) = bursts(workers=1)
    vector = np.arange(session.shape.numel, dtype=np.int32)
    before = dict(session.stats)
    lost = range(40, 80)
    world.faults = Faults(lose=lambda up, tos, p: not up and tos == TOS_DATA and p[7] in lost)
    session.begin(vector, np.empty_like(vector), world.now, own)
    world.run(lambda: session.transfer is not None and session.transfer.remaining == 40)
    session.abandon()
    world.faults = Faults()
    out = np.empty_like(vector)
    session.begin(vector, out, world.now, own)
    world.run(lambda: session.transfer is not None and session.transfer.done)
    session.finish()
    assert (out == vector).all()
    assert session.stats["received"] - before["received"] == (80 if own else 120)
    # The next round is another one.
    out = world.allreduce([session], [vector])[0]
    assert (out == vector).all()


@pytest.mark.parametrize("seed", range(3))
def test_bursts_of_losses_in_a_long_vector(seed: int) -> None:
    """Help, probes and what is sent again may name the same segments; the window stays open."""
    shape = Shape.of(2000, DType.INT32, elements=1)
    world = World(faults=Faults(), seed=seed)
    sessions = [world.join(i, shape, expected=3, heartbeat=1e9) for i in range(3)]
    world.gather(sessions)
    world.faults = Faults(loss=0.2, burst=8)
    vectors = [np.full(2000, 10**i, np.int32) for i in range(3)]
    for out in world.allreduce(sessions, vectors):
        assert (out == 111).all()
    assert all(s.stats["sent_again"] < 5 * 2000 for s in sessions)


def test_no_more_than_a_window_of_a_finished_round_is_sent_at_once() -> None:
    shape = Shape.of(2000, DType.INT32, elements=1)
    world = World()
    sessions = [world.join(i, shape, expected=2, heartbeat=1e9, ceiling=800) for i in range(2)]
    world.gather(sessions)
    world.allreduce(sessions, [np.ones(2000, np.int32)] * 2)
    first = sessions[0]
    before, window = first.stats["sent_again"], first.window.size
    help_ = Control(Action.HELP, 7, 99, Segments(0, 0, 2000)).build()
    world.network.transmit(SWITCH, [outgoing(0, help_)])
    world.run(lambda: first.stats["helped"] == 1)
    assert first.stats["sent_again"] - before == window < 2000


def test_a_slow_worker_is_not_flooded_for() -> None:
    """A has sent everything and gets nothing: its window stays what it is, and Help is asked."""
    world, sessions = bursts(workers=2)
    first = sessions[0]
    out = np.empty(first.shape.numel, np.int32)
    sent = first.stats["sent"]
    first.begin(np.ones(first.shape.numel, np.int32), out, world.now)
    world.run(lambda: first.stats["helps"] == 3)
    assert first.stats["sent"] - sent == 80
    assert first.stats["sent_again"] <= 80  # as often as the switch asked, it did so once
    assert first.stats["probes"] == 0


@pytest.mark.parametrize("rank", [0, 100])
@pytest.mark.parametrize("lost", [True, False])
def test_what_the_switch_lacks_is_sent_again_whatever_the_rank(rank: int, lost: bool) -> None:
    """Its map is of seats, and a worker's rank is another number: the Ack says whether it lacks."""
    shape = Shape.of(30, DType.INT32, elements=1)
    world = World(Switch(Limits(lease=1e6)), Faults())
    ways: dict[str, Any] = {"heartbeat": float("inf"), "resends": True}
    other = world.join(1, shape, rank=rank + 1, **ways)
    worker = world.join(0, shape, rank=rank, **ways)
    world.gather([worker, other])
    world.network.lose = lambda source, peer, tos, _: (
        lost and tos == TOS_DATA and peer == SWITCH and source == worker_address(0)
    )
    ones = np.ones(30, np.int32)
    worker.begin(ones, np.zeros_like(ones), world.now)
    world.run(lambda: worker.transfer.outstanding == 30)  # type: ignore[union-attr]
    relayed = Control(Action.HELP, 7, 99, Segments(0, 0, 30)).build()
    worker.receive(Burst.single(SWITCH, TOS_CONTROL, relayed), world.now)
    before = worker.stats["sent_again"]
    world.run(lambda: not worker._help_requests)
    again = worker.stats["sent_again"] - before
    assert again >= 30 if lost else again == 0
