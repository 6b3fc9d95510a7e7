"""The P4 program in bmv2, where compiler and switch are there (docs/p4.md)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from iswitch.cli import UsageError
from iswitch.cli.worlds import p4_switches
from p4.tools import CLI, COMPILER, SWITCH, ToolMissing, compile_program, find
from tests.conformance.cases import CASES
from topologies import Topology

from .conftest import ROOT

BEYOND = {  # the limits that docs/p4.md names: elements a segment, element types, operations, modes
    "full_mtu_segments", "super_datagram_both_ways", "jobs_do_not_mix", "every_op_float32",
    "every_op_float16", "every_op_bfloat16", "every_op_int32", "float32_rounds_in_arrival_order",
    "float16_rounds_in_its_own_format", "bfloat16_rounds_in_its_own_format",
    "nan_and_infinity_sum", "versions_count_from_one", "only_newer_numbers_count",
    "threshold_of_versions", "eight_versions_kept", "newcomer_learns_current_version",
}  # fmt: skip


def missing() -> str:
    """Why these tests cannot be run here; empty: they can."""
    try:
        for tool in (COMPILER, SWITCH, CLI):
            find(tool)
    except ToolMissing as error:
        return str(error)
    return "" if os.geteuid() == 0 else "namespaces need root"


needs_bmv2 = pytest.mark.skipif(bool(missing()), reason=missing())


def iswitch(*words: str) -> str:
    """What a command says, which is to end well."""
    done = subprocess.run(
        [sys.executable, "-m", "iswitch", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_bmv2(topology: str, *command: str, options: tuple[str, ...] = ()) -> str:
    world = ("run", "--world", "bmv2", "--topology", topology)
    return iswitch(
        *world, *options, "--", "sh", "-c", f"exec {sys.executable} -m {' '.join(command)}"
    )


@needs_bmv2
def test_the_program_compiles_without_warnings(tmp_path: Path) -> None:
    assert compile_program(26963, tmp_path).stat().st_size > 0


@needs_bmv2
def test_one_random_trace_gives_the_same_bits_in_both_switches() -> None:
    """Sums of special and random float32 and of int32, repeats, Help, FBcast, SetH, Leave."""
    assert " packets" in in_bmv2("star:1", "tests.same_trace", "$ISWITCH_SWITCH", "1", "1500")


@needs_bmv2
def test_conformance_within_the_limits() -> None:
    assert set(CASES) > BEYOND
    names = [name for name in CASES if name not in BEYOND]
    said = in_bmv2("star:1", "tests.conformance", "--switch", "$ISWITCH_SWITCH", "--case", *names)
    assert f"{len(names)} cases, 0 failed" in said


@needs_bmv2
@pytest.mark.parametrize("numel", [1, 4_700, 20_000])
def test_vectors_of_many_segments(numel: int) -> None:
    """A burst is not lost, or is repeated; the worker takes the segments that the switch takes."""
    said = in_bmv2("star:4", "tests.p4_worker", str(numel), "3")
    assert said.count("elements a segment") == 4


@needs_bmv2
def test_a_keyed_job(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_text("of this test")
    said = in_bmv2("star:2", "tests.p4_worker", "4700", "3", options=("--key-file", str(key)))
    assert said.count("64 elements a segment") == 2


@needs_bmv2
def test_the_demo_learns() -> None:
    said = iswitch("demo", "--world", "bmv2")
    assert said.count(" ok ") == 3


@pytest.mark.parametrize(
    ("world", "topology", "chosen", "mend"),
    [
        ("loopback", "star:4", ["bmv2"], "use --world netns"),
        ("netns", "star:4", ["tor=p4"], "write iswitch or bmv2"),
        ("netns", "rack:2x2", ["bmv2"], "take a star"),
        ("netns", "rack:2x2", ["core1=bmv2"], "take a star"),
        ("bmv2", "star:33", [], "take fewer"),
        ("bmv2", "star:4,loss=1%", [], "leave that out"),
    ],
)
def test_what_it_does_not_do_is_refused(
    world: str, topology: str, chosen: list[str], mend: str
) -> None:
    with pytest.raises(UsageError, match=mend):
        p4_switches(world, Topology.parse(topology), chosen)
