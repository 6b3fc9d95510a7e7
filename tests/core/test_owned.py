"""Jobs whose segments have owners: random histories of plain workers against an oracle.

The oracle knows what each rank contributes to a round, and so what each must receive. Packets are
lost and doubled, switches are restarted, workers replaced, in a star and in trees.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from iswitch.core.format.division import divided
from iswitch.core.format.packets import Address
from iswitch.core.format.wire import (
    FLAG_PARTIAL,
    FLAG_WHOLE,
    NO_RANK,
    RANKS,
    TOS_DATA,
    Action,
    DType,
    Join,
    MemberType,
    Mode,
    Op,
    Segments,
    Shape,
    Status,
    Threshold,
)
from iswitch.core.sums.paper import Counting
from iswitch.core.switch import Switch
from tests.support.owner import Owner
from tests.support.parts import Bench, assert_accounted, packets_of, seg
from tests.support.tree import TYPICAL, Tree
from tests.support.world import SWITCH, Faults, worker_address
from worker_lib.protocol.events import Dropped, Gone, WasReset
from worker_lib.protocol.terms import RoundTerms

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "14"))  # `make model` takes more
MODES = (Mode.REDUCE_SCATTER, Mode.ALL_GATHER, Mode.ALL_TO_ALL)
DTYPES = (DType.FLOAT32, DType.INT32, DType.UINT8, DType.INT64, DType.BFLOAT16)
FORMS = ((1,), (2,), (5,), (2, 2), (3, 1), (2, 1, 2), (2, 3))
JOB = 7


class History(Tree):
    """A job of one worker for each rank, in a tree."""

    def __init__(self, *fan_outs: int, shape: Shape | None = None, seed: int = 0) -> None:
        super().__init__(*fan_outs[:-1], 0, seed=seed, faults=TYPICAL)
        above = set(self.above.values())
        leaves = [at for at in (SWITCH, *self.above) if at not in above]
        self.places = [at for at in leaves for _ in range(fan_outs[-1])]
        self.ranks = len(self.places)
        self.joined = 0
        dtype = self.random.choice(DTYPES)
        numel, most = self.random.randrange(1, 30), self.random.choice((4, 8))
        mode = self.random.choice(MODES)
        self.shape = shape or divided(numel, self.ranks, mode, dtype, most=most)
        self.owners = [self.new_owner(at, rank) for rank, at in enumerate(self.places)]
        self.replaced = 0

    def new_owner(self, at: Address, rank: int) -> Owner:
        wish = self.random.choice((rank, rank, NO_RANK)) if self.ranks < 4 else rank
        terms = RoundTerms(
            at, JOB, self.shape, expected=self.ranks, rank=wish, heartbeat=1.0, whole=True
        )
        owner = Owner(terms, 1000 + self.joined)
        address = worker_address(self.joined)
        self.joined += 1
        self.sessions[address] = owner  # type: ignore[assignment]
        self.events[address] = []
        owner.join(self.now)
        return owner

    def all_ready(self) -> None:
        """Have all join until each has a rank, and all stand at one round."""

        asked = self.now

        def ready() -> bool:
            nonlocal asked
            for owner in self.owners if self.now - asked > 0.05 else ():
                asked = self.now
                if owner.member and (owner.rank == NO_RANK or owner.joined < self.ranks):
                    owner.join(self.now)
            ranks = sorted(owner.rank for owner in self.owners)
            return (
                all(owner.member and owner.joined == self.ranks for owner in self.owners)
                and ranks == list(range(self.ranks))
                and len({owner.round for owner in self.owners}) == 1
            )

        self.run(ready)

    def payloads(self, segments: list[int]) -> dict[int, bytes]:
        """Whole numbers, whose sums are exact in any order, for each segment."""
        shape = self.shape
        numbers = {i: [self.random.randrange(8) for _ in range(shape.elements)] for i in segments}
        return {i: np.array(n).astype(shape.dtype.numpy).tobytes() for i, n in numbers.items()}

    def draw(self) -> tuple[list[dict[int, bytes]], list[dict[int, bytes]]]:
        """Draw what each rank contributes to a round, and what it must receive; by segment."""
        mode, n = self.shape.mode, self.ranks
        size = (self.shape.segments - 1) // self.shape.blocks
        used = [
            self.random.choice((0, size, self.random.randrange(size + 1)))
            for _ in range(self.shape.blocks)
        ]
        blocks = [list(range(b * size, b * size + some)) for b, some in enumerate(used)]
        every = [index for block in blocks for index in block]
        if mode is Mode.REDUCE_SCATTER:
            gives = [self.payloads(every) for _ in range(n)]
            return gives, [{i: self.total(gives, i) for i in blocks[rank]} for rank in range(n)]
        if mode is Mode.ALL_GATHER:
            gives = [self.payloads(blocks[rank]) for rank in range(n)]
            together = {i: payload for given in gives for i, payload in given.items()}
            return gives, [together] * n
        gives = [self.payloads([i for b in range(n) for i in blocks[a * n + b]]) for a in range(n)]
        receives = [{i: gives[a][i] for a in range(n) for i in blocks[a * n + b]} for b in range(n)]
        return gives, receives

    def total(self, gives: list[dict[int, bytes]], index: int) -> bytes:
        parts = [np.frombuffer(given[index], self.shape.dtype.numpy) for given in gives]
        total: np.ndarray = np.sum([part.astype(np.int64) for part in parts], 0)
        return bytes(total.astype(self.shape.dtype.numpy).tobytes())

    def play(self) -> bool:
        """Play a round; return whether it ended, rather than being void by a Reset."""
        gives, receives = self.draw()
        (at,) = {owner.round for owner in self.owners}
        waiting = list(range(self.ranks))
        self.random.shuffle(waiting)
        trouble = self.random.random()
        while waiting:
            owner = self.owners[waiting.pop()]
            if not owner.member or owner.round != at:  # a newcomer, for which all begin anew
                assert self.replaced
                continue
            owner.begin(gives[owner.rank], set(receives[owner.rank]), self.now)
            for _ in range(self.random.randrange(10)):
                self.step()
            if trouble < 0.15:
                self.restart(self.random.choice([SWITCH, *self.above]))
                trouble = 1.0
            elif trouble < 0.25:
                self.replace()
                trouble = 1.0
        self.run(lambda: all(o.done or not o.under_way for o in self.owners))
        ended = [o for o in self.owners if o.under_way]
        for owner in ended:
            assert owner.round == at
            wanted = receives[owner.rank]
            assert {i: p for i, p in owner.got.items() if i in wanted} == wanted
            count = int.from_bytes(owner.got[owner.division.closing][:4], "little")
            used = {i for given in gives for i in given}
            assert count == len(used)
            owner.finish()
        return len(ended) == self.ranks

    def replace(self) -> None:
        """Have a new process take the place of a worker, whose address nobody uses any more."""
        victim = self.random.randrange(self.ranks)
        old = self.owners[victim]
        address = next(a for a, s in self.sessions.items() if s is old)  # type: ignore[comparison-overlap]
        del self.sessions[address]
        self.replaced += 1
        terms = RoundTerms(
            old.switch,
            JOB,
            self.shape,
            expected=self.ranks,
            rank=old.rank,
            heartbeat=1.0,
            whole=True,
        )
        owner = Owner(terms, 1000 + self.joined)
        self.joined += 1
        self.owners[victim] = owner
        self.sessions[address] = owner  # type: ignore[assignment]
        owner.join(self.now)

    def events_of(self, *kinds: type) -> int:
        return sum(isinstance(e, kinds) for events in self.events.values() for e in events)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_histories(seed: int) -> None:
    """Each rank gets what the others contribute for it, and nobody else's."""
    history = History(*FORMS[seed % len(FORMS)], seed=seed)
    for _ in range(12):
        history.all_ready()
        ended = history.play()
        assert ended or history.replaced or history.events_of(Gone, Dropped, WasReset)
    if not history.replaced:
        assert not history.events_of(Gone, Dropped, WasReset)
    history.faults = Faults()
    history.let_pass(1.0)
    for switch in history.switches.values():
        assert_accounted(switch.counters)


TWO = divided(8, 2, Mode.ALL_GATHER, DType.INT32, most=4)  # blocks of two segments, a closing one


def gathered(shape: Shape, workers: int = 2) -> Bench:
    """Workers with the ranks 0.., which all know that all have joined."""
    bench = Bench()
    for who in range(workers):
        join = Join.for_shape(shape, MemberType.WORKER, workers, FLAG_WHOLE).asking(who)
        assert bench.control(who, Action.JOIN, join, request=1000)[0] is Status.OK
    return bench


def give(
    bench: Bench, who: int, shape: Shape, indices: list[int], count: int
) -> dict[int, set[int]]:
    """Contribute segments, then the closing one; who is sent which aggregates."""
    last = shape.last * shape.dtype.itemsize - 4
    full = shape.elements * shape.dtype.itemsize
    payloads = [seg(0, i) + bytes([who + 1]) * full for i in indices]
    payloads.append(seg(0, shape.segments - 1) + count.to_bytes(4, "little") + bytes(last))
    sent: dict[int, set[int]] = {}
    for payload in payloads:
        for out in bench.send(who, TOS_DATA, payload):
            for packet in packets_of(out):
                receivers = {to.port - 40000 for to in out.peers}
                sent.setdefault(int.from_bytes(packet[4:8], "big"), set()).update(receivers)
    return sent


def test_nobody_contributes_for_another_rank() -> None:
    bench = gathered(TWO)
    assert give(bench, 0, TWO, [2, 3], 0) == {}
    assert bench.counters["not_owner"] == 2
    assert give(bench, 1, TWO, [3], 1) == {3: {0, 1}, 4: {0, 1}}
    assert_accounted(bench.counters)


def test_a_round_closes_when_all_contributions_are_there() -> None:
    """Whatever comes last; and none is closed by counts that are too small."""
    bench = gathered(TWO)
    assert give(bench, 0, TWO, [0], 2) == {0: {0, 1}}
    assert give(bench, 1, TWO, [2], 1) == {2: {0, 1}}
    last = bench.send(0, TOS_DATA, seg(0, 1) + bytes(4 * TWO.elements))
    assert [p[4:8] for out in last for p in packets_of(out)] == [seg(0, 1)[4:], seg(0, 4)[4:]]
    bench = gathered(TWO)
    give(bench, 0, TWO, [0, 1], 1)
    assert 4 not in give(bench, 1, TWO, [2], 1)


def test_late_contributions_are_answered_to_who_receives_them() -> None:
    """Each other's sums are of no use to a rank."""
    shape = divided(8, 2, Mode.REDUCE_SCATTER, DType.INT32, most=4)
    bench = gathered(shape)
    give(bench, 0, shape, [0, 2], 2)
    assert give(bench, 1, shape, [0, 2], 2) == {0: {0}, 2: {1}, 4: {0, 1}}
    assert give(bench, 0, shape, [0, 2], 2) == {0: {0}, 4: {0}}


def test_help_brings_a_rank_the_sums_that_it_receives() -> None:
    """It may ask for all, to know what the switch lacks of its own; a controller is sent all."""
    shape = divided(8, 2, Mode.REDUCE_SCATTER, DType.INT32, most=4)
    bench = gathered(shape)
    for who in range(2):
        give(bench, who, shape, [0, 1, 2, 3], 4)
    assert bench.control(5, Action.JOIN, Join(MemberType.CONTROLLER), request=1000)[0] is Status.OK
    for who, wanted in ((0, [0, 1, 4]), (1, [2, 3, 4]), (5, [0, 1, 2, 3, 4])):
        status, ack, sends = bench.control(who, Action.HELP, Segments(0, 0, 5))
        assert (status, ack.known) == (Status.OK, 0)
        assert [p[7] for out in sends for p in packets_of(out)] == wanted


def test_no_contribution_is_left_out() -> None:
    """Neither by H, set before the job began or in it, nor by FBcast."""
    bench = Bench()
    bench.control(5, Action.JOIN, Join(MemberType.CONTROLLER), request=1000)
    assert bench.control(5, Action.SETH, Threshold(1))[0] is Status.OK
    for who in range(2):
        join = Join.for_shape(TWO, MemberType.WORKER, 2, FLAG_WHOLE).asking(who)
        assert bench.control(who, Action.JOIN, join, request=1000)[0] is Status.OK
    assert bench.control(5, Action.SETH, Threshold(1))[0] is Status.BAD_REQUEST
    assert bench.control(0, Action.FBCAST, Segments(0, 0, 1))[0] is Status.BAD_REQUEST
    assert give(bench, 0, TWO, [], 0) == {}
    assert give(bench, 1, TWO, [], 0) == {4: {0, 1}}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("ranks", "segments", "last", "flags"),
    [
        (0, 5, 1, FLAG_WHOLE),
        (2, 4, 1, FLAG_WHOLE),
        (2, 1, 1, FLAG_WHOLE),
        (2, 5, 1, 0),
        (2, 5, 1, FLAG_WHOLE | FLAG_PARTIAL),
        (RANKS + 1, 1 + (RANKS + 1) ** 2, 1, FLAG_WHOLE),
    ],
)
def test_layouts_that_cannot_be(
    mode: Mode, ranks: int, segments: int, last: int, flags: int
) -> None:
    shape = Shape(DType.INT32, Op.SUM, mode, 4, last, segments, ranks)
    join = Join.for_shape(shape, MemberType.WORKER, ranks, flags)
    bench = Bench()
    assert bench.control(0, Action.JOIN, join, request=1000)[0] is Status.BAD_REQUEST
    assert not bench.switch.jobs


def test_a_closing_segment_has_room_for_its_count() -> None:
    shape = Shape(DType.UINT8, Op.SUM, Mode.ALL_GATHER, 8, 3, 3, 2)
    join = Join.for_shape(shape, MemberType.WORKER, 2, FLAG_WHOLE)
    assert Bench().control(0, Action.JOIN, join, request=1000)[0] is Status.BAD_REQUEST


def test_packets_that_are_only_counted_have_no_owners() -> None:
    bench = Bench(Switch(counting=Counting.PAPER))
    join = Join.for_shape(TWO, MemberType.WORKER, 2, FLAG_WHOLE)
    assert bench.control(0, Action.JOIN, join, request=1000)[0] is Status.BAD_REQUEST


def test_open_segments_are_no_aggregates() -> None:
    """Where ranks do not agree on what they sum, the closing segment tells a smaller number."""
    shape = divided(8, 2, Mode.REDUCE_SCATTER, DType.INT32, most=4)
    bench = gathered(shape)
    give(bench, 0, shape, [0, 1], 2)
    give(bench, 1, shape, [0, 2], 2)
    (kept,) = bench.control(0, Action.HELP, Segments(0, 4, 1))[2]
    assert packets_of(kept)[0][8:12] == (1).to_bytes(4, "little")
