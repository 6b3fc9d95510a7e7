"""One direction of a link, as a pure object: fates, their order, and how often each comes."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iswitch.faults.impairment import Impairment
from iswitch.faults.line import Fates, Line, Transit
from iswitch.faults.units import QuantityError

MANY = 200_000
PROBABILITY = st.floats(0, 1)
IMPAIRMENTS = st.builds(
    lambda loss, delay, part, duplicate, reorder, corrupt, rate, queue, burst: Impairment(
        loss,
        delay,
        delay * part,
        duplicate,
        reorder if delay else 0,
        corrupt,
        rate,
        queue,
        burst / (1 - loss) if 0 < loss < 1 else 0,
    ),
    PROBABILITY,
    st.floats(0, 1e3),
    PROBABILITY,
    PROBABILITY,
    PROBABILITY,
    PROBABILITY,
    st.none() | st.integers(1, 10**12),
    st.integers(1, 10**6),
    st.just(0.0) | st.floats(1.001, 100),
)


def send(line: Line, sizes: list[int], now: float = 0.0) -> Fates:
    return line.fates(np.array(sizes, np.int64), now)


def within(found: int, of: int, probability: float, sigmas: float = 5.0) -> bool:
    spread = sigmas * math.sqrt(of * probability * (1 - probability))
    return abs(found - of * probability) <= spread


# Text


@given(IMPAIRMENTS)
def test_text_reads_back_equal(impairment: Impairment) -> None:
    text = str(impairment)
    assert (Impairment.parse(text) if text else Impairment()) == impairment


def test_text() -> None:
    text = "loss=1%,delay=5ms,jitter=1ms,duplicate=0.1%,reorder=1%,corrupt=0.01%,rate=100Mbit"
    wanted = Impairment(0.01, 0.005, 0.001, 0.001, 0.01, 0.0001, 10**8, 100)
    assert Impairment.parse(f"{text},queue=100") == wanted
    assert str(wanted) == f"{text},queue=100"
    assert Impairment.parse(" loss = 0.01 , delay=5 ms ") == Impairment(0.01, 0.005)


def test_none_is_false() -> None:
    assert not Impairment()
    assert not Impairment(queue=3)
    assert Impairment(rate=10**9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            "'' is no impairment; write some of loss, burst, delay, jitter, duplicate",
        ),
        ("loss", "'loss' is no impairment"),
        ("speed=3", "such as loss=1%,delay=5ms"),
        ("loss=1%,loss=2%", "says loss twice; leave one of them out"),
        ("loss=101%", "loss 1.01 is not in [0, 1]; write 1% or 0.01"),
        ("loss=many", "loss 'many' is not a number and a unit"),
        ("delay=-1ms", "delay -0.001 is not a time"),
        ("jitter=1ms", "jitter 0.001 s is not in 0 s..delay (0.0 s)"),
        ("burst=8", "burst 8 is the length of runs of lost packets, and none is lost"),
        ("loss=1,burst=8", "burst 8 cannot be where all are lost; leave it out"),
        ("loss=50%,burst=1.9", "independent losses come in runs of 2 already; give more"),
        ("jitter=2 parsecs", "jitter '2 parsecs' is not a number and a unit (ns, us, ms, s)"),
        ("reorder=1%", "reorder lets a packet skip the delay, and there is none"),
        ("rate=0bit", "rate 0 is not positive; leave it out"),
        ("queue=0", "queue 0 has no room; give 1 packet or more"),
        ("queue=64kB", "queue '64kB' counts bytes; here it counts packets, as in queue=100"),
    ],
)
def test_text_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(QuantityError) as caught:
        Impairment.parse(text)
    assert message in str(caught.value)


# Fates


@given(
    IMPAIRMENTS,
    st.lists(st.integers(1, 9000), min_size=1, max_size=60),
    st.lists(st.integers(0, 60)),
    st.integers(0, 2**32),
)
def test_fates_do_not_hang_on_how_packets_are_put_together(
    impairment: Impairment, sizes: list[int], cuts: list[int], seed: int
) -> None:
    """At one time, in one go or in several: each packet's fate is the same to the last bit."""
    whole = send(Line(impairment, (seed, 1)), sizes)
    line = Line(impairment, (seed, 1))
    bounds = sorted({0, len(sizes), *(cut for cut in cuts if cut < len(sizes))})
    fates: dict[int, list[tuple[float, int]]] = {}
    counts = np.zeros(4, int)
    for start, stop in pairwise(bounds):
        part = send(line, sizes[start:stop])
        counts += [part.lost, part.full, part.duplicated, part.reordered]
        for which, due, bit in zip(part.which, part.due, part.bit, strict=True):
            fates.setdefault(int(which) + start, []).append((float(due), int(bit)))
    again: dict[int, list[tuple[float, int]]] = {}
    for which, due, bit in zip(whole.which, whole.due, whole.bit, strict=True):
        again.setdefault(int(which), []).append((float(due), int(bit)))
    assert fates == again
    assert counts.tolist() == [whole.lost, whole.full, whole.duplicated, whole.reordered]


@given(IMPAIRMENTS, st.lists(st.lists(st.integers(1, 9000), max_size=20), max_size=20))
def test_what_always_holds(impairment: Impairment, batches: list[list[int]]) -> None:
    line = Line(impairment, (1, 2, 3), spared=14)
    now, latest = 0.0, -math.inf
    for i, sizes in enumerate(batches):
        now += i % 3 * impairment.delay / 2
        fates = send(line, sizes, now)
        n = len(fates.which)
        assert n == len(sizes) - fates.lost - fates.full + fates.duplicated
        assert (np.diff(fates.due) >= 0).all()
        assert not n or fates.due[0] >= now
        assert (fates.due <= now + impairment.delay + impairment.jitter + 1e-9).all() or (
            impairment.rate is not None or impairment.jitter
        )
        hit = fates.bit >= 0
        assert (fates.bit[hit] >= 8 * 14).all()
        assert (fates.bit < 8 * np.array(sizes or [1])[fates.which]).all()
        if not impairment.reorder:
            assert (np.diff(fates.which) >= 0).all()
            assert not n or fates.due[0] >= latest
            latest = fates.due[-1] if n else latest


@pytest.mark.parametrize("probability", [0.001, 0.01, 0.3])
def test_how_often(probability: float) -> None:
    p = probability
    line = Line(Impairment(p, 1.0, 0.0, p, p, p), (7,), spared=14)
    fates = send(line, [1514] * MANY)
    kept = MANY - fates.lost
    assert within(fates.lost, MANY, p)
    assert within(fates.duplicated, kept, p)
    assert within(fates.reordered, kept, p)
    first = fates.bit[np.unique(fates.which, return_index=True)[1]]
    assert within(int((first >= 0).sum()), kept, p)


@pytest.mark.parametrize(("loss", "burst"), [(0.01, 8), (0.1, 4), (0.2, 1.25), (0.5, 2), (0.5, 30)])
def test_losses_in_bursts(loss: float, burst: float) -> None:
    """The overall rate is the loss, and runs are as long as is said, on average."""
    fates = send(Line(Impairment(loss, burst=burst), (3,)), [100] * MANY)
    lost = np.ones(MANY, bool)
    lost[fates.which] = False
    begins = int((lost[1:] & ~lost[:-1]).sum())
    correlation = 1 - 1 / burst - loss / (burst * (1 - loss))  # of neighbours
    inflated = math.sqrt((1 + correlation) / (1 - correlation))
    assert within(fates.lost, MANY, loss, 5 * inflated)
    spread = 5 * math.sqrt(burst * (burst - 1) / begins)  # of a geometric distribution
    assert abs(lost.sum() / begins - burst) <= spread + 1 / begins
    long = sum(all(lost[i : i + 3]) for i in np.flatnonzero(lost[1:] & ~lost[:-1]) + 1)
    assert within(long, begins, (1 - 1 / burst) ** 2)


def test_any_bit_behind_the_spared_is_as_likely() -> None:
    fates = send(Line(Impairment(corrupt=1.0), (1,), spared=14), [20] * MANY)
    counts = np.bincount(fates.bit, minlength=160)
    assert counts[: 8 * 14].sum() == 0
    assert all(within(int(count), MANY, 1 / 48) for count in counts[8 * 14 :])


def test_a_packet_of_nothing_but_what_is_spared_stays_whole() -> None:
    assert send(Line(Impairment(corrupt=1.0), (1,), spared=14), [14, 15]).bit[0] == -1


def test_more_of_one_fault_changes_nothing_about_the_others() -> None:
    sizes = [100] * 1000
    few = send(Line(Impairment(loss=0.1, delay=1.0), (5,)), sizes)
    more = send(Line(Impairment(loss=0.1, delay=1.0, jitter=0.5, corrupt=0.2), (5,)), sizes)
    assert few.which.tolist() == more.which.tolist()


def test_seeds_differ() -> None:
    sizes = [100] * 1000
    lost = {
        tuple(send(Line(Impairment(loss=0.5), (s, d)), sizes).which) for s in (0, 1) for d in (0, 1)
    }
    assert len(lost) == 4


def test_jitter_is_uniform_and_keeps_the_order() -> None:
    line = Line(Impairment(delay=0.01, jitter=0.004), (1,))
    delays = np.array([send(line, [100], now).due[0] - now for now in range(5000)])
    assert delays.min() >= 0.006
    assert delays.max() <= 0.014
    assert abs(delays.mean() - 0.01) < 5 * 0.008 / math.sqrt(12 * 5000)
    counts, _ = np.histogram(delays, 8, (0.006, 0.014))
    assert all(within(int(count), 5000, 1 / 8) for count in counts)
    together = send(line, [100] * 50, 1e6)
    assert together.which.tolist() == list(range(50))
    assert (np.diff(together.due) >= 0).all()


def test_a_reordered_packet_skips_the_delay() -> None:
    fates = send(Line(Impairment(delay=1.0, reorder=0.3), (2,)), [100] * 100)
    early = fates.due == 0.0
    assert 0 < early.sum() == fates.reordered < 100
    assert (fates.due[~early] == 1.0).all()
    assert (np.diff(fates.which[early]) > 0).all()
    assert (np.diff(fates.which[~early]) > 0).all()


def test_the_rate_counts_bytes_and_the_queue_packets() -> None:
    line = Line(Impairment(rate=8000, queue=3), (1,))
    fates = send(line, [1000, 500, 250, 100])
    assert fates.due.tolist() == [1.0, 1.5, 1.75]
    assert fates.full == 1
    assert send(line, [1000], 0.5).full == 1
    assert send(line, [1000], 1.0).due.tolist() == [2.75]
    assert send(line, [1000], 9.0).due.tolist() == [10.0]


def test_lost_packets_take_their_time_at_the_rate() -> None:
    line = Line(Impairment(rate=8000, loss=1.0), (1,))
    assert send(line, [1000] * 5).lost == 5
    assert line.fates(np.array([1]), 0.0).lost == 1
    assert Line(Impairment(rate=8000), (1,)).fates(np.array([1000]), 0.0).due.tolist() == [1.0]


def test_as_sent() -> None:
    assert send(Line(Impairment(loss=1e-9), (1,)), [5] * 9, 3.0).as_sent(9, 3.0)
    assert send(Line(Impairment(), (1,)), []).as_sent(0, 3.0)
    for impairment in (
        Impairment(loss=1.0),
        Impairment(delay=1.0),
        Impairment(duplicate=1.0),
        Impairment(corrupt=1.0),
        Impairment(rate=1),
    ):
        assert not send(Line(impairment, (1,)), [5] * 9, 3.0).as_sent(9, 3.0)


# Transit


@given(
    st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=8).map(sorted), max_size=12),
    st.lists(st.integers(0, 21)),
)
def test_packets_come_out_in_the_order_they_are_due(
    runs: list[list[int]], looks: list[int]
) -> None:
    """Those due at once, in the order in which they were put in."""
    transit: Transit[int] = Transit()
    for number, run in enumerate(runs):
        transit.put(number, np.array(run, float))
    out: list[tuple[int, int, int]] = []
    for now in [*sorted(looks), 21]:
        for number, start, stop in transit.pop(now):
            assert start < stop
            assert all(due <= now for due in runs[number][start:stop])
            out += [(runs[number][i], number, i) for i in range(start, stop)]
        deadline = transit.deadline()
        assert deadline is None or deadline > now
    assert transit.deadline() is None
    assert out == sorted((due, n, i) for n, run in enumerate(runs) for i, due in enumerate(run))
