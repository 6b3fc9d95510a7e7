"""Chakra execution traces, encoded here, and the workloads that are made of them."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from iswitch.cli import main
from iswitch.outside import UsageError
from iswitch.workload import chakra
from iswitch.workload.records import Record, load
from tests.lab.test_workload import played

pytestmark = pytest.mark.unit

COMP, SEND, COLL = 4, 5, 7
ALL_REDUCE, ALL_GATHER, BARRIER = 0, 2, 9
METADATA = b"\x0a\x050.0.4"


def varint(value: int) -> bytes:
    head, rest = value & 0x7F, value >> 7
    return bytes([head | 0x80]) + varint(rest) if rest else bytes([head])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value & (1 << 64) - 1)
    return varint(number << 3 | 2) + varint(len(value)) + value


def attribute(name: str, value: int | bytes) -> bytes:
    kind = {"is_cpu_op": 27, "involved_dim": 28, "pg_name": 29}.get(name, 9)
    return field(10, field(1, name.encode()) + field(kind, value))


def node(number: int, kind: int, needs: Sequence[int] = (), micros: int = 0, **more: Any) -> bytes:
    """A node, whose attributes are `more`."""
    packed = field(5, b"".join(map(varint, needs))) if needs else b""
    told = field(1, number) + field(2, b"node") + field(3, kind) + packed + field(7, micros)
    return told + b"".join(attribute(name, value) for name, value in more.items())


def comp(number: int, micros: int, *needs: int, **more: Any) -> bytes:
    return node(number, COMP, needs, micros, **more)


def reduce(number: int, size: int, *needs: int, **more: Any) -> bytes:
    return node(number, COLL, needs, comm_type=ALL_REDUCE, comm_size=size, **more)


def stream(*nodes: bytes) -> bytes:
    return b"".join(varint(len(one)) + one for one in (METADATA, *nodes))


def trace(path: Path, *nodes: bytes) -> str:
    path.write_bytes(stream(*nodes))
    return str(path)


def records(tmp_path: Path, *nodes: bytes) -> list[Record]:
    """The records of one rank, without the last, which waits for all."""
    *found, last = chakra.load([trace(tmp_path / "one.0.et", *nodes)]).workload.records
    assert last == Record(wait="all")
    return found


STEP = (  # two buckets; what is computed after each has come
    comp(0, 100), reduce(1, 1456, 0), comp(2, 10, 0), reduce(3, 1456, 2), comp(4, 5, 1),
    comp(5, 30, 3, 4),
)  # fmt: skip


def test_an_iteration_is_that_computed_by_hand(tmp_path: Path) -> None:
    """A packet of 1456 bytes has 50 of headers, and passes two lines.

    The first call is made at 100 us; the second at 110 us, carried after the first: it ends at
    100 us + 2 * 24.096 us, as node 4 does before; then come 30 us.
    """
    paths = [trace(tmp_path / f"two.{rank}.et", *STEP) for rank in (0, 1)]
    out = tmp_path / "two.jsonl"
    assert main(["workload", *paths, "--out", str(out)]) == 0
    network = "--topology star:2 --rate 1Gbit --strategy iswitch"
    packet = 2 * 8 * (1456 + 50) * 1e-9
    took = played(str(out), network).seconds
    assert took == pytest.approx(100e-6 + 2 * packet + 30e-6, abs=1e-9)
    assert played(str(out), f"{network} --world sim").seconds == pytest.approx(took, rel=1e-3)


def test_dependencies_are_waits(tmp_path: Path) -> None:
    made = records(tmp_path, *STEP)
    assert made == [
        Record(0, None, 100e-6, "allreduce", 1456, name="1", is_async=True),
        Record(0, None, 10e-6, "allreduce", 1456, name="3", is_async=True),
        Record(0, None, 5e-6, wait=("1",)),
        Record(0, None, 30e-6, wait=("3",)),
    ]
    assert records(tmp_path, *random.Random(1).sample(STEP, len(STEP))) == made


def test_what_needs_no_call_is_computed_first(tmp_path: Path) -> None:
    """Node 1 has the lower number, but would wait; nobody waits for the call that node 4 makes."""
    made = records(
        tmp_path, reduce(0, 8), comp(1, 7, 0), comp(2, 1), comp(3, 2, 2), reduce(4, 12, 3),
    )  # fmt: skip
    assert [(one.compute, one.bytes, one.name, one.wait) for one in made] == [
        (0.0, 8, "0", ()), (3e-6, 12, "", ()), (7e-6, 0, "", ("0",)),
    ]  # fmt: skip


def test_calls_follow_calls_of_their_group_without_a_wait(tmp_path: Path) -> None:
    """They are carried in order anyway; a call after a left-out one waits for what that needs."""
    gather = node(2, COLL, (1,), comm_type=ALL_GATHER, comm_size=9)
    made = chakra.load(
        [trace(tmp_path / "x.et", reduce(0, 8), reduce(1, 8, 0), gather, reduce(3, 8, 2))]
    )
    assert dict(made.left_out) == {"ALL_GATHER": 1}
    assert [one.wait for one in made.workload.records] == [(), (), ("1",), "all"]


def test_what_is_not_played_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A CPU computes beside its accelerator, if any; launching a call is computing, too."""
    launch = node(1, COLL, (0,), 3, is_cpu_op=1)
    cpu = (comp(0, 50, is_cpu_op=1), launch, node(2, SEND, (1,), 9), reduce(3, 0, 2))
    rest = (node(4, COLL, (3,), 40, comm_type=BARRIER), node(5, 1, (4,)))
    (alone,) = records(tmp_path, *cpu, *rest)
    assert (alone.compute, alone.collective, alone.bytes) == (53e-6, "barrier", 0)
    path = trace(tmp_path / "x.et", *cpu, *rest, comp(6, 20))
    assert main(["workload", path, "--out", str(tmp_path / "x.jsonl")]) == 0
    told = capsys.readouterr().out
    assert "left out: 2 calls of operators of the CPU beside an accelerator, which is" in told
    assert "left out: 1 call of COMM_SEND, which is not played" in told
    assert [one.compute for one in load(str(tmp_path / "x.jsonl")).records] == [0.0, 20e-6, 0.0]


def test_groups_are_the_ranks_that_call_with_their_name(tmp_path: Path) -> None:
    """Ranks are those of the names, not of the order; a group of all is none."""
    paths = []
    for rank in (10, *range(10)):
        pair = reduce(1, 8, pg_name=f"{1 + rank % 2}".encode(), comm_priority=rank)
        path = tmp_path / f"some.{rank}.et.gz"
        path.write_bytes(gzip.compress(stream(pair, reduce(2, 8, 1, pg_name=b"0"))))
        paths.append(str(path))
    made = [one for one in chakra.load(paths).workload.records if one.rank == 10]
    assert [(one.group, one.wait) for one in made] == [
        ((0, 2, 4, 6, 8, 10), ()), (None, ("1",)), (None, "all"),
    ]  # fmt: skip
    assert made[0].priority == 10
    with pytest.raises(UsageError, match="calls of process group 1; name the traces of all ranks"):
        chakra.load(paths[:1])
    for wrong in (paths[:3], [*paths[:10], paths[3]], [*paths[:10], "rank10.json"]):
        with pytest.raises(UsageError, match=r"must end in .0.et to .\d+.et, one of each rank"):
            chakra.load(wrong)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([], "has no nodes"),
        ([comp(0, 1)], "has no ALL_REDUCE and no BARRIER"),
        ([comp(0, 1, 7)], "is damaged: node 0 needs node 7, which is missing"),
        ([comp(0, 1, 1), reduce(1, 8, 0)], "nodes that node 0 needs need each other in a circle"),
        ([reduce(1, 8, 1)], "nodes that node 1 needs need each other in a circle"),
        ([reduce(0, 8), reduce(0, 8)], "two nodes have the number 0"),
        ([comp(3, 0, num_ops=9)], "node 3 has num_ops, but no duration_micros"),
        ([reduce(1, 8, involved_dim=field(1, b"\1\0"))], "node 1 is of some dimensions"),
        ([node(1, COLL, comm_type=ALL_REDUCE)], "node 1 does not say by comm_size how many"),
        ([node(1, COLL, comm_size=8)], "node 1 does not say by comm_type which collective"),
        ([node(1, COLL, comm_type=10)], "node 1 does not say by comm_type which collective"),
        ([node(1, COLL, comm_type=b"x")], "comm_type of node 1 is no whole number"),
        ([node(1, 8)], "node 1 is of no known type: 8"),
        ([reduce(1, -8)], "bytes is a whole number of 0 to"),
        ([comp(0, 1 << 63), reduce(1, 8, 0)], "compute is a number of seconds from 0 to"),
    ],
)
def test_traces_that_cannot_be_played_are_refused(
    nodes: list[bytes], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        chakra.load([trace(tmp_path / "x.0.et", *nodes)])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\x80", "is damaged: it ends within a number"),
        (b"\xff" * 11, "is damaged: a number has more than ten bytes"),
        (stream(*STEP)[:-1], r"is damaged: the message at byte \d+ is cut off"),
        (b"\x7f{}", "is damaged: the message at byte 0 is cut off"),
        (b"\0\3\x0a\4x", "is damaged: field 1 of a message is cut off"),
        (b"\0\1\x0b", "is damaged: field 1 is of no known wire type: 3"),
        (b"\0\x09\x09" + bytes(8), "has no ALL_REDUCE"),
        (stream(*STEP)[1 + len(METADATA) :], "it begins with a node, not with GlobalMetadata"),
        (gzip.compress(stream(*STEP), mtime=0)[:-20], "is damaged"),
        (gzip.compress(stream(*STEP), mtime=0)[:30] + bytes(9), "is damaged"),
    ],
)
def test_damaged_traces_give_a_sentence(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.0.et"
    path.write_bytes(content)
    assert main(["workload", str(path), "--out", str(tmp_path / "x.jsonl")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line
    with pytest.raises(UsageError, match=said):
        chakra.load([str(path)])


def test_random_damage_is_told(tmp_path: Path) -> None:
    """It gives a workload, or a sentence."""
    chance, whole = random.Random(3), stream(*STEP, reduce(6, 8, 5, involved_dim=field(1, b"\1")))
    path, said = tmp_path / "x.0.et", []
    for _ in range(100):
        content = bytearray(whole[: chance.choice([len(whole), chance.randrange(len(whole))])])
        if content:
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content)
        try:
            chakra.load([str(path)])
        except UsageError as error:
            said.append(str(error))
    assert all(str(path) in one for one in said)
    assert 60 < len(said) < 100


def test_huge_traces_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trace(tmp_path / "x.0.et", *STEP)
    monkeypatch.setattr(chakra, "MOST_NODES", len(STEP))
    assert chakra.load([path])
    monkeypatch.setattr(chakra, "MOST_NODES", len(STEP) - 1)
    with pytest.raises(UsageError, match="has more than 5 nodes; record fewer steps"):
        chakra.load([path])
    monkeypatch.setattr("iswitch.workload.traces.MOST", 100)
    with pytest.raises(UsageError, match="has more than 0 MiB; record fewer steps"):
        chakra.load([path])


def test_deep_graphs_are_walked(tmp_path: Path) -> None:
    nodes = [comp(number, 1, number - 1) for number in range(1, 5000)]
    (one,) = records(tmp_path, comp(0, 1), *nodes, reduce(5000, 8, 4999))
    assert one.compute == 0.005
