"""The P4 program in bmv2, where compiler and switch are there (docs/p4.md)."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from iswitch.bmv2.process import QUEUE
from iswitch.cli import main
from iswitch.core.format.wire import PORT
from iswitch.lab.launch.worlds import MOST_P4_WORKERS, p4_switches
from iswitch.outside import UsageError
from p4.sizes import SIZES
from p4.tools import cache_folder, compile_program
from tests.conformance import turns
from tests.conformance.cases import CASES
from tests.conftest import missing_p4
from tests.support import ROOT
from tests.support.networks import mn
from topologies import Topology
from topologies.netns import Network
from worker_lib import Worker

pytestmark = pytest.mark.serial

KEYED = {name for name in CASES if name.startswith("keyed_")}
ASYNCHRONOUS = {  # the limit that docs/p4.md names
    "versions_count_from_one", "only_newer_numbers_count", "threshold_of_versions",
    "eight_versions_kept", "newcomer_learns_current_version",
    "a_switch_is_told_what_was_counted",
}  # fmt: skip
LACKING = {  # types and operations, likewise
    "every_op_float64", "every_op_of_bytes_and_long_integers", "products", "logical_and_bitwise",
    "largest_and_its_place", "nan_is_the_largest_and_the_smallest",
}  # fmt: skip
OWNED = {  # likewise
    "sums_go_to_their_owners", "everybody_gets_what_each_owns", "blocks_change_hands",
    "nobody_contributes_for_another", "a_round_closes_when_all_is_there",
    "late_contributions_bring_back_own_sums", "owners_have_no_threshold",
}  # fmt: skip
TURNS = {name for name, one in CASES.items() if one.run.__module__ == turns.__name__}
REFUSED = ASYNCHRONOUS | LACKING | OWNED | TURNS


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """The program, compiled before any test waits for a switch: a slow compiler fails none."""
    if not missing_p4():
        compile_program(PORT, cache_folder())


def iswitch(*words: str) -> str:
    """What a command says, which is to end well."""
    done = subprocess.run(
        [sys.executable, "-m", "iswitch", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_bmv2(
    topology: str, *command: str, options: tuple[str, ...] = (), world: str = "bmv2"
) -> str:
    words = ("run", "--world", world, "--topology", topology)
    return iswitch(
        *words, *options, "--", "sh", "-c", f"exec {sys.executable} -m {' '.join(command)}"
    )


@pytest.fixture
def key(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_text("of this test")
    return str(path)


@pytest.mark.p4
def test_the_program_compiles_without_warnings(tmp_path: Path) -> None:
    assert compile_program(26963, tmp_path).stat().st_size > 0


@pytest.mark.p4
def test_one_random_trace_gives_the_same_bits_in_both_switches() -> None:
    """Sums of special and random float32 and of int32, repeats, Help, FBcast, SetH, Leave."""
    assert " packets" in in_bmv2(
        "star:1", "tests.support.same_trace", "$ISWITCH_SWITCH", "1", "1500"
    )


@pytest.mark.p4
def test_conformance() -> None:
    """All but the cases of jobs that are refused; those of keyed jobs are the next test's."""
    assert set(CASES) > REFUSED
    names = [name for name in CASES if name not in REFUSED | KEYED]
    said = in_bmv2("star:1", "tests.conformance", "--switch", "$ISWITCH_SWITCH", "--case", *names)
    assert f"{len(names)} cases, 0 failed, 0 skipped" in said


@pytest.mark.p4
def test_conformance_of_keyed_jobs(tmp_path: Path, key: str) -> None:
    """The switch has one key for all jobs."""
    keys = tmp_path / "keys.toml"
    keys.touch(0o600)
    keys.write_text("".join(f'{job} = "of this test"\n' for job in range(60_000, 60_003)))
    client = ("tests.conformance", "--switch", "$ISWITCH_SWITCH", "--keys", str(keys), "--case")
    said = in_bmv2("star:1", *client, *sorted(KEYED), options=("--key-file", key))
    assert "8 cases, 0 failed, 0 skipped" in said


@pytest.mark.p4
def test_floats_are_added_as_numpy_does() -> None:
    """On the switch itself: all pairs of 64 special values, NaN among them, and random ones."""
    said = in_bmv2("star:1", "tests.support.p4_adder", "$ISWITCH_SWITCH", "20000")
    assert said.count("24096 of 24096 sums are NumPy's") == 3


@pytest.mark.p4
@pytest.mark.parametrize("numel", [1, 4_700, 20_000])
def test_vectors_of_many_segments(numel: int) -> None:
    """A burst is not lost, or is repeated; the worker takes the segments that the switch takes."""
    said = in_bmv2("star:4", "tests.support.p4_worker", str(numel), "3")
    assert said.count("elements a segment") == 4


@pytest.mark.p4
def test_as_many_workers_as_the_protocol_has_members() -> None:
    said = in_bmv2("star:64", "tests.support.p4_worker", "500", "3")
    assert said.count("366 elements a segment") == 64


@pytest.mark.p4
def test_a_benchmark() -> None:
    """Of the P4 program beside a userspace switch; it says what bmv2 is."""
    ways = ("--strategies", "iswitch,forward", "--sizes", "40kB")
    said = iswitch("bench", "--world", "bmv2", *ways, "--rounds", "2", "--iterations", "0")
    assert re.search(r"^ iswitch +\d", said, re.MULTILINE)
    assert re.search(r"^ forward +\d", said, re.MULTILINE)
    assert "an interpreter" in said


@pytest.mark.p4
def test_a_keyed_job(key: str) -> None:
    said = in_bmv2("star:2", "tests.support.p4_worker", "4700", "3", options=("--key-file", key))
    assert said.count("366 elements a segment") == 2


@pytest.mark.p4
@pytest.mark.parametrize(
    ("world", "form", "chosen"),
    [
        ("netns", "rack:2x2", ("core1=bmv2",)),
        ("netns", "rack:2x2", ("tor1=bmv2",)),
        ("netns", "rack:2x2", ("bmv2",)),
        ("netns", "tree:2x2x2", ("s1=bmv2", "s2=bmv2", "s7=bmv2")),
        ("mininet", "rack:2x2", ("bmv2", "tor2=iswitch")),
    ],
)
def test_trees_of_both_kinds_of_switches(world: str, form: str, chosen: tuple[str, ...]) -> None:
    """A P4 program above userspace switches, below one, and at every place."""
    options = tuple(f"--switch={one}" for one in chosen)
    said = in_bmv2(form, "tests.support.p4_worker", "4700", "3", options=options, world=world)
    assert said.count("elements a segment") == len(Topology.parse(form).hosts)


PAGE = (ROOT / "docs" / "p4.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)


@pytest.mark.p4
@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_its_page(command: str) -> None:
    """As they stand there, but for the user's own program."""
    words = shlex.split(command)
    if words[0] == "mn":
        said = mn(*words[1:])
        assert "Results: 0% dropped" in said, said
        assert "ended with status" not in said
    elif words[1] == "switch":
        with Network(Topology.parse("star:2"), offload=False, prefix="iswpage") as network:
            assert serves(network, words[2:])
    elif words[1] == "run":
        at = words.index("--")
        options = tuple(words[4:at])
        assert words[2:4] == ["--topology", words[3]]
        worker = (sys.executable, "-m", "tests.support.p4_worker", "4700", "3")
        said = iswitch(*words[1:at], "--", *worker)
        assert said.count("366 elements a segment") == 4
        assert "--switch" in options
    else:
        said = iswitch(*words[1:])
        assert said.count(" ok ") == {"demo": 3, "train": 1}[words[1]]


def serves(network: Network, options: list[str]) -> bool:
    """Whether a switch at these ports sums up for two hosts, and tells its counters on Ctrl-C."""
    command = [sys.executable, "-m", "iswitch", "switch", "--json", *options]
    env = {"PYTHONPATH": str(ROOT)}
    switch = network.popen("s1", command, cwd=ROOT, env=env, stdout=subprocess.PIPE)
    assert switch.stdout is not None
    assert json.loads(switch.stdout.readline()) == {"listening": "10.26.255.254:26963"}

    def work(host: str) -> float:
        with network.inside(host):
            worker = Worker(("10.26.255.254", 26963), 1, 1000, 2)
        with worker:
            return float(worker.allreduce(np.ones(1000, np.float32)).min())

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, ("h1", "h2")))
    for ifname, state in offloads(network, "s1").items():
        assert not state, ifname
    os.killpg(switch.pid, signal.SIGINT)  # as the terminal does
    counters = json.loads(switch.communicate(timeout=20)[0])
    return found == [2.0, 2.0] and counters["accumulated"] == 2 * 3 and counters["aggregates"] == 3


OFFLOADS = (
    "tx-checksumming|tx-tcp-segmentation|tx-udp-segmentation|"
    "generic-segmentation-offload|generic-receive-offload"
)


def offloads(network: Network, node: str) -> dict[str, set[str]]:
    """Those that are on, by interface: of a bmv2's ports there are to be none."""
    found = {}
    for port in network.topology.ports(node):
        listing = network.popen(node, ["ethtool", "-k", port.ifname], stdout=subprocess.PIPE)
        said = listing.communicate(timeout=20)[0].decode()
        found[port.ifname] = set(re.findall(rf"^\s*({OFFLOADS}): on", said, re.MULTILINE))
    return found


def test_its_page_has_the_limits() -> None:
    """As the program has them."""
    assert f"{SIZES['MOST_BYTES']:,} bytes" in PAGE
    assert f"{SIZES['SLOTS'] // 2:,} segments" in PAGE
    assert f"or {SIZES['JOBS']} jobs" in PAGE
    assert f"more than {MOST_P4_WORKERS} workers" in PAGE
    assert f"| {len(CASES) - len(KEYED) - len(REFUSED)} | pass |" in PAGE
    assert f"| {len(KEYED)} of keyed jobs |" in PAGE
    assert f"| {len(ASYNCHRONOUS)} of asynchronous jobs |" in PAGE
    assert f"| {len(LACKING)} of other types and operations |" in PAGE
    assert f"| {len(OWNED)} of [owned segments](" in PAGE
    assert f"| {len(TURNS)} of [turns](" in PAGE
    assert f"Queues hold {QUEUE:,} packets" in PAGE


@pytest.mark.parametrize(
    ("world", "topology", "chosen", "mend"),
    [
        ("loopback", "star:4", ["bmv2"], "use --world netns"),
        ("netns", "star:4", ["tor=p4"], "write iswitch or bmv2"),
        ("bmv2", "rack:2x17", [], "take fewer"),
        ("bmv2", "star:4,loss=1%", [], "leave that out"),
    ],
)
def test_what_it_cannot_be_is_refused(
    world: str, topology: str, chosen: list[str], mend: str
) -> None:
    with pytest.raises(UsageError, match=mend):
        p4_switches(world, Topology.parse(topology), chosen)


@pytest.mark.parametrize(
    ("words", "mend"),
    [
        ("train ppo --env CartPole-v1 --world bmv2 --mode async", "use --mode sync"),
        ("train ppo --env CartPole-v1 --world bmv2 --reproducible", "leave that out"),
        ("bench paper --world bmv2", "leave paper out"),
        ("bench --world bmv2 --loss 1%", "leave that out"),
        ("bench --world bmv2 --switch=--reproducible", "--reproducible is not for --world bmv2"),
        ("run --world bmv2 --topology star:2 --capture x -- true", "leave the capture out"),
        ("record --world bmv2 --topology star:2 --to x -- true", "leave the capture out"),
        ("demo --world bmv2 --capture x", "leave the capture out"),
        ("demo --world bmv2 --workers 8", "take 7 at most"),
        ("switch --world bmv2 --ports a --address 10.0.0.1 --reproducible", "docs/p4.md"),
        ("switch --world bmv2 --ports a --address 10.0.0.1 --capture x.pcapng", "docs/p4.md"),
        ("switch --world bmv2 --ports a --address 10.0.0.1 --counting paper", "counts exactly"),
        ("switch --world bmv2", "without is loopback"),
    ],
)
def test_what_it_does_not_do_is_refused(
    words: str,
    mend: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """With the mend, before anything is started, or a folder made."""
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert mend in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
