"""Random histories: none breaks a promise, broken cores are caught, failures shrink and replay."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from iswitch.core.format.packets import Address, Indices, Outgoing, Stretch
from iswitch.core.format.wire import SEG_SIZE, DType, Shape, Vector
from iswitch.core.jobs.answers import Answers
from iswitch.core.jobs.questions import Questions
from iswitch.core.jobs.requests import Answer, Request
from iswitch.core.sums.asynchronous import AsynchronousAccelerator
from iswitch.core.sums.runs import Held, Outcome, Run
from iswitch.core.sums.synchronous import SynchronousAccelerator
from iswitch.lab.soak.drawing import LARGE
from iswitch.lab.soak.generate import generate
from iswitch.lab.soak.oracle import Rounds
from iswitch.lab.soak.run import Result, run
from iswitch.lab.soak.scenario import COLLECTIVES, ELASTIC, EVENTS, WHOLE, Job, Scenario
from iswitch.lab.soak.shrink import shrink
from iswitch.lab.soak.values import EXACT, Values, most_lives
from iswitch.lab.soak.violation import Violation
from iswitch.sim.trace import Trace
from tests.support import python

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_SOAK_SEEDS", "12"))  # `make soak` takes more
CAUGHT = 200  # seeds in which a broken core must be caught


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_all_promises_hold(seed: int) -> None:
    result = run(generate(seed))
    assert not result.violation, result.message
    assert result.rounds > 0


# Broken cores: patched where contributions come in, which is above the path for runs and the one
# for pieces of runs

Break = Callable[[pytest.MonkeyPatch], None]
Accumulate = Callable[[SynchronousAccelerator, int, Stretch, Outcome], None]


def indices_of(stretch: Stretch) -> Indices:
    return np.arange(stretch.start, stretch.stop) if stretch.indices is None else stretch.indices


def add_again(into: SynchronousAccelerator, sums: Vector, stretch: Stretch, which: Indices) -> None:
    """Add some packets of a stretch to sums, (segments, elements and headers), header and all."""
    indices = indices_of(stretch)
    for i in which:
        into._add(sums[indices[i] : indices[i] + 1], stretch.rows[i : i + 1], first=False)


def patch(monkeypatch: pytest.MonkeyPatch, broken: Callable[[Accumulate], Accumulate]) -> None:
    original = SynchronousAccelerator.accumulate
    monkeypatch.setattr(SynchronousAccelerator, "accumulate", broken(original))


def no_bitmap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contribution that comes again is added again."""

    def broken(original: Accumulate) -> Accumulate:
        def accumulate(
            self: SynchronousAccelerator, rank: int, stretch: Stretch, outcome: Outcome
        ) -> None:
            slot = stretch.round & 1
            held = self.state[slot].words[indices_of(stretch)]
            is_open = held[:, 0] == stretch.round  # and not far enough for anything else
            again = np.flatnonzero(is_open & (held[:, 1] >> np.uint64(rank) & np.uint64(1) == 1))
            original(self, rank, stretch, outcome)
            into = self._contributions[rank] if self.reproducible else self._words
            add_again(self, into[slot], stretch, again)
            self.counters["duplicate"] -= len(again)
            self.counters["accumulated"] += len(again)

        return accumulate

    patch(monkeypatch, broken)


def kept_for_one_round_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The aggregate of a round is forgotten when the next round begins."""
    original_held = SynchronousAccelerator.held

    def begun(self: SynchronousAccelerator, round_: int, index: int) -> bool:
        newer = self.state[(round_ + 1) & 1].get(index)
        return newer[0] == round_ + 1 and bool(newer[1] or newer[2])

    def held(
        self: SynchronousAccelerator, round_: int, start: int, stop: int
    ) -> Iterator[tuple[Run, Held, int]]:
        for part, what, bitmap in original_held(self, round_, start, stop):
            gone = what is Held.COMPLETE and begun(self, round_, part.start)
            yield (part, Held.GONE, 0) if gone else (part, what, bitmap)

    def broken(original: Accumulate) -> Accumulate:
        def accumulate(
            self: SynchronousAccelerator, rank: int, stretch: Stretch, outcome: Outcome
        ) -> None:
            original(self, rank, stretch, outcome)
            outcome.late[:] = [run for run in outcome.late if not begun(self, run.round, run.start)]

        return accumulate

    patch(monkeypatch, broken)
    monkeypatch.setattr(SynchronousAccelerator, "held", held)


def deaf_to_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Help is answered, and nothing is done."""

    def help_(self: Questions, request: Request) -> Answer:  # noqa: ARG001
        return Answer(request.ack(), [])

    monkeypatch.setattr(Questions, "help", help_)


def late_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes for a complete segment is added to the kept aggregate."""

    def broken(original: Accumulate) -> Accumulate:
        def accumulate(
            self: SynchronousAccelerator, rank: int, stretch: Stretch, outcome: Outcome
        ) -> None:
            slot = stretch.round & 1
            held = self.state[slot].words[indices_of(stretch)]
            complete = np.uint64(self.COMPLETE << 32 | stretch.round)
            aggregates = self.aggregates[slot]
            headers = aggregates[:, :SEG_SIZE].copy()
            sums = aggregates.view(self._word)
            add_again(self, sums, stretch, np.flatnonzero(held[:, 0] == complete))
            aggregates[:, :SEG_SIZE] = headers
            original(self, rank, stretch, outcome)

        return accumulate

    patch(monkeypatch, broken)


def no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an asynchronous job a contribution that comes again is added again."""
    original = AsynchronousAccelerator.accumulate

    def accumulate(
        self: AsynchronousAccelerator, rank: int, stretch: Stretch, outcome: Outcome
    ) -> None:
        self.join(rank)
        original(self, rank, stretch, outcome)

    monkeypatch.setattr(AsynchronousAccelerator, "accumulate", accumulate)


def late_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is sent the aggregate for a late contribution."""

    def broken(original: Accumulate) -> Accumulate:
        def accumulate(
            self: SynchronousAccelerator, rank: int, stretch: Stretch, outcome: Outcome
        ) -> None:
            original(self, rank, stretch, outcome)
            outcome.late.clear()

        return accumulate

    patch(monkeypatch, broken)


def executes_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody remembers what was answered."""
    monkeypatch.setattr(Answers, "get", lambda *_: None)


def stale_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broadcasts go to those who were there when the job began."""
    original = SynchronousAccelerator.deliver
    first: dict[SynchronousAccelerator, tuple[Address, ...]] = {}

    def deliver(
        self: SynchronousAccelerator, completed: Sequence[Run], peers: tuple[Address, ...]
    ) -> list[Outgoing]:
        return original(self, completed, first.setdefault(self, peers))

    monkeypatch.setattr(SynchronousAccelerator, "deliver", deliver)


# The violations by which each must be caught: what it breaks, and nothing else.
BROKEN: dict[Break, set[str]] = {
    no_numbers: {"counted twice"},
    no_bitmap: {"counted twice"},
    kept_for_one_round_less: {"aggregate missed", "not answered"},
    deaf_to_help: {"no progress"},
    late_counts: {"counted twice", "changed"},
    late_unanswered: {"not answered"},
    executes_repeats: {"executed again", "obeyed"},
    stale_receivers: {"astray", "not sent"},
}


def first_caught() -> tuple[Scenario, Result]:
    """Find the first history that breaks a promise, and its result."""
    short = filter(lambda one: one.horizon < 1, map(generate, range(CAUGHT)))  # without leases
    return next(both for both in ((one, run(one)) for one in short) if both[1].violation)


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_core_is_caught_and_the_history_shrinks(
    broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    scenario, found = first_caught()
    assert found.violation in BROKEN[broken], found.message
    shortest, result = shrink(scenario)
    assert result.violation == found.violation
    assert len(shortest.events) <= min(2, len(scenario.events))
    assert sum(len(job.hosts) for job in shortest.jobs) <= 3
    assert len(shortest.links.split(",")) <= 3
    assert run(Scenario.from_json(shortest.to_json())) == result
    assert broken is not late_counts or shrink(scenario) == (shortest, result)  # the quickest
    monkeypatch.undo()
    assert not run(scenario).violation


def test_a_core_that_raises_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(*_: object) -> Iterator[tuple[Run, Held, int]]:
        raise IndexError("made up")

    monkeypatch.setattr(SynchronousAccelerator, "held", held)
    result = run(Scenario(1, "star:2", (Job(1, WHOLE, ("h1", "h2")),), links="loss=0.3"))
    assert result.violation == "IndexError"


# Scenarios


def test_every_event_and_mode_is_generated() -> None:
    scenarios = [generate(seed) for seed in range(400)]
    assert {event.what for s in scenarios for event in s.events} == set(EVENTS)
    jobs = [job for s in scenarios for job in s.jobs]
    assert {job.mode for job in jobs} == {"whole", "elastic", "asynchronous"}
    assert {job.dtype for job in jobs} == {dtype.name.lower() for dtype in EXACT}
    assert any(not job.numel for job in jobs)
    assert any(job.numel % job.elements for job in jobs if job.numel > job.elements)
    assert any(job.threshold for job in jobs)
    assert any(job.tells for job in jobs)
    assert any(job.keyed for job in jobs)
    assert any(job.shape().segments >= LARGE[0] for job in jobs)
    assert any(len(s.jobs) > 1 for s in scenarios)
    assert any(s.ports for s in scenarios)
    assert {e.what for s in scenarios if s.rings for e in s.events} >= {
        "restart",
        "reborn",
        "pause",
    }
    assert any(s.slots for s in scenarios)
    in_trees = [s for s in scenarios if not s.topology.startswith("star")]
    for some in (scenarios, in_trees):
        assert {job.collective for s in some for job in s.jobs} == {"", *COLLECTIVES}
        mixed = [s for s in some if len(s.jobs) > 1 and any(job.asynchronous for job in s.jobs)]
        assert any(job.collective for s in mixed for job in s.jobs)
        assert any(job.asynchronous and job.keyed for s in some for job in s.jobs)
    forms = {s.topology.partition(":")[0] for s in scenarios}
    assert forms == {"star", "rack", "tree", "leafspine"}
    for name in ("loss", "burst", "duplicate", "corrupt", "delay", "jitter", "reorder", "rate"):
        assert any(f"{name}=" in s.links for s in scenarios), name


def test_scenarios_read_back_equal() -> None:
    for seed in range(100):
        scenario = generate(seed)
        assert Scenario.from_json(scenario.to_json()) == scenario
        assert scenario == generate(seed)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "{}",
        '{"seed":1,"topology":"star:1","jobs":[{}]}',
        '{"seed":1,"topology":"star:1","jobs":[{"number":1,"mode":"some","hosts":["h1"]}]}',
        '{"seed":1,"topology":"star:1","jobs":[{"number":1,"mode":"elastic","hosts":["h1"],'
        '"collective":"all_gather"}]}',
        '{"seed":1,"topology":"star:1","jobs":[{"number":1,"mode":"whole","hosts":["h1"],'
        '"collective":"some"}]}',
        '{"seed":1,"topology":"star:1","events":[{"at":"now","what":"pause","who":"s1"}]}',
    ],
)
def test_what_is_no_scenario(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Scenario.from_json(text)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_history() -> None:
    """Also in another process, with other hashes."""
    seeds = [s for s in range(40) if generate(s).events][:3]
    code = (
        "import sys; from iswitch.sim.trace import Trace; from iswitch.lab.soak.run import run; "
        "from iswitch.lab.soak.generate import generate\n"
        f"for seed in {seeds}: trace = Trace(); run(generate(seed), trace); print(trace.digest())"
    )
    mine = []
    for seed in seeds:
        trace = Trace()
        run(generate(seed), trace)
        mine.append(trace.digest())
    for hash_seed in ("1", "2"):
        done = python("-c", code, PYTHONHASHSEED=hash_seed)
        assert done.stdout.split() == mine, done.stderr


# The oracle itself


@pytest.mark.parametrize("dtype", list(EXACT))
@pytest.mark.parametrize("numel", [0, 1, 5, 12])
def test_sums_of_values_are_exact_and_tell_who_is_in_them(dtype: DType, numel: int) -> None:
    lives = most_lives(dtype)
    shape = Shape.of(numel, dtype, elements=3)
    values = Values(shape, lives)
    everybody = tuple(range(lives))
    exact = np.sum([values.contribution(i, 7).astype(np.int64) for i in everybody], axis=0)
    assert (np.abs(exact) <= 1 << EXACT[dtype]).all()
    total = np.zeros(numel, dtype.numpy)
    for i in reversed(everybody):
        total = (total + values.contribution(i, 7)).astype(dtype.numpy)
    assert (total == values.total(everybody, 7)).all()
    for code in values.codes(total):
        assert values.counts(code) == dict.fromkeys(everybody, 1)
    if numel > 1 and lives > 1:
        assert (values.contribution(0, 7) != values.contribution(0, 8)).any()


def oracle(mode: str = WHOLE) -> Rounds:
    job = Job(1, mode, ("h1", "h2"), numel=6, elements=4)
    made = Rounds(Scenario(1, "star:2", (job,)), job, 3)
    for identity in (0, 1):
        made.begins(identity, 5)
    return made


def test_the_oracle_is_content_with_exact_sums() -> None:
    made = oracle()
    made.gets("h1", 0, 5, made.values.total((0, 1), 5))
    made.gets("h2", 1, 5, made.values.total((0, 1), 5))
    assert made.finished == 2


@pytest.mark.parametrize(
    ("identities", "kind"),
    [((0, 0, 1), "counted twice"), ((0,), "too few"), ((0, 1, 2), "not entitled")],
)
def test_the_oracle_sees_who_is_wrong(identities: tuple[int, ...], kind: str) -> None:
    made = oracle(ELASTIC)
    with pytest.raises(Violation) as caught:
        made.gets("h1", 0, 5, made.values.total(identities, 5))
    assert caught.value.kind == kind


def test_the_oracle_sees_wrong_elements_and_other_rounds() -> None:
    for wrong in ("element", "round"):
        made = oracle()
        total = made.values.total((0, 1), 6 if wrong == "round" else 5)
        total[1] += wrong == "element"
        with pytest.raises(Violation) as caught:
            made.gets("h1", 0, 5, total)
        assert caught.value.kind == "wrong sum"


def test_the_oracle_sees_a_round_that_was_missed() -> None:
    with pytest.raises(Violation, match="did not get round 5"):
        oracle().falls_behind("h1", 5, 7, dropped=False)
