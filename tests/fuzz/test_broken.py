"""The machines find what they are for: cores that are broken on purpose do not pass."""

# ruff: noqa: ARG001, ARG005  (what stands in for a method has its arguments)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from iswitch.core.format.packets import Rows
from iswitch.core.jobs import rounds as jobs_rounds
from iswitch.core.jobs.lifecycle import Lifecycle
from iswitch.core.jobs.membership import Membership
from iswitch.core.jobs.relay import Relays
from iswitch.core.jobs.routes import Routes
from iswitch.core.jobs.window import Window
from iswitch.core.sums.runs import Outcome
from iswitch.core.sums.states import Table
from iswitch.core.sums.synchronous import SynchronousAccelerator
from tests.fuzz.profile import FUZZ
from tests.fuzz.test_rounds import Rounds
from tests.fuzz.test_switch import Anything

pytestmark = pytest.mark.unit

ONCE = settings(FUZZ, phases=[Phase.generate], derandomize=True, max_examples=200, database=None)


def without_bitmap(patch: pytest.MonkeyPatch) -> None:
    """A contribution that comes again is added again."""
    right = SynchronousAccelerator._accumulate_run

    def wrong(self: SynchronousAccelerator, rank: int, round_: int, start: int, stop: int,
              rows: Rows, outcome: Outcome) -> None:  # fmt: skip
        state = self.state[round_ & 1]
        holds, how_far, bitmap = state.get(start)
        if holds == round_ and how_far == self.OPEN and bitmap >> rank & 1:
            self._add(self._words[round_ & 1, start:stop], rows, first=False)
            self.counters["duplicate"] += len(rows)
            return
        right(self, rank, round_, start, stop, rows, outcome)

    patch.setattr(SynchronousAccelerator, "_accumulate_run", wrong)


def sets_not_taken_over(patch: pytest.MonkeyPatch) -> None:
    """What an older round left in a set stays in the sum."""
    right = SynchronousAccelerator._add

    def wrong(self: SynchronousAccelerator, into: Any, rows: Rows, first: bool) -> None:
        right(self, into, rows, False)

    patch.setattr(SynchronousAccelerator, "_add", wrong)


def late_counted(patch: pytest.MonkeyPatch) -> None:
    """A late contribution is added to the sum that is kept."""
    right = SynchronousAccelerator._accumulate_run

    def wrong(self: SynchronousAccelerator, rank: int, round_: int, start: int, stop: int,
              rows: Rows, outcome: Outcome) -> None:  # fmt: skip
        holds, how_far, _ = self.state[round_ & 1].get(start)
        if holds == round_ and how_far == self.COMPLETE:
            self._add(self._words[round_ & 1, start:stop], rows, first=False)
            self._write_headers(round_ & 1, round_, start, stop)
        right(self, rank, round_, start, stop, rows, outcome)

    patch.setattr(SynchronousAccelerator, "_accumulate_run", wrong)


def help_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Routes, "answer", lambda self, member, kept: [])
    patch.setattr(SynchronousAccelerator, "held", lambda self, round_, start, stop: iter(()))


def window_too_wide(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Window, "__contains__", lambda self, round_: not self.is_past(round_))


def reset_keeps_sums(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Table, "clear", lambda self: None)


def leaver_waited_for(patch: pytest.MonkeyPatch) -> None:
    """What waits only for a member that has left does not complete."""
    patch.setattr(Lifecycle, "reevaluate", lambda self, job, now: [])


def memory_not_limited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("iswitch.core.jobs.memory.memory_needed", lambda *_: 0)


def ranks_given_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "free_seat", lambda *_args, **_kwargs: 0)


def drops_not_counted(patch: pytest.MonkeyPatch) -> None:
    right = jobs_rounds.Rounds.refuse

    def wrong(self: jobs_rounds.Rounds, member: object, round_: int) -> str | None:
        reason = right(self, member, round_)  # type: ignore[arg-type]
        return "late" if reason == "out_of_window" else reason

    patch.setattr(jobs_rounds.Rounds, "refuse", wrong)


def timer_never_satisfied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Relays, "handle_timer", lambda self, now: [])


Break = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "break_it"),
    [
        (Rounds, without_bitmap),
        (Anything, without_bitmap),
        (Rounds, sets_not_taken_over),
        (Anything, sets_not_taken_over),
        (Rounds, late_counted),
        (Anything, late_counted),
        (Rounds, help_ignored),
        (Rounds, window_too_wide),
        (Rounds, reset_keeps_sums),
        (Rounds, leaver_waited_for),
        (Rounds, drops_not_counted),
        (Rounds, timer_never_satisfied),
        (Anything, memory_not_limited),
        (Anything, ranks_given_twice),
    ],
)
def test_a_broken_core_is_found(
    machine: type[RuleBasedStateMachine], break_it: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    with pytest.raises((AssertionError, AttributeError, KeyError)):
        run_state_machine_as_test(machine, settings=ONCE)
