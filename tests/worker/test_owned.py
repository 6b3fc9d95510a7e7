"""Rounds of owned segments in virtual time: every loss, order, size and restart, exact results."""

from __future__ import annotations

import random

import numpy as np
import pytest

from iswitch.core.format.packets import Address, Burst
from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA, TOS_MASK, DType, Mode
from tests.support.blocks import MODES, Given, Ranks, even
from tests.support.parts import assert_accounted
from tests.support.world import SWITCH, Faults
from worker_lib.protocol.events import Disagreed
from worker_lib.protocol.owned import OwnedTransfer

pytestmark = pytest.mark.unit

DTYPES = (DType.FLOAT32, DType.INT32, DType.UINT8, DType.INT64, DType.BFLOAT16, DType.BOOL)
FORMS = ((1,), (2,), (3,), (5,), (2, 2), (3, 1), (2, 1, 2), (2, 3))
modes = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name.lower())


@modes
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.label)
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_size(count: int, dtype: DType, mode: Mode) -> None:
    """No packet is sent twice, and none that nobody needs: of n elements as many as hold them."""
    ranks = Ranks(count, mode=mode, numel=400, dtype=dtype)
    for size in (0, 1, 7, 399, 400):
        before = [dict(session.stats) for session in ranks.ranks]
        gives = ranks.draw(even(mode, count, size), size)
        ranks.exchange(gives)
        packets = -(-size // ranks.shape.elements)
        blocks = {Mode.REDUCE_SCATTER: (count, 1), Mode.ALL_GATHER: (1, count)}
        given, got = blocks.get(mode, (count, count))
        for session, was in zip(ranks.ranks, before, strict=True):
            news = {name: session.stats[name] - was[name] for name in was}
            assert news.pop("sent") == given * packets + 1
            assert news.pop("received") == got * packets + 1
            assert not any(news.values())
    assert ranks.switch.counters.drops() == {}


def some_sizes(ranks: Ranks, rng: random.Random) -> list[list[int]]:
    """Draw the sizes of blocks, as different as the mode lets them be."""
    count, most = len(ranks.workers), ranks.shape.elements * 3
    if ranks.mode is Mode.REDUCE_SCATTER:
        return [[rng.randrange(most) for _ in range(count)]] * count
    blocks = 1 if ranks.mode is Mode.ALL_GATHER else count
    drawn = [[rng.randrange(most) for _ in range(blocks)] for _ in range(count)]
    return [[n * rng.choice((0, 1, 1)) for n in row] for row in drawn]


def play(seed: int) -> Ranks:
    """Play some rounds of a job that the seed draws."""
    rng = random.Random(seed)
    fan_outs, mode, dtype = rng.choice(FORMS), rng.choice(MODES), rng.choice(DTYPES)
    most = rng.choice((4, 16))
    ranks = Ranks(*fan_outs, mode=mode, numel=3 * most, dtype=dtype, most=most, seed=seed)
    loss, jitter = rng.choice((0.0, 0.01, 0.1)), rng.choice((0.0, 200e-6))
    ranks.faults = Faults(loss=loss, duplicate=rng.choice((0.0, 0.05)), jitter=jitter)
    for round_ in range(4):
        ranks.exchange(ranks.draw(some_sizes(ranks, rng), round_))
    ranks.faults = Faults()
    ranks.let_pass(1.0)
    for switch in ranks.switches.values():
        assert_accounted(switch.counters)
    return ranks


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(40), 384])
def test_histories(seed: int) -> None:
    """Random losses, copies and orders, in a star and in trees; sizes that differ."""
    play(seed)


def test_histories_can_be_repeated() -> None:
    assert play(7).trace == play(7).trace


# One packet lost


class Losing(Ranks):
    """Loses one packet of a round: the one of this number, counted from the first."""

    number = -1
    lost_line = ""
    lost_tos = TOS_CONTROL

    def lost(self, source: object, peer: object, tos: int, payload: bytes) -> bool:
        if self.number < 0:
            return False
        self.number -= 1
        if self.number == -1:
            self.lost_line = f"{source} {peer} {tos} {payload.hex()}"
            self.lost_tos = tos & TOS_MASK
        return self.number == -1


def losing(mode: Mode, count: int) -> tuple[Losing, Given]:
    ranks = Losing(count, mode=mode, numel=30, dtype=DType.INT32, most=16)
    ranks.exchange(ranks.draw(even(mode, count, 30)))
    return ranks, ranks.draw(even(mode, count, 30), 1)


@modes
@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_packet_lost_in_turn(mode: Mode, count: int) -> None:
    """What is lost is sent once more at most, by whoever has it, and soon: nothing else is."""
    blocks = {Mode.REDUCE_SCATTER: (count, 1), Mode.ALL_GATHER: (1, count)}
    given, got = blocks.get(mode, (count, count))
    packets = count * (2 * given + 1 + 2 * got + 1)
    for number in range(packets + 1):
        ranks, gives = losing(mode, count)
        ranks.number, began = number, ranks.now
        ranks.exchange(gives)
        if number == packets:  # nothing was lost
            assert ranks.number == 0
            assert ranks.now - began < 0.001
            return
        assert ranks.lost_tos == TOS_DATA, ranks.lost_line
        again = sum(session.stats["sent_again"] for session in ranks.ranks)
        assert again <= 1, ranks.lost_line
        assert ranks.now - began < 0.06, ranks.lost_line  # a timer expires once at most
        ranks.exchange(gives)


@modes
def test_lost_help_is_asked_again(mode: Mode) -> None:
    """With a third of all control packets lost, and a tenth of the others."""
    ranks = Ranks(3, mode=mode, numel=100)
    chance = random.Random(5)

    def lose(_to_switch: bool, tos: int, _payload: bytes) -> bool:
        return chance.random() < (0.33 if tos & TOS_MASK == TOS_CONTROL else 0.1)

    ranks.faults.lose = lose
    for round_ in range(5):
        ranks.exchange(ranks.draw(even(mode, 3, 100), round_))


# Ranks that begin late


@modes
def test_what_comes_before_its_round_is_kept(mode: Mode) -> None:
    """Others need not wait for a rank to give it something, and nothing travels twice."""
    ranks = Ranks(3, mode=mode, numel=100)
    for round_ in range(3):
        gives = ranks.draw(even(mode, 3, 100), round_)
        gets = ranks.begin_blocks(gives, late=[2, 1])
        ranks.end_blocks()
        ranks.check(gives, gets)
    for session in ranks.ranks:
        assert session.stats["useless"] == session.stats["helps"] == 0
        assert session.stats["sent_again"] == 0


def test_no_more_is_kept_than_a_round_has() -> None:
    ranks = Ranks(2, mode=Mode.ALL_GATHER, numel=100, most=16)
    gives = ranks.draw(even(ranks.mode, 2, 100))
    early, late = ranks.ranks
    ranks.exchange(gives)
    rows, tail = early._contributions[0].rows(0, 3)
    rows = rows.copy()
    rows[:, :4] = 0, 0, 0, 1  # of the next round
    for _ in range(100):
        late.receive(Burst(SWITCH, TOS_DATA, rows, tail), ranks.now)
    assert sum(len(kept) for kept, _ in late._early) <= ranks.shape.segments
    ranks.exchange(gives)


# The window


@pytest.mark.parametrize("count", [2, 5])
def test_without_aggregates_marks_pace(count: int) -> None:
    """A rank that gets nothing for what it gives has no more than a window under way."""
    ranks = Ranks(count, mode=Mode.ALL_TO_ALL, numel=64_000, most=16)
    root = 0
    sizes = [[64_000 if to == root else 0 for to in range(count)] for _ in range(count)]
    gives = ranks.draw(sizes)
    began = ranks.now
    gets = ranks.begin_blocks(gives)
    widest = 0.0
    sessions = ranks.ranks
    while not all(s.transfer is not None and s.transfer.done for s in sessions):
        assert ranks.step()
        for session in sessions:
            assert session.transfer is not None
            widest = max(widest, session.transfer.in_flight / session.window.size)
    ranks.check(gives, gets)
    assert 0.9 < widest <= 1.0
    assert ranks.now - began < 0.02  # no timer has expired
    assert all(session.stats["sent"] == 4001 for session in sessions)
    assert sum(session.stats["sent_again"] for session in sessions) == 0


@modes
def test_large_blocks(mode: Mode) -> None:
    ranks = Ranks(3, mode=mode, numel=20_000, most=16)
    gives = ranks.draw(even(mode, 3, 20_000))
    ranks.exchange(gives)
    assert sum(session.stats["sent_again"] for session in ranks.ranks) == 0
    assert sum(session.stats["useless"] for session in ranks.ranks) == 0


# Restarts and resets


@modes
@pytest.mark.parametrize("fan_outs", [(2,), (3,), (2, 2)], ids=str)
def test_switch_restarted_at_any_moment(mode: Mode, fan_outs: tuple[int, ...]) -> None:
    """Everybody comes back and sends its part again; ranks that were done help the others."""
    for steps in range(0, 60, 4):
        ranks = Ranks(*fan_outs, mode=mode, numel=30, dtype=DType.INT32, seed=steps)
        count = len(ranks.workers)
        ranks.exchange(ranks.draw(even(mode, count, 30)))
        gives = ranks.draw(even(mode, count, 30), 1)
        gets = ranks.begin_blocks(gives)
        for _ in range(steps):
            ranks.step()
        ranks.restart(SWITCH)
        ranks.end_blocks()
        ranks.check(gives, gets)
        for round_ in range(2):
            ranks.exchange(ranks.draw(even(mode, count, 30), 2 + round_))


class LosingABlock(Ranks):
    """Two ranks of an all_gather of a packet each, of which the second's is lost on one way."""

    losing: Address | None = None  # to where
    losses = 0

    def lost(self, source: Address, peer: Address, tos: int, payload: bytes) -> bool:
        is_block = tos & TOS_MASK == TOS_DATA and payload[4:8] == bytes([0, 0, 0, 1])
        if is_block and self.network.home(peer) == self.losing:
            self.losses += 1
            return True
        return super().lost(source, peer, tos, payload)


def test_a_round_that_a_restarted_switch_opens_again_is_no_disagreement() -> None:
    """It lacks contributions, though the switch before has told that all were there."""
    ranks = LosingABlock(2, mode=Mode.ALL_GATHER, numel=4, most=16)
    first, second = ranks.ranks
    ranks.losing = ranks.address(first)
    gives = ranks.draw(even(ranks.mode, 2, 4))
    gets = ranks.begin_blocks(gives)
    here, there = first.transfer, second.transfer
    assert isinstance(here, OwnedTransfer)
    assert there is not None
    ranks.run(lambda: here.total == 2 and there.done)
    second.finish()
    ranks.restart(SWITCH)
    second.begin_blocks([gives[1][0]], [block.copy() for block in gets[1]], ranks.now)
    ranks.losing, ranks.losses = SWITCH, 0
    ranks.run(lambda: ranks.losses > 3)  # the second was asked for its block again and again
    ranks.losing = None
    ranks.run(lambda: first.transfer is None or first.transfer.done)
    news = ranks.events[ranks.address(first)]
    assert not any(isinstance(event, Disagreed) for event in news)
    ranks.check(gives, gets)


@pytest.mark.parametrize("seed", [191, 237, 264, 399])
def test_a_leaf_that_is_restarted_makes_no_disagreement(seed: int) -> None:
    """It lacks what its workers gave, though the closing aggregate comes to it from above."""
    rng = random.Random(seed)
    mode, fan_outs = rng.choice(MODES), rng.choice(((2, 1), (2, 2), (1, 2, 1)))
    ranks = Ranks(*fan_outs, mode=mode, numel=30, dtype=DType.INT32, most=16, seed=seed)
    sizes = even(mode, len(ranks.workers), 30)
    ranks.exchange(ranks.draw(sizes))
    ranks.faults = Faults(loss=0.2, jitter=500e-6)
    gives = ranks.draw(sizes, 1)
    gets = ranks.begin_blocks(gives)
    for _ in range(rng.randrange(60)):
        ranks.step()
    ranks.restart(rng.choice([one for one in ranks.switches if one != SWITCH]))
    ranks.end_blocks()
    ranks.check(gives, gets)
    heard = [event for events in ranks.events.values() for event in events]
    assert not any(isinstance(event, Disagreed) for event in heard)


@modes
def test_begun_again(mode: Mode) -> None:
    """A round that was given up is begun again with other arrays for what comes."""
    ranks = Ranks(3, mode=mode, numel=30)
    gives = ranks.draw(even(mode, 3, 30))
    gets = ranks.begin_blocks(gives)
    for _ in range(5):
        ranks.step()
    ranks.ranks[1].abandon()
    ranks.let_pass(0.2)
    got = [np.zeros_like(block) for block in gets[1]]
    ranks.ranks[1].begin_blocks(gives[1], got, ranks.now)
    gets[1] = got
    ranks.end_blocks()
    ranks.check(gives, gets)
    session = ranks.ranks[0]
    session.begin_blocks(gives[0], gets[0], ranks.now)
    with pytest.raises(ValueError, match="other sizes"):
        session.begin_blocks([b[:1] for b in gives[0]], gets[0], ranks.now)


# Sizes that do not go together


def disagreed(ranks: Ranks, gives: Given, gets: Given, totals: list[int | None]) -> list[int]:
    """Begin a round of these; return which ranks learn that sizes differ."""
    for session, given, got, total in zip(ranks.ranks, gives, gets, totals, strict=True):
        session.begin_blocks(given, got, ranks.now, total)
    sessions = ranks.ranks
    ranks.run(lambda: all(s.transfer is None or s.transfer.done for s in sessions), 5.0)
    found = []
    for rank, session in enumerate(sessions):
        if session.transfer is not None:
            session.finish()
        news = ranks.events[ranks.address(session)]
        found += [rank] * any(isinstance(event, Disagreed) for event in news)
        news.clear()
    assert len({session.round for session in sessions}) == 1
    return found


def test_reduce_scatter_of_other_sizes() -> None:
    """Whoever passes more learns it at once, though its own block never completes."""
    ranks = Ranks(2, mode=Mode.REDUCE_SCATTER, numel=64, most=16)
    gives = [ranks.draw(even(ranks.mode, 1, n))[0] * 2 for n in (32, 64)]
    gets = [[np.zeros_like(given[0])] for given in gives]
    assert disagreed(ranks, gives, gets, [4, 8]) == [1]
    ranks.exchange(ranks.draw(even(ranks.mode, 2, 64)))


def test_all_gather_of_other_sizes() -> None:
    ranks = Ranks(2, mode=Mode.ALL_GATHER, numel=64, most=16)
    gives = ranks.draw([[32], [64]])
    gets = [[np.zeros(n, np.float32)] * 2 for n in (32, 64)]
    assert disagreed(ranks, gives, gets, [4, 8]) == [0, 1]
    ranks.exchange(ranks.draw(even(ranks.mode, 2, 64)))


def test_all_to_all_of_other_sizes() -> None:
    """A rank that expects more than another gives is told so when all have given what they have."""
    ranks = Ranks(3, mode=Mode.ALL_TO_ALL, numel=64, most=16)
    gives = ranks.draw([[16, 16, 16]] * 3)
    gets = [
        [np.zeros(n, np.float32) for n in row] for row in [(16, 16, 16), (16, 48, 16), (16,) * 3]
    ]
    assert disagreed(ranks, gives, gets, [None] * 3) == [1]
    ranks.exchange(ranks.draw(even(ranks.mode, 3, 64)))


@modes
def test_what_comes_behind_a_kernel_is_copied_alone(mode: Mode) -> None:
    """Once a kernel may have put some of it into the caller's blocks."""
    ranks = Ranks(3, mode=mode, numel=399, most=4)
    gives = ranks.draw(even(mode, 3, 399))
    gets = ranks.begin_blocks(gives)
    one = ranks.ranks[1].transfer
    assert isinstance(one, OwnedTransfer)
    ranks.run(lambda: one.remaining < one.shape.segments)
    assert one.remaining
    has = one.lend(True).has
    buffer, had = one.plan.buffer, np.repeat(has[:-1] == 1, one.shape.elements)
    buffer[: len(had)][had] = -1
    ranks.end_blocks()
    ranks.check(gives, gets)
    assert (buffer[: len(had)][had] == -1).all()
