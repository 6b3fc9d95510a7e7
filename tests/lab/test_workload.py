"""Workloads: written and read, imported from PyTorch, played in the model and in virtual time."""

from __future__ import annotations

import argparse
import gzip
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iswitch.cli import main
from iswitch.cli import simulate as cli
from iswitch.lab.simulate.predicting import Prediction, predict
from iswitch.lab.simulate.scenario import read
from iswitch.outside import UsageError
from iswitch.workload import profiler
from iswitch.workload.programs import AS_MADE, Arrangement, programs
from iswitch.workload.records import FORMAT, NAMES, Record, Workload, load
from tests.lab.test_simulate import scenario
from tests.support import ROOT

pytestmark = pytest.mark.unit

PAGE = ROOT / "docs" / "workloads.md"
TRACES = [str(ROOT / "tests" / "recordings" / f"ddp-rank{rank}.json.gz") for rank in (0, 1)]
STEP = [
    {"step": 0, "repeat": 3, "compute": 2e-4, "collective": "allreduce", "bytes": 4000,
     "async": True, "name": "a"},
    {"step": 0, "repeat": 3, "compute": 1e-4, "collective": "allreduce", "bytes": 20000,
     "async": True, "jitter": 0.2},
    {"step": 0, "repeat": 3, "compute": 1e-4, "wait": "all"},
]  # fmt: skip


def write(path: Path, lines: list[dict[str, Any]], ranks: int = 2) -> str:
    head = {"format": FORMAT, "ranks": ranks}
    path.write_text("".join(f"{json.dumps(line)}\n" for line in [head, *lines]))
    return str(path)


def played(path: str, text: str) -> Prediction:
    parser = argparse.ArgumentParser()
    cli.configure(parser)
    args = parser.parse_args([path, *shlex.split(text)])
    return predict(read(args), args.strategy, changes=False)


def both(path: str, text: str) -> tuple[float, float]:
    """The median step in the model, and in virtual time."""
    return played(path, text).seconds, played(path, f"{text} --world sim").seconds


def test_a_trace_of_pytorch_takes_as_long_as_in_virtual_time(tmp_path: Path) -> None:
    path = tmp_path / "ddp.jsonl"
    whole = profiler.load(TRACES).workload
    some = tuple(record for record in whole.records if record.step in (1, 2))
    path.write_text(replace(whole, records=some).text())
    model, sim = both(str(path), "--topology star:2 --rate 1Gbit --strategy iswitch")
    assert model == pytest.approx(sim, rel=0.001)


def test_a_trace_of_ddp_overlaps_buckets_with_computing() -> None:
    """Buckets travel while it computes; what passes until the last has come is left out."""
    workload, left_out = profiler.load(TRACES)
    assert not left_out
    assert (workload.ranks, len(workload.records)) == (2, 2 * 4 * 4)
    first = [record for record in workload.records if record.rank == 0 and record.step == 1]
    assert [record.bytes for record in first] == [1_071_144, 1_050_624, 526_336, 0]
    assert [record.is_async for record in first] == [True, True, True, False]
    assert [record.wait for record in first] == [(), (), (), "all"]
    events = json.loads(gzip.decompress(Path(TRACES[0]).read_bytes()))["traceEvents"]
    step = next(e for e in events if e["name"] == "ProfilerStep#1")
    assert 0 < sum(record.compute for record in first) < step["dur"] / 1e6
    alone = profiler.load(TRACES[:1]).workload
    assert {record.rank for record in alone.records} == {None}
    assert alone.ranks == 2


def trace(path: Path, *events: dict[str, Any], **about: Any) -> str:
    told = [{"ph": "X", "cat": "cpu_op", **event} for event in events]
    path.write_text(json.dumps({"traceEvents": told, "distributedInfo": about}))
    return str(path)


def test_other_programs_wait_for_each_call(tmp_path: Path) -> None:
    """Here for the first until 500 us, by what carries it; a barrier has no bytes."""
    shapes = {"args": {"Input Dims": [[[23]], []]}}
    work = {"Input Dims": [[23]], "Input type": ["c10::BFloat16"]}
    path = trace(
        tmp_path / "trace.json",
        {"name": "aten::add", "ts": 0, "dur": 100},
        {"name": "c10d::allreduce_", "ts": 100, "dur": 50, **shapes},
        {"name": "gloo:all_reduce", "ts": 200, "dur": 300, "args": work, "cat": "user_annotation"},
        {"name": "c10d::broadcast_", "ts": 520, "dur": 10},
        {"name": "c10d::barrier", "ts": 600, "dur": 100},
        {"name": "aten::add", "ts": 700, "dur": 300},
        world_size=2,
    )
    workload, left_out = profiler.load([path])
    assert dict(left_out) == {"c10d::broadcast_": 1}
    seconds = [round(1e6 * record.compute) for record in workload.records]
    assert seconds == [100, 100, 300]
    assert [record.bytes for record in workload.records] == [46, 0, 0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "has no allreduce of torch.distributed"),
        ({"name": "ncclDevKernel_AllReduce"}, "those of a GPU are not read"),
        (
            {"name": "c10d::allreduce_"},
            r"record it with torch.profiler.profile\(record_shapes=True",
        ),
        ({"name": "c10d::allreduce_", "args": None}, "trace.json is damaged"),
        ({"name": "c10d::allreduce_", "args": {"Input Dims": 7}}, "trace.json is damaged"),
        ({"name": "c10d::allreduce_", "args": {"Input Dims": [[[-3]]]}}, "bytes is a whole number"),
    ],
)
def test_traces_that_say_too_little_are_refused(
    content: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = trace(tmp_path / "trace.json", {"name": "x", "ts": 0, "dur": 1, **content})
    with pytest.raises(UsageError, match=said):
        profiler.load([path])


def test_other_files_are_no_traces_and_no_workloads(tmp_path: Path) -> None:
    work, other = write(tmp_path / "work.jsonl", STEP), tmp_path / "other"
    with pytest.raises(UsageError, match=r"is no trace of torch.profiler \(it is a workload alr"):
        profiler.load([work])
    for text in ("root:x:0:0:", "", "7", '{"a": 1}'):
        other.write_text(text)
        with pytest.raises(UsageError, match=r"is no trace of torch\.profiler; name what export"):
            profiler.load([str(other)])
        with pytest.raises(UsageError, match="other is no workload: its first line is not"):
            load(str(other))


def test_traces_of_some_ranks_are_refused() -> None:
    with pytest.raises(UsageError, match="of ranks 0, 0 of 2; name one, or one of each rank"):
        profiler.load([TRACES[0], TRACES[0]])


@pytest.mark.parametrize("schedule", ["made", "fused", "split:6kB", "priority:6kB"])
def test_the_simulated_world_takes_as_long(schedule: str, tmp_path: Path) -> None:
    """In a tree, with more workers than ranks, whose computing is drawn alike."""
    path = write(tmp_path / "work.jsonl", STEP)
    text = f"--topology rack:2x2,rate=1Gbit --strategy iswitch --workers 3 --schedule {schedule}"
    model, sim = both(path, text)
    assert model == pytest.approx(sim, rel=1e-3)


def test_a_slow_first_step_does_not_hide_what_steps_aggregate(tmp_path: Path) -> None:
    """Each step's computing is taken from that step."""
    call = {"collective": "allreduce", "bytes": 400_000}
    times = [{"step": 0, "rank": 0, "compute": 0.5}, {"step": 0, "rank": 1, "compute": 0.7}]
    some = [*times, *({"step": step, "compute": 0.001 * step} for step in (1, 2, 3, 4))]
    path = write(tmp_path / "work.jsonl", [{**one, **call} for one in some])
    network = "--topology star:2,rate=1Gbit --strategy iswitch"
    found, alone = played(path, network), predict(scenario(f"{network} --size 400kB"), "iswitch")
    assert found.aggregation == pytest.approx(alone.seconds, rel=1e-3)
    assert alone.aggregation == alone.seconds
    assert found.compute == pytest.approx(0.003)


@pytest.mark.parametrize("strategy", ["ring", "ps:servers=2"])
def test_other_strategies_take_as_long(strategy: str, tmp_path: Path) -> None:
    path = write(tmp_path / "work.jsonl", STEP)
    model, sim = both(path, f"--topology star:3,rate=1Gbit --strategy {strategy}")
    assert model == pytest.approx(sim, rel=1e-3)


def test_groups_sum_side_by_side(tmp_path: Path) -> None:
    """Each of two pairs has sums of its own, then all have one; --world sim needs the switch."""
    pairs = [{"step": 0, "group": group, "compute": 1e-4 * (1 + group[0]), "collective":
              "allreduce", "bytes": 9000} for group in ([0, 1], [2, 3])]  # fmt: skip
    everybody = {"step": 0, "collective": "allreduce", "bytes": 50_000}
    path = write(tmp_path / "work.jsonl", [*pairs, everybody], ranks=4)
    network = "--topology star:4,rate=1Gbit"
    model, sim = both(path, f"{network} --strategy iswitch")
    assert model == pytest.approx(sim, rel=1e-3)
    with pytest.raises(UsageError, match="ring has no groups; take --strategy iswitch"):
        played(path, f"{network} --strategy ring --world sim")
    with pytest.raises(UsageError, match="has groups of its 4 ranks: leave --workers out"):
        played(path, f"{network} --strategy iswitch --workers 3")


def test_a_workload_is_written_and_read(tmp_path: Path) -> None:
    records = (
        Record(0, None, 0.5, "allreduce", 8, (0, 1), -3, "x", True, (), 7, 0.5),
        Record(0, 1, wait=("x",), repeat=7),
        Record(1, 0, wait="all", collective="barrier"),
        Record(1, 1, collective="barrier"),
    )
    path = tmp_path / "some.jsonl"
    path.write_text(Workload(str(path), 2, records, "by hand").text())
    assert load(str(path)) == Workload(str(path), 2, records, "by hand")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"bytes": 4, "collective": "allreduce", "size": 1}, "line 2: no 'size'; write step"),
        ({"compute": -1}, "line 2: compute is a number of seconds from 0 to 1,000,000, not -1"),
        ({"compute": "1"}, "from 0 to 1,000,000, not '1'"),
        ({"rank": 2}, "line 2: rank is a whole number of 0 to 1, not 2"),
        ({"step": True}, "line 2: step is a whole number of 0 to"),
        ({"collective": "gather"}, "line 2: collective 'gather': only allreduce and barrier"),
        ({"collective": "allreduce"}, "line 2: an allreduce has bytes, 1 or more"),
        ({"async": True}, "line 2: async, name and group are of a collective"),
        ({"wait": ["x"]}, "a record waits for 'x', which nobody calls"),
        ({"wait": "some"}, 'line 2: wait is a list of names, or "all"'),
        ({"group": [1, 0]}, "line 2: group is a list of ranks, ascending, of 0 to 1"),
        (
            {"rank": 1, "group": [0], "collective": "barrier"},
            "rank 1 calls with a group that it is not in",
        ),
    ],
)
def test_mistakes_are_told(line: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "bad.jsonl", [{"step": 0, **line}])
    with pytest.raises(UsageError) as error:
        load(path)
    assert said in str(error.value)


def test_records_that_contradict_each_other_are_told(tmp_path: Path) -> None:
    for lines, said in (
        ([], "has no records"),
        ([{"step": 0, "repeat": 2}, {"step": 0}], "step 0 has two numbers of repeats; write one"),
        ([{"step": 1, "rank": 0}, {"step": 0}], "step 0 of all ranks comes after a later one"),
        ([{"step": 1}, {"step": 0, "rank": 1}], "step 0 of rank 1 comes after a later one"),
    ):
        with pytest.raises(UsageError, match=said):
            load(write(tmp_path / "bad.jsonl", lines))
    path = write(tmp_path / "bad.jsonl", [{"step": 0, "rank": 0, "collective": "barrier"}])
    with pytest.raises(UsageError, match="call 0 of ranks 0, 1: rank 1 never makes it, and"):
        played(path, "--topology star:2,rate=1Gbit --strategy iswitch")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--size 4kB", "--size: .* says that already"),
        ("--compute fixed:3ms", "--compute: .* says that already"),
        (
            "--topology star:1,rate=1Gbit",
            "work.jsonl has 2 ranks, star:1,rate=1Gbit 1 host; choose a larger network, or leave "
            "the last ranks out with --workers 1",
        ),
        ("--schedule split", "--schedule split: write made, fused, split:SIZE"),
        ("--schedule split:x", "--schedule split:x: size 'x' is not a number and a unit"),
        ("--world sim --room 1MB", "--room: workers take 16 MiB in --world sim"),
    ],
)
def test_options_that_do_not_go_with_a_workload(option: str, said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "work.jsonl", STEP)
    with pytest.raises(UsageError, match=said):
        played(path, f"--topology star:2,rate=1Gbit {option}")


def test_a_schedule_is_of_a_workload(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--topology", "star:2,rate=1Gbit", "--schedule", "fused"]) == 2
    assert "--schedule arranges the calls of a WORKLOAD; name one" in capsys.readouterr().err


def test_the_title_tells_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not all hosts of a larger network work."""
    write(tmp_path / "work.jsonl", STEP)
    monkeypatch.chdir(tmp_path)
    line = ["simulate", "work.jsonl", "--topology", "star:3,rate=1Gbit", "--strategy", "iswitch"]
    for more, workers in (([], 2), (["--workers", "3"], 3), (["--workers", "1"], 1)):
        assert main([*line, "--no-changes", *more]) == 0
        said = f"{workers} worker{'s' * (workers > 1)}, work.jsonl of 2 ranks, star:3,rate=1Gbit\n"
        assert capsys.readouterr().out.startswith(said)


def test_fused_calls_are_one_where_no_wait_comes_between() -> None:
    def call(size: int, name: str, **options: Any) -> Record:
        return Record(0, None, 1.0, "allreduce", size, name=name, is_async=True, **options)

    records = (
        call(4, "a"), call(8, "b"), call(12, "c", wait=("a",)), Record(0, compute=1.0, wait=("b",)),
    )  # fmt: skip
    work = Workload("by hand", 1, records)
    (items,) = programs(work, 1, Arrangement.parse("fused"))
    calls = [(item.call.numel, item.call.name) if item.call else None for item in items]
    assert calls == [None, (3, "b"), (3, "c"), None]
    assert [item.waits for item in items] == [(), (), ("b",), ("b",)]
    assert [item.seconds for item in items] == [1.0] * 4
    (plain,) = programs(work, 1, AS_MADE)
    assert [item.call.numel for item in plain if item.call] == [1, 2, 3]


def test_random_factors_are_of_the_seed() -> None:
    work = Workload("by hand", 1, (Record(0, compute=1.0, jitter=0.5, repeat=4),))
    drawn = [programs(work, 2, AS_MADE, seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({item.seconds for items in drawn[0] for item in items}) == 8


def test_the_listings_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in TRACES:
        (tmp_path / Path(path).name).write_bytes(Path(path).read_bytes())
    text = PAGE.read_text()
    works = re.findall(r"```json\n(.*?)```", text, re.S)
    for number, work in enumerate(works):
        (tmp_path / f"{number}.jsonl").write_text(work)
    assert [len(load(f"{number}.jsonl").records) for number in range(len(works))] == [3, 8]
    for line, output in re.findall(
        r"```console\n\$ iswitch ([^\n]*)\n```\n\n```text\n(.*?)```", text, re.S
    ):
        assert main(shlex.split(line)) == 0
        assert capsys.readouterr().out == output


def test_the_table_of_schedules(tmp_path: Path) -> None:
    """Of the switch; and there is a row for each schedule."""
    text = PAGE.read_text()
    lines = re.findall(r"```json\n(.*?)```", text, re.S)[1].splitlines()
    found = re.findall(r"^\| `([a-z]+(?::1MB)?)` \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \|", text, re.M)
    assert [row[0] for row in found] == ["made", "fused", "split:1MB", "priority", "priority:1MB"]
    for column, last in ((1, []), (2, ['{"step": 0, "repeat": 20, "wait": "all"}'])):
        path = tmp_path / f"{column}.jsonl"
        path.write_text("\n".join([*lines, *last]).replace('"repeat": 20', '"repeat": 5'))
        for row in found:
            network = "--topology star:8 --rate 10Gbit --strategy iswitch"
            took = played(str(path), f"{network} --schedule {row[0]}").seconds
            assert 1e3 * took == pytest.approx(float(row[column]), abs=0.06)


def test_every_key_is_documented() -> None:
    for key in NAMES:
        assert f"| `{key}` |" in PAGE.read_text()
