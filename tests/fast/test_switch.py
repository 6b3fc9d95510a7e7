"""A switch with a kernel does what one in Python does, to the bit."""

from __future__ import annotations

import os
import struct
import time
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from iswitch.core.format.arbiter import Traffic
from iswitch.core.format.packets import Address
from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA, Action, Control, Join, Shape
from iswitch.core.jobs import queue, resizing, turns, uplink, upward
from iswitch.core.sums.asynchronous import AsynchronousAccelerator
from iswitch.core.sums.owned import OwnedAccelerator
from iswitch.core.sums.partial import PartialAccelerator
from iswitch.core.sums.synchronous import SynchronousAccelerator
from iswitch.core.sums.turns import TurnAccelerator
from iswitch.fast import loading, seals, tables
from iswitch.fast.lanes import Lane
from iswitch.fast.lending import Lending
from iswitch.fast.lent import Lent
from iswitch.fast.ring_lanes import LentLanes
from iswitch.fast.ring_lending import LentRings
from iswitch.traces.batch import gather
from iswitch.traces.groups import TO_SWITCH
from iswitch.traces.reader import Reader
from iswitch.traces.survey import survey
from iswitch.traces.walk import Walk
from tests.support import python
from tests.traces.test_replay import generate

from .below import FrameBelow, HostBelow, Marks, PacedBelow, RingBelow, UdpBelow
from .histories import play
from .numbered import NumberedHistory, SmallHistory
from .owning import OwnedHistory
from .sharing import FAR, LanesHistory, MixedSide, PoolHistory, SharingHistory
from .sides import FrameSide, HostSide, PacedHostSide, PacedSide, RingSide, Sent, UdpSide

pytestmark = [
    pytest.mark.skipif(not loading.installed(), reason="Numba is not installed"),
    pytest.mark.usefixtures("checked"),
]

MANY = 20  # turns; two are enough unless this process has to wait for a core in one
LEAST_SHARED = 30  # packets of jobs that share memory, which a kernel adds in three histories
FEW = 8
SEEDS = int(os.environ.get("ISWITCH_FAST_SEEDS", FEW))  # `make compiled` takes more


BEYOND = """
import numpy as np
from iswitch.fast import loading
loading.load("worker_kernel").play(np.zeros(1, np.int64))
"""


def test_indices_are_checked() -> None:
    """In a process of its own: what is loaded without checks would write beyond the table."""
    assert "IndexError" in python("-c", BEYOND).stderr


@pytest.mark.parametrize("first", range(0, SEEDS, 8))
@pytest.mark.parametrize(
    "kind",
    [UdpSide, FrameSide, RingSide, HostSide, PacedSide, PacedHostSide],
    ids=["datagrams", "frames", "rings", "rings of hosts", "a link", "links of hosts"],
)
def test_same_batches_give_the_same_sends_counters_and_state(
    kind: type[UdpSide | FrameSide], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into rings as if workers were near, or far, by the seed."""
    compiled = []
    for seed in range(first, first + 8):
        monkeypatch.setattr(LentRings, "near", seed % 2 << 62)
        compiled.append(play(kind, seed, 60))
    assert sum(compiled) > 1000, "the histories do not test the kernel"


def test_a_link_that_differs_leaves_the_rest_to_python(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the midst of a history, after which all is as if Python alone had played it."""
    calls, settled = count(), LentLanes.settle
    monkeypatch.setattr(LentLanes, "settle", lambda self: settled(self) and next(calls) < 12)
    compiled = play(PacedSide, 4, 60)
    assert compiled > 0
    assert next(calls) == 13, "a kernel was called afterwards"
    assert capsys.readouterr().err.count("in Python from now on") == 1


@pytest.mark.parametrize("first", range(0, SEEDS, 24))
@pytest.mark.parametrize(
    "kind",
    [UdpBelow, FrameBelow, RingBelow, HostBelow, PacedBelow],
    ids=["datagrams", "frames", "rings", "rings of hosts", "links of hosts"],
)
def test_a_switch_below_another_one_does_the_same(
    kind: type[UdpBelow | FrameBelow], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []

    def settle(self: Lending) -> list[tuple[Address, float]]:
        kept.append(int(self.tables.counts[tables.KEPT]))
        return settled(self)

    settled = Lending.settle
    monkeypatch.setattr(Lending, "settle", settle)
    # A busy machine leaves some to Python, so these are a quarter of what an idle one counts.
    seeds, least, aggregates = (6, 500, 20) if issubclass(kind, RingSide) else (12, 900, 100)
    compiled = [play(kind, seed, 60) for seed in range(first, first + seeds)]
    assert sum(compiled) > least
    assert sum(kept) > aggregates, "the histories do not test those of the switch above"


def end_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no timer of jobs that share memory end."""
    for module, name in ((turns, "SILENCE"), (turns, "LOOK_PAUSE"), (resizing, "PAUSE")):
        monkeypatch.setattr(module, name, FAR)
    monkeypatch.setattr(queue, "PATIENCE", FAR)


@pytest.mark.parametrize(
    ("kind", "draws", "seeds"),
    [
        (UdpSide, SharingHistory, (1, 4, 13)),
        (UdpSide, PoolHistory, (4, 7, 13)),
        (FrameSide, LanesHistory, (0, 46, 47)),
        (RingSide, SharingHistory, (4, 12, 18)),
        (HostSide, PoolHistory, (4, 12, 18)),
        (RingSide, LanesHistory, (2, 19, 26)),
        (MixedSide, LanesHistory, (2002, 2007, 2008)),
        (UdpBelow, SharingHistory, (0, 4, 12)),
    ],
    ids=lambda which: getattr(which, "__name__", ""),
)
def test_jobs_that_share_memory_do_the_same(
    kind: type[UdpSide | FrameSide],
    draws: type[SharingHistory],
    seeds: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Jobs with slots, those of a pool, and those that take turns; no timer of theirs ends."""
    end_no_timer(monkeypatch)
    settled, shared = Lending._settle, []

    def settle(self: Lending, lent: Lent) -> list[tuple[Address, float]]:
        if type(lent.sums) is not SynchronousAccelerator:
            rows = [row for row, _ in lent.members]
            shared.append(int(self.tables.members[rows, tables.MEMBER_PACKETS].sum()))
        return settled(self, lent)

    monkeypatch.setattr(Lending, "_settle", settle)
    for seed in (*seeds, *range(SEEDS - FEW)):
        play(kind, seed, 100, draws)
    assert sum(shared) > LEAST_SHARED, "the histories do not test the kernel"


@pytest.mark.parametrize(
    "kind",
    [
        UdpSide,
        FrameSide,
        RingSide,
        HostSide,
        PacedHostSide,
        UdpBelow,
        FrameBelow,
        RingBelow,
        HostBelow,
    ],
)
def test_jobs_whose_segments_have_owners_do_the_same(
    kind: type[UdpSide | FrameSide], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all modes; some rounds are closed by a kernel."""
    prepared, settled = Lending.prepare, Lending.settle
    before: list[int] = []
    closed = []

    def closing(lending: Lending) -> list[int]:
        """Round and progress of the last segments of all sets."""
        all_sums = [lent.sums for lent in lending._lent.values()]
        owned = [sums for sums in all_sums if isinstance(sums, OwnedAccelerator)]
        return [int(table.words[-1, 0]) for sums in owned for table in sums.state]

    def prepare(self: Lending, now: float) -> bool:
        found = prepared(self, now)
        before[:] = closing(self)
        return found

    def settle(self: Lending) -> list[tuple[Address, float]]:
        pairs = zip(before, closing(self), strict=True)
        closed.append(sum(word != was and word >> 32 > 0 for was, word in pairs))
        return settled(self)

    monkeypatch.setattr(Lending, "prepare", prepare)
    monkeypatch.setattr(Lending, "settle", settle)
    seeds = (0, 1, 4, *range(8, SEEDS - FEW))
    compiled = [play(kind, seed, 80, OwnedHistory) for seed in seeds]
    assert sum(compiled) > 100  # a quarter of what an idle machine counts
    assert sum(closed) > 0, "the histories do not close rounds in the kernel"


# Packets that a kernel adds, marks that it answers, those with a MAC; packets from above that it
# keeps, marks that it sends there, and answers that it takes. A busy machine leaves some to Python.
LEAST_NUMBERED, LEAST_MARKS, LEAST_KEYED = 50, 0, 0
LEAST_KEPT, LEAST_ASKED, LEAST_ANSWERED = 0, 0, 0


@pytest.mark.parametrize(
    "kind",
    [
        UdpSide,
        FrameSide,
        RingSide,
        HostSide,
        PacedSide,
        UdpBelow,
        FrameBelow,
        RingBelow,
        HostBelow,
    ],
)
def test_asynchronous_jobs_do_the_same(
    kind: type[UdpSide | FrameSide], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions, and what is kept of them, the numbers counted, and the answers to marks.

    Below another switch partial sums instead, and versions from there. No time passes there between
    two looks at what has to go up, and the newest version is asked for once, or at each mark. A
    kernel looks, too, if marks are sent once; else it leaves that to Python.
    """
    settled, found = Lending._settle, np.zeros(6, np.int64)
    below = issubclass(kind, UdpBelow | FrameBelow)

    def settle(self: Lending, lent: Lent) -> list[tuple[Address, float]]:
        if type(lent.sums) in (AsynchronousAccelerator, PartialAccelerator):
            rows = [row for row, _ in lent.members]
            columns = [tables.MEMBER_PACKETS, tables.ANSWERED]
            more = self.tables.members[rows][:, columns].sum(axis=0)
            found[:2] += more
            found[2] += more[1] if self.tables.jobs[lent.row, tables.SEAL] else 0
            found[4:] += self.tables.jobs[lent.row, [tables.MARKS_UP, tables.ANSWERS_DOWN]]
            found[3] += bool(self.tables.jobs[lent.row, tables.TOLD_AT])
        return settled(self, lent)

    monkeypatch.setattr(Lending, "_settle", settle)
    for name in ("MARK_PAUSE", "LONGEST_PAUSE", "HOLD"):
        monkeypatch.setattr(upward, name, 0.0)
    monkeypatch.setattr(upward.Upward, "asks_at", Marks.asks_at)
    seeds, steps = ((0, 4, 5), 30) if below else (range(4), 80)
    for seed in (*seeds, *range(FEW, SEEDS)):
        monkeypatch.setattr(uplink, "HELP_PAUSE", FAR if seed else 0.0)
        monkeypatch.setattr(Marks, "once", seed % 2 == 0)
        monkeypatch.setattr(upward, "TRIPS", FAR if Marks.once else 0.0)
        play(kind, seed, steps, NumberedHistory)
        if below:
            play(kind, seed, steps, SmallHistory)
    least = [LEAST_NUMBERED, LEAST_MARKS, LEAST_KEYED]
    least += [LEAST_KEPT, LEAST_ASKED, LEAST_ANSWERED] if below else [-1, -1, -1]
    assert (found > least).all(), "the histories do not test the kernel"


def test_without_openssl_marks_with_a_mac_go_the_python_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settled, keyed = Lending._settle, []

    def settle(self: Lending, lent: Lent) -> list[tuple[Address, float]]:
        if self.switch.record.is_keyed(lent.job.number) and not lent.job.synchronous:
            rows = [row for row, _ in lent.members]
            keyed.append(self.tables.members[rows][:, [tables.MEMBER_PACKETS, tables.ANSWERED]])
        return settled(self, lent)

    monkeypatch.setattr(Lending, "_settle", settle)
    monkeypatch.setattr(seals, "library", lambda: None)
    play(UdpSide, 0, 80, NumberedHistory)
    packets, answered = np.concatenate(keyed).sum(axis=0)
    assert packets > 0
    assert answered == 0


def test_memory_that_a_job_has_given_back_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that rests keeps one round, also if a kernel has added up the round before that."""
    end_no_timer(monkeypatch)
    prepared, rests = Lending.prepare, []

    def prepare(self: Lending, now: float) -> bool:
        found = prepared(self, now)
        for lent in self._lent.values():
            assert isinstance(lent.sums, TurnAccelerator)
            rests.append(lent.sums.flying is None)
            assert lent.sets is None or lent.sets.sums in lent.sums._all()
        return found

    monkeypatch.setattr(Lending, "prepare", prepare)
    play(UdpSide, 58, 100, LanesHistory)
    assert {True, False} <= set(rests)


@pytest.mark.parametrize("fast", [False, True], ids=["Python", "compiled"])
@pytest.mark.parametrize("reproducible", [False, True], ids=["in order of arrival", "of rank"])
def test_recorded_traces_give_the_same_bits(tmp_path: Path, fast: bool, reproducible: bool) -> None:
    """What workers sent in a trace, sent again in its order: the sums of floats that it has."""
    form = "star:3,rate=1Gbit,delay=300us,jitter=300us,reorder=5%,duplicate=1%,seed=8"
    path = generate(tmp_path / "trace", form, numel=9001, rounds=8, reproducible=reproducible)
    found: set[bytes] = set()
    captured: set[bytes] = set()
    members: dict[Address, int] = {}
    side = UdpSide(3, fast, reproducible, True)
    with Reader(path) as reader, side.stack:
        for group in Walk(reader, survey(reader)).groups():
            rows = gather(reader.data, group.at, group.size)
            is_data = group.tos is Traffic.DATA
            if group.what == TO_SWITCH:
                who = members.setdefault(group.peer(source=True), len(members))
                tos = TOS_DATA if is_data else TOS_CONTROL
                results = side.play([Sent(who, tos, rows, group.size)])
                found |= {packet[1:] for packets in results for packet in packets if is_data}
            elif is_data:
                captured |= {row.tobytes() for row in rows}
    assert len(members) == 3
    assert len(captured) == 8 * Shape.of(9001).segments
    assert found == captured
    assert side.compiled > 200 if fast else side.compiled == 0


def packet(who: int, tos: int, payload: bytes) -> Sent:
    """A single packet of a process."""
    return Sent(who, tos, np.frombuffer(payload, np.uint8).reshape(1, -1), len(payload))


@pytest.mark.parametrize("kind", [UdpSide, FrameSide], ids=["datagrams", "frames"])
def test_what_is_not_plain_keeps_nobody_waiting(kind: type[UdpSide | FrameSide]) -> None:
    """Neither those who send what is plain at other ports, nor what Python reads."""
    shape, members = Shape.of(100), (1, 2)
    side = kind(3, True, False, False)
    heard, told = os.pipe()
    with side.stack:
        lane = side.lane
        assert isinstance(lane, Lane)

        def turn() -> bool:
            """Serve, as an engine does, while the stranger at port 0 never falls silent."""
            side.send(packet(0, TOS_DATA, bytes(shape.tail(1))))
            assert lane.ready()
            return lane.run(None, time.monotonic(), 0.0, heard)

        for who in members:
            join = Control(Action.JOIN, 7, 1000, Join.for_shape(shape, expected=2))
            side.play([packet(who, TOS_CONTROL, join.build())])
        for round_ in range(5):
            sums = [packet(who, TOS_DATA, segment(round_, shape)) for who in members]
            if round_ < 2:
                for one in sums:
                    side.play([one])
            else:
                for one in sums:
                    side.send(one)
                for _ in range(MANY):
                    turn()
                    if side.switch.counters["aggregates"] > round_:
                        break
            assert side.switch.counters["aggregates"] == round_ + 1
        os.write(told, b"x")
        assert turn()
    for end in (heard, told):
        os.close(end)


def segment(round_: int, shape: Shape) -> bytes:
    """A contribution of one segment."""
    return struct.pack(">II", round_, 0).ljust(shape.tail(1), b"\0")
