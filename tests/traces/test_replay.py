"""Replayed traces give the aggregates that were captured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.core.format.keys import Keys
from iswitch.core.format.wire import TOS_DATA, DType, Op
from iswitch.core.jobs.limits import Limits
from iswitch.traces import rounds as accounts
from iswitch.traces.links import IP, TAGGED, LinkLayer
from iswitch.traces.paired import ReplayOptions
from iswitch.traces.reader import Reader
from iswitch.traces.report import is_clean, late, lines, replay
from iswitch.traces.survey import NothingToReplay, survey
from tests.support import python
from tests.support.combining import COMBINATIONS
from topologies import Topology
from topologies.synthetic import SyntheticJob, synthesize

as_root = pytest.mark.root(reason="only root has ports")
LOSSY = "star:4,loss=2%,delay=300us,jitter=200us,duplicate=1%,reorder=2%"
SECRET = b"a key of this test"


def generate(
    path: Path, form: str, switch: str = "s1", limits: Limits | None = None, **job: Any
) -> Path:
    settings = {"numel": 20_001, "rounds": 4, **job}
    synthesize(path, Topology.parse(form), SyntheticJob(**settings), switch, limits)
    return path


def replayed(path: Path, order: bool | None = None, **options: Any) -> dict[str, Any]:
    with Reader(path) as reader:
        setting = survey(reader)
        if order is not None:
            setting.ordered = order
        return replay(reader, setting, ReplayOptions(**options))


def all_equal(report: dict[str, Any]) -> None:
    tally = report["compared"]
    assert tally["captured"] > 0
    others = {name: tally[name] for name in ("different", "missing", "unchecked", "within_bound")}
    assert tally["equal"] == tally["captured"], (others, report["drops"], report["findings"][:3])
    assert is_clean(report)


def tampered(path: Path, to: Path, change: Callable[[bytearray], None]) -> Path:
    content = bytearray(path.read_bytes())
    change(content)
    to.write_bytes(content)
    return to


class Place:
    """A data packet of a trace."""

    def __init__(self, number: int, payload: int, head: bytes, direction: int) -> None:
        self.number = number
        self.payload = payload
        self.head = head
        self.direction = direction


def data_packets(path: Path) -> list[Place]:
    found: list[Place] = []
    with Reader(path) as reader:
        layer = LinkLayer(reader)
        for batch in reader.batches():
            packets = layer.read(batch)
            for i in np.flatnonzero(packets.kinds == TAGGED).tolist():
                head = packets.heads[i].tobytes()
                if head[IP + 1] == TOS_DATA:
                    at, way = int(packets.payload[i]), int(packets.directions[i])
                    found.append(Place(batch.number + i, at, head, way))
    return found


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four workers over bad links, recorded at their switch."""
    return generate(tmp_path_factory.mktemp("trace") / "lossy.pcapng", f"{LOSSY},seed=5")


# What the simulated world has recorded


OPS = (Op.SUM, Op.MAX, Op.PROD, Op.LXOR, Op.MINLOC)


@pytest.mark.parametrize(("dtype", "op"), [c for c in COMBINATIONS if c[1] in OPS])
def test_simulated_aggregates_are_made_again_bit_for_bit(
    tmp_path: Path, dtype: DType, op: Op
) -> None:
    path = generate(tmp_path / "t", f"{LOSSY},seed=1", dtype=dtype, op=op, numel=5001)
    report = replayed(path)
    all_equal(report)
    (job,) = report["jobs"]
    assert (job["dtype"], job["op"], job["numel"]) == (dtype.name.lower(), op.name.lower(), 5001)
    assert job["rounds"] == 4
    assert [member["rank"] for member in job["members"]] == [0, 1, 2, 3]


@pytest.mark.parametrize("switch", ["core1", "tor1", "tor2"])
def test_switches_of_a_tree(tmp_path: Path, switch: str) -> None:
    report = replayed(generate(tmp_path / "t", "rack:2x3,loss=1%,seed=2", switch))
    all_equal(report)
    assert (report["parent"] is not None) == (switch != "core1")
    assert (report["compared"]["to_parent"] > 0) == (switch != "core1")


def test_the_report(trace: Path) -> None:
    report = replayed(trace)
    all_equal(report)
    (job,) = report["jobs"]
    segments = -(-20_001 // 366)
    assert job["segments"] == segments
    assert [r["segments"] for r in job["per_round"]] == [segments] * 4
    assert report["drops"]["duplicate"] == job["duplicates"] > 0
    assert report["drops"].get("late", 0) == job["late"]
    assert job["resent"] > 0
    for told in job["per_round"]:
        assert told["straggler"] in range(4)
        begins, ends = zip(*told["spans"].values(), strict=True)
        assert told["start"] == min(begins)
        last = sorted(ends)
        assert last[-1] == told["spans"][str(told["straggler"])][1]
        assert told["behind"] == pytest.approx(last[-1] - last[1], abs=1e-8)
    text = "\n".join(lines(report))
    assert "equal to the last bit" in text
    assert " 10.26.0.4:40000 " in text


def test_totals_are_of_rounds_that_are_not_listed_too(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = replayed(trace)["jobs"]
    monkeypatch.setattr(accounts, "MOST_ROUNDS", 1)
    report = replayed(trace)
    (job,) = report["jobs"]
    assert len(job["per_round"]) == 1
    assert (job["rounds"], job["rounds_not_listed"]) == (4, 3)
    same = set(whole) - {"per_round", "rounds_not_listed"}
    assert {name: job[name] for name in same} == {name: whole[name] for name in same}
    assert any("3 rounds more than are listed" in line for line in lines(report))
    report["drops"] = {"unmatched_ack": 1}
    assert lines(report)[-1].endswith(": unmatched_ack 1 (an Ack that answers nothing outstanding)")


def test_a_slow_worker_is_the_straggler(tmp_path: Path) -> None:
    path = generate(tmp_path / "t", "star:4", slow=(2,), spread=0.1, rounds=6)
    (job,) = replayed(path)["jobs"]
    slow = [m for m in job["members"] if m["address"].startswith("10.26.0.3:")]
    assert slow[0]["last_of_round"] == 6


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((4.0, 4.11, 34.552, 35.014), "rank 2 and rank 3 were up to 30.904 ms behind all others"),
        ((1.0, 2.0, 3.0, 10.0), "rank 3 was 7.000 ms behind all others"),
        ((1.0, 5.0, 5.0, 5.0), "rank 1, rank 2 and rank 3 were up to 4.000 ms behind rank 0"),
        ((1.0, *[9.0] * 9), "9 members were up to 8.000 ms behind rank 0"),
        ((0.0, 2.9, 3.1, 3.0), "rank 1, rank 2 and rank 3 were up to 3.100 ms behind rank 0"),
        (
            (1.0, 1.5, *[9.0] * 3),
            "rank 2, rank 3 and rank 4 were up to 7.500 ms behind rank 0 and rank 1",
        ),
        ((3.0, 3.0), ""),
    ],
)
def test_members_that_are_late_together_are_named(ends: tuple[float, ...], said: str) -> None:
    """Nobody who was late, too, is one of the others."""
    rounds = accounts.RoundsSeen()
    for rank, end in enumerate(ends):
        rounds.contributed(rank, 0, np.array([0]), (end / 1000, end / 1000))
    rounds.close()
    names = {rank: f"rank {rank}" for rank in range(len(ends))}
    assert late(accounts.as_json(rounds.told[0]), names) == said


def test_the_same_trace_gives_the_same_output(trace: Path, tmp_path: Path) -> None:
    again = generate(tmp_path / "again", f"{LOSSY},seed=5")
    assert again.read_bytes() == trace.read_bytes()
    outs = []
    for number in range(2):
        out = tmp_path / f"{number}.pcapng"
        done = python("-m", "iswitch", "replay", str(trace), "--json", "--out", str(out))
        assert done.returncode == 0, done.stderr
        outs.append((done.stdout, out.read_bytes()))
    assert outs[0] == outs[1]


def test_what_is_written_is_what_was_sent(trace: Path, tmp_path: Path) -> None:
    """The datagrams to each worker, in their order, byte for byte, as the real switch sent them.

    (IPv4's identification is another where packets were cut from a super-datagram.)
    """
    out = tmp_path / "out.pcapng"
    assert main(["replay", str(trace), "--out", str(out)]) == 0
    sent: list[dict[bytes, list[bytes]]] = []
    for path in (trace, out):
        flows: dict[bytes, list[bytes]] = {}
        with Reader(path) as reader:
            for batch in reader.batches():
                for at, size, way in zip(batch.at, batch.sizes, batch.directions, strict=True):
                    if way == 2:
                        frame = reader.data[at : at + size].tobytes()
                        flows.setdefault(frame[30:34] + frame[36:38], []).append(frame[34:])
        sent.append(flows)
    assert sent[0] == sent[1]


def test_a_keyed_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = generate(tmp_path / "t", "star:3,loss=1%", key=SECRET, number=7)
    report = replayed(path, keys=Keys({7: SECRET}))
    all_equal(report)
    assert "bad_mac" not in report["drops"]
    with pytest.raises(NothingToReplay, match="job 7 is keyed"):
        replayed(path)
    wrong = replayed(path, keys=Keys({7: b"another"}))
    assert wrong["drops"]["bad_mac"] > 0
    assert not wrong["jobs"]
    assert "the key differs: " in "\n".join(lines(wrong))
    keys = tmp_path / "keys.toml"
    keys.write_text(f'7 = "{SECRET.decode()}"')
    keys.chmod(0o600)
    assert main(["replay", str(path), "--keys", str(keys)]) == 0
    assert main(["replay", str(path)]) == 2
    assert "--keys FILE" in capsys.readouterr().err


def test_a_trace_of_another_switch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A switch joins the one above it, so that one is known, but it gets no packets there."""
    path = generate(tmp_path / "t", "rack:2x2", "tor1")
    assert main(["replay", str(path), "--topology", "rack:2x2", "--switch", "core1"]) == 1
    said = capsys.readouterr().out
    assert "no packet is to 10.26.255.254:26963, so the trace was captured at another" in said


def test_rank_order(tmp_path: Path) -> None:
    """Sums in rank order are exact, whatever the order in the trace."""
    path = generate(tmp_path / "t", f"{LOSSY},seed=3", reproducible=True)
    all_equal(replayed(path, order=False))
