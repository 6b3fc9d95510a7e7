"""Rounds in a row are noted once, whatever an error of a signal's handler ends meanwhile."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from iswitch.fast import loading
from tests.support.interrupting import Handler, Interrupted
from worker_lib.kernel import DONE

from .test_streaks import Rounds
from .test_worker_rounds import SHAPES, WAYS

pytest.importorskip("numba")


@pytest.fixture(autouse=True)
def _switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loading.SWITCH, "1")


class Noting(Rounds):
    """Rounds in a row, which the session notes; an error of a signal's handler ends that once."""

    def is_interrupted(self, line: int) -> bool:
        """Play a streak, and have it noted; return whether an error came, at this line."""
        python, compiled, kernel = self.python.session, self.compiled.session, self.compiled.kernel
        assert kernel is not None
        self._both_whole()
        play_next = self._next_rounds(kernel)
        done: int | None = DONE
        for _ in range(1 + line % 3):
            vector, total = self.vector(), self.vector()
            self.compiled.say(self._sums(python.round, total))
            self._whole(self.python, vector, total)
            out = np.zeros_like(total)
            found = self._next(play_next, vector, out)
            if found != DONE:  # there was no time for all of it
                done = found
                break
        handler = Handler(line)
        with suppress(Interrupted), handler.watching():
            compiled.played_streak(kernel.streak())
        compiled.played_streak(kernel.streak())
        if done != DONE:
            self.compiled.begin(vector, out, done)
            compiled.finish()
        self.compiled.drain()
        assert compiled.round == kernel.until + (done != DONE) == python.round
        assert compiled.finished == python.finished
        rounds = [[one.round for one in each.contributions()] for each in (compiled, python)]
        assert rounds[0] == rounds[1]
        return handler.was_called


@pytest.mark.parametrize("way", ["offload", "rings"])
def test_rounds_in_a_row_are_noted_once_whatever_ends_that(way: str) -> None:
    shape, line = SHAPES["few"], 1
    with (
        WAYS[way](shape, compiled=False) as python,
        WAYS[way](shape, compiled=True) as compiled,
    ):
        both = Noting(shape, python, compiled, seed=0)
        while both.is_interrupted(line):
            line += 1
    assert line > 20
