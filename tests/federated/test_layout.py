"""Contributions as vectors, and stamps: who is in a sum, by every packet of it."""

from __future__ import annotations

import numpy as np
import pytest

from worker_lib.errors import WorkerError
from worker_lib.federated.layout import Layout, Word, bitmap, ranks_in


@pytest.mark.parametrize("numel", [0, 1, 12, 13, 14, 28])
@pytest.mark.parametrize("members", [1, 23, 24, 60])
def test_a_sum_of_contributions(numel: int, members: int) -> None:
    layout = Layout(numel, members, 18)
    ranks = sorted({0, members // 2, members - 1})
    weights = np.arange(numel, dtype=np.float32)
    total = np.sum([layout.contribution(rank, weights, 2) for rank in ranks], 0)
    assert total.size == layout.size
    assert layout.ranks(total) == tuple(ranks)
    assert layout.is_of(total, ranks)
    assert not layout.is_of(total, ranks[:-1])
    summed, n = layout.total(total)
    assert (summed == 2 * len(ranks) * weights).all()
    assert n == 2 * len(ranks)


def test_one_segment_that_is_not_whole_is_seen() -> None:
    layout = Layout(20, 3, 10)
    whole = [layout.contribution(rank, np.ones(20, np.float32), 1) for rank in range(3)]
    part = whole[2].copy()
    part[layout.elements : 2 * layout.elements] = 0  # of one segment it was lost
    total = whole[0] + whole[1] + part
    assert layout.ranks(total) == (0, 1, 2)
    assert not layout.is_of(total, [0, 1, 2])


def test_the_coordinator_is_nobody_in_a_sum() -> None:
    """Where it closes a round, its stamp keeps the sum from being taken for whole."""
    layout = Layout(1, 2, 8)
    closed = layout.stamped(2, 1)
    assert layout.ranks(closed) == ()
    assert layout.ranks(closed + layout.stamped(1, 1)) == (1,)
    assert not layout.is_of(closed + layout.stamped(1, 1), [1])


def test_a_contribution_that_counts_twice_is_no_rank() -> None:
    """Twice rank 1 looks like rank 2; the number of contributions differs."""
    layout = Layout(1, 3, 8)
    twice = 2 * layout.stamped(1, 1)
    assert ranks_in(twice[layout.payload + 1 :]) == (2,)
    with pytest.raises(WorkerError, match="do two members have one rank"):
        layout.ranks(twice)


def test_a_tag_tells_whether_all_are_ready_for_one_round() -> None:
    layout = Layout(1, 3, 8)
    now = layout.ready(0, 4095) + layout.ready(1, 4095)
    assert layout.tag(now) == layout.tag(layout.ready(2, 4095))
    assert layout.tag(now + layout.ready(2, 4094)) < layout.tag(now)
    assert layout.ranks(now) == (0, 1)
    most = np.float32(4095) * np.float32(4096)
    assert most < 1 << 24


def test_bitmaps_are_exact_at_every_rank() -> None:
    words = 171  # of 4,096 ranks
    assert ranks_in(bitmap(range(4096), words)) == tuple(range(4096))
    assert bitmap(range(4096), words).max() == (1 << 24) - 1
    total = np.sum([bitmap([rank], 1) for rank in range(24)], 0)
    assert ranks_in(total) == tuple(range(24))


def test_a_word_is_read_as_it_was_said() -> None:
    for word in (
        Word(0, 0),
        Word(70_000, 0xFFFFFFFF, (0, 29), 69_999, (29,)),
        Word(3, 4, (), 0, (), goes_on=False),
    ):
        elements = word.build(30)
        assert elements.dtype == np.float32
        assert elements.size == Word.elements(30)
        assert Word.parse(elements) == word
