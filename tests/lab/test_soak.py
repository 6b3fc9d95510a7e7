"""Random histories: none breaks a promise, broken cores are caught, failures shrink and replay."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from iswitch.cli import main
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
from iswitch.lab.soak.many import AT_ONCE, play
from iswitch.lab.soak.oracle import Rounds
from iswitch.lab.soak.run import History, Result, run
from iswitch.lab.soak.scenario import ELASTIC, EVENTS, WHOLE, Event, Job, Scenario
from iswitch.lab.soak.shrink import shrink
from iswitch.lab.soak.values import EXACT, Values, most_lives
from iswitch.lab.soak.violation import Violation
from iswitch.sim.trace import Trace
from tests.support import ROOT

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_SOAK_SEEDS", "60"))  # `make soak` takes more
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
            sums = aggregates.view(self._dtype)
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
CAUGHT_BY: dict[Break, tuple[Scenario, Result]] = {}
each_broken = pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)


def first_caught(broken: Break) -> tuple[Scenario, Result]:
    """The first that finds it, which is looked for once, and what it finds."""
    if broken not in CAUGHT_BY:
        played = ((scenario, run(scenario)) for scenario in map(generate, range(CAUGHT)))
        CAUGHT_BY[broken] = next(both for both in played if both[1].violation)
    return CAUGHT_BY[broken]


@pytest.mark.slow
@each_broken
def test_a_broken_core_is_caught(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    scenario, result = first_caught(broken)
    assert result.violation in BROKEN[broken], result.message
    monkeypatch.undo()
    assert not run(scenario).violation


@pytest.mark.slow
@each_broken
def test_a_failure_shrinks_and_replays(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    short = filter(lambda one: one.horizon < 1, map(generate, range(CAUGHT)))  # without leases
    scenario, found = next(both for both in ((one, run(one)) for one in short) if both[1].violation)
    shortest, result = shrink(scenario)
    assert result.violation == found.violation
    assert len(shortest.events) <= min(2, len(scenario.events))
    assert sum(len(job.hosts) for job in shortest.jobs) <= 3
    assert len(shortest.links.split(",")) <= 3
    assert broken is deaf_to_help or shrink(scenario) == (shortest, result)  # which takes long
    assert run(Scenario.from_json(shortest.to_json())) == result


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
    assert {job.dtype for job in jobs} == {dtype.name.lower() for dtype in DType}
    assert any(not job.numel for job in jobs)
    assert any(job.numel % job.elements for job in jobs if job.numel > job.elements)
    assert any(job.threshold for job in jobs)
    assert any(job.tells for job in jobs)
    assert any(job.keyed for job in jobs)
    assert any(job.shape().segments >= LARGE[0] for job in jobs)
    assert any(len(s.jobs) > 1 for s in scenarios)
    assert any(s.ports for s in scenarios)
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
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )  # fmt: skip
        assert done.stdout.split() == mine, done.stderr


# The oracle itself


@pytest.mark.parametrize("dtype", list(DType))
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


# The command


@pytest.mark.slow
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "--seeds", "20", "--processes", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["seeds"] == 20
    assert report["sums"] > 100
    assert report["failed"] == report["violations"] == []
    assert main(["soak", "--seeds", "3", "--first", "5", "--processes", "1"]) == 0
    assert capsys.readouterr().out.startswith("3 histories, ")


@pytest.mark.slow
def test_processes_find_what_one_does() -> None:
    def by_seed(processes: int) -> list[Result]:
        return sorted(play(range(AT_ONCE + 2), processes), key=lambda result: result.seed)

    assert by_seed(2) == by_seed(1)


def test_one_seed_with_its_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "seed.pcapng"
    assert main(["soak", "--seed", "3", "--pcapng", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("seed 3: ")
    assert " received  JOIN " in out
    assert "all promises held: " in out.splitlines()[-1]
    assert path.read_bytes()[:4] == b"\x0a\x0d\x0d\x0a"
    assert main(["soak", "--seed", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scenario"]["seed"] == 3


@pytest.mark.slow
def test_a_failure_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says the shortest schedule, and how to play that again; the status is 1."""
    no_bitmap(monkeypatch)
    first = first_caught(no_bitmap)[0].seed
    words = ["soak", "--first", str(first), "--seeds", "1", "--processes", "1"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert f"seed {first} breaks a promise" in out
    assert "the shortest schedule found that breaks it, too:" in out
    (command,) = [line for line in out.splitlines() if "--scenario" in line]
    scenario = command.split("--scenario ")[1].strip("'")
    assert main(["soak", "--scenario", scenario]) == 1
    assert "counted twice" in capsys.readouterr().out.splitlines()[-1]
    assert main([*words, "--json"]) == 1
    (violation,) = json.loads(capsys.readouterr().out)["violations"]
    assert violation["shortest"]["violation"] == violation["violation"] == "counted twice"


DOC = (ROOT / "docs" / "soak.md").read_text()


@pytest.mark.parametrize("at", ["", "@"])
def test_the_documented_example(
    at: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a file; the timeline has the lines of the page, in their order."""
    (scenario,) = re.findall(r"^```json\n(.*?)^```", DOC, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```timeline\n(.*?)^```", DOC, re.MULTILINE | re.DOTALL)
    path = tmp_path / "failure.json"
    path.write_text(scenario)
    assert main(["soak", "--scenario", f"{at}{path}"]) == 0
    lines = iter(capsys.readouterr().out.splitlines())
    wanted = [re.split(r"\s+# ", line)[0] for line in shown.splitlines()]
    assert [line for line in wanted if line not in lines] == []  # each behind the one before
    *_, last = lines
    assert last in " ".join(DOC.split())


def test_the_keys_of_json_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    part = DOC[DOC.index("With `--json`") : DOC.index("## What is left out")]
    tables = part.split("and for many:")
    for table, words in zip(tables, (["--seed", "3"], ["--seeds", "1"]), strict=True):
        assert main(["soak", *words, "--json"]) == 0
        found = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        keys = {key for cell in found for key in re.findall(r"`(\w+)`", cell)}
        assert keys == set(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    "words",
    [["--scenario", "nonsense"], ["--pcapng", "x"], ["--seeds", "0"], ["--seeds", "x"]],
)
def test_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["soak", *words])
    except SystemExit as ended:
        status = int(str(ended.code))
    assert status == 2
    assert capsys.readouterr().err


# What soaks have found


def ms(at: float, what: str, who: str, lasting: float = 0.0) -> Event:
    return Event(at / 1000, what, who, lasting / 1000)


TWO, THREE, FOUR = (tuple(f"h{i}" for i in range(1, n + 1)) for n in (2, 3, 4))
MENDED = {
    "a Reset relayed again, rounds later, had a switch of a tree go back": Scenario(
        3773, "rack:3x1", (Job(1, ELASTIC, THREE, "float16", 33, 33),),
        "loss=0.2,duplicate=0.1", (ms(145.573, "reset", "h3"),), 0.2, 0.01, 0.0005,
    ),
    "a switch whose workers had all left was told how many there had been": Scenario(
        2611, "tree:2x1x2", (Job(1, WHOLE, FOUR, "int32", 96, 8),), "loss=0.01,duplicate=0.3",
        (ms(12.9, "cut", "s3", 100), ms(14.3, "reborn", "h2", 20), ms(24.5, "leave", "h3", 20),
         ms(24.7, "cut", "h4", 2), ms(34.6, "leave", "h4", 20)), 0.05, 0.0025, 0.0001,
    ),
    "after restarts of two switches nobody knew of the older of two open rounds": Scenario(
        5875, "rack:1x3", (Job(1, WHOLE, THREE, "bfloat16", 1, 8),),
        "loss=0.05,duplicate=0.01,delay=100us,jitter=50us,reorder=0.3",
        (ms(55.2, "cut", "h1", 100), ms(70.2, "restart", "tor1", 50), ms(74, "cut", "tor1", 100),
         ms(221.5, "restart", "core1", 50)), 0.4, 0.02, 0.0001,
    ),
    "late answers to a switch in between told how many there had been": Scenario(
        6150, "tree:1x1x1x2", (Job(1, WHOLE, TWO, "int32", 33, 33, reproducible=True),),
        "loss=0.1,duplicate=0.1,delay=1000us,jitter=1000us,reorder=0.05",
        (ms(83.84, "pause", "s3", 100), ms(120.373, "pause", "h1", 100),
         ms(125.919, "restart", "s4", 0.01), ms(265.902, "pause", "h1", 100)), 0.4, 0.02, 2e-5,
    ),
    "the last of a whole job, replaced, began later than those who came after": Scenario(
        8027, "star:2", (Job(1, WHOLE, TWO, "int32", 33, 33),),
        "loss=0.2,duplicate=0.3,corrupt=0.01,delay=1000us,jitter=500us,reorder=0.3",
        (ms(9.5, "reborn", "h1", 1), ms(52.1, "leave", "h2", 20), ms(134, "pause", "s1", 20)),
        0.2, 0.01, 0.0001,
    ),
    "a newcomer in a job whose workers ask for their ranks": Scenario(
        79, "star:3", (Job(1, ELASTIC, TWO, "int32", 1, 8),), "loss=0.1,duplicate=0.1,corrupt=0.01",
        (ms(1.6, "join", "h3"), ms(20.6, "cut", "h3", 20), ms(38.9, "reborn", "h1", 0.01)),
        0.05, 0.00125, 0.00002,
    ),
}  # fmt: skip


SEEN = {  # beside the first twenty from the scenario's own on
    6150: [6288],  # who is held back gets the aggregate that its switch keeps by Help, not at once
}


@pytest.mark.parametrize("scenario", MENDED.values(), ids=MENDED)
def test_what_was_mended_stays_so(scenario: Scenario) -> None:
    for seed in [*range(scenario.seed, scenario.seed + 20), *SEEN.get(scenario.seed, [])]:
        result = run(replace(scenario, seed=seed))
        assert not result.violation, (seed, result.message)


@pytest.mark.parametrize("broken", ["", "sum"])
def test_ctrl_c_tells_what_was_found_so_far(
    broken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def some(seeds: range, _: int) -> Iterator[Result]:
        yield replace(run(generate(1)), seed=seeds[0])
        yield replace(run(generate(1)), seed=seeds[1], violation=broken)
        raise KeyboardInterrupt

    monkeypatch.setattr("iswitch.lab.soak.many.play", some)
    assert main(["soak", "--seeds", "9", "--first", "70"]) == 130
    out, err = capsys.readouterr()
    assert err == "iswitch soak: stopped by SIGINT after 2 of 9 histories\n"
    assert re.match("2 histories, .*: 1 violation\n" if broken else "2 histor.*no violations", out)
    assert out.endswith("failed: 71\n") == bool(broken)
    assert main(["soak", "--seeds", "9", "--json"]) == 130
    report = json.loads(capsys.readouterr().out)
    assert (report["seeds"], report["complete"]) == (2, False)
    monkeypatch.setattr(History, "play", lambda _: signal.raise_signal(signal.SIGINT))
    assert main(["soak", "--seed", "5"]) == 130
    said = "iswitch soak: stopped by SIGINT in the history of seed 5\n"
    assert capsys.readouterr() == ("", said)


def test_ctrl_c_while_a_schedule_is_made_shorter_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two failed; it comes while the second is made shorter."""

    def both(seeds: range, _: int) -> Iterator[Result]:
        yield from (replace(run(generate(1)), seed=seed, violation="sum") for seed in seeds)

    def slow(scenario: Scenario) -> tuple[Scenario, Result]:
        if scenario.seed == 71:
            signal.raise_signal(signal.SIGINT)
        return scenario, run(scenario)

    monkeypatch.setattr("iswitch.lab.soak.many.play", both)
    monkeypatch.setattr("iswitch.lab.soak.shrink.shrink", slow)
    words = ["soak", "--seeds", "3", "--first", "70"]
    assert main(words) == 130
    out, err = capsys.readouterr()
    assert err == "iswitch soak: stopped by SIGINT while it made the schedule of seed 71 shorter\n"
    assert out.startswith("seed 70 breaks a promise")
    assert re.search("3 histories, .*: 3 violations\nfailed, too: 71 72\n$", out)
    assert main([*words, "--json"]) == 130
    report = json.loads(capsys.readouterr().out)
    assert (report["seeds"], report["complete"], report["failed"]) == (3, True, [70, 71, 72])
    assert [violation["seed"] for violation in report["violations"]] == [70]


@pytest.mark.slow
def test_no_process_of_soak_ever_minds_ctrl_c() -> None:
    """From its first instruction on: one that is still being imported would print a traceback."""
    soak = subprocess.Popen(
        [sys.executable, "-m", "iswitch", "soak", "--seeds", "300", "--processes", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    children = Path(f"/proc/{soak.pid}/task/{soak.pid}/children")
    begun: list[str] = []
    while not begun and soak.poll() is None:
        for child in children.read_text().split():
            with suppress(OSError):
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    begun.append(child)
    words = dict(
        line.split(":", 1) for line in Path(f"/proc/{begun[0]}/status").read_text().splitlines()
    )
    deaf = int(words["SigBlk"], 16) | int(words["SigIgn"], 16)
    os.killpg(soak.pid, signal.SIGINT)
    output = soak.communicate(timeout=60)
    said = b"iswitch soak: stopped by SIGINT after 0 of 300 histories\n"
    assert (soak.returncode, output) == (130, (b"", said))
    assert deaf & 1 << signal.SIGINT - 1
