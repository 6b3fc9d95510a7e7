"""Every command and listing of README.md and docs/ runs as it stands there."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from iswitch.cli import bench, train
from iswitch.cli.switch import configure, settings
from iswitch.lab.bench.choosing import plan_of
from iswitch.lab.federated.bench import chosen as federated_bench
from iswitch.lab.federated.choosing import plan_of as federated_plan
from iswitch.lab.launch.worlds import chosen_topology
from iswitch.lab.sharing.bench import chosen as sharing_bench
from iswitch.lab.training.choosing import plan_of as train_plan
from iswitch.serving.impairments import impairments
from tests.conftest import Where
from tests.support import ROOT, options_of, python
from worker_lib import Worker

FEDPROX = ROOT / "docs" / "fedprox.md"  # of `iswitch train` and `bench`, too
SHARING = ROOT / "docs" / "bench-sharing.md"  # of `iswitch bench`, too
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for tag, text in BLOCK.findall(page.read_text()):
            if tag == kind:
                yield page, text


def commands() -> list[str]:
    """The command lines of all console blocks, in order."""
    return [
        line[2:]
        for page, text in blocks("console")
        for line in text.splitlines()
        if line.startswith("$ ")
        and page.name not in (DISSECT, P4, TUTORIAL)
        and line != "$ iswitch doctor --fidelity"  # tests/lab/test_fidelity.py
        and page.name != "place.md"  # tests/lab/test_place.py
        and page.name != "workloads.md"  # tests/lab/test_workload.py
        and page.name != "simulate.md"  # tests/lab/test_simulate.py
    ]


def listings(page: str) -> list[tuple[str, str]]:
    """The Python listings of a page, each with the output that stands below it."""
    found = BLOCK.findall((ROOT / "docs" / page).read_text())
    return [
        (code, output)
        for (tag, code), (below, output) in pairwise(found)
        if (tag, below) == ("python", "text")
    ]


BAD_LINKS = ["--topology", "star:4,loss=1%,delay=2ms,seed=1", "--world", "netns"]
OF_STRATEGIES = [  # tests/strategies/test_strategies_doc.py
    ["--topology", "rack:2x2", "--world", "netns"],
    ["--topology", "star:5", "--world", "netns"],
]
ALONE = ["topologies.md", "mininet.md", "guarantees.md"]  # not run by workers: the output is shown
COOKBOOK = "cookbook.md"  # tests/docs/test_cookbook.py
DISSECT = "dissect.md"  # tests/traces/test_dissect_doc.py
P4 = "p4.md"  # tests/p4/test_p4_switch.py
FEDERATED = "federated.md"  # tests/federated/test_doc.py
TUTORIAL = "tutorial.md"  # tests/docs/test_tutorial.py
ELSEWHERE = (COOKBOOK, DISSECT, FEDERATED, TUTORIAL)
OF_MININET = [command for command in commands() if command.startswith("mn ")]
WORKERS = [(page, text) for page, text in blocks("python") if page.name not in (*ALONE, *ELSEWHERE)]
SHOWN = [listing for page in ALONE for listing in listings(page)]


@pytest.mark.parametrize(
    "listing", [text for _, text in WORKERS], ids=[page.name for page, _ in WORKERS]
)
def test_python_listing_in_four_processes(listing: str, switch: Where, tmp_path: Path) -> None:
    assert '("127.0.0.1", 26963)' in listing
    example = tmp_path / "example.py"
    example.write_text(listing.replace("26963", str(switch[1])))
    fast = {} if listing == WORKERS[0][1] else {"ISWITCH_FAST": "0"}  # as they are, and quickly
    workers = [
        subprocess.Popen(
            [sys.executable, str(example)], stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **fast},
        )
        for _ in range(4)
    ]  # fmt: skip
    outputs = [worker.communicate(timeout=60)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4
    if "the sum over all four" in listing:
        assert sorted(outputs) == [f"rank {rank} got [0. 4. 8.]\n" for rank in range(4)]
    if "the largest loss" in listing:
        assert outputs == ["the largest loss is 2.0 at worker 2\n"] * 4
    if "# (4, 1000) 4.0 2.0" in listing:
        assert outputs == ["(4, 1000) 4.0 2.0\n"] * 4
    if "(6.0, 4.0)" in listing:
        assert sorted(outputs) == [f"rank {rank} sums (6.0, 4.0)\n" for rank in range(4)]


def test_every_python_listing_is_run() -> None:
    elsewhere = sum(page.name in ELSEWHERE for page, _ in blocks("python"))
    assert len(list(blocks("python"))) == len(WORKERS) + len(SHOWN) + elsewhere


def test_topology_files() -> None:
    from topologies import Queue, Topology
    from topologies.toml import loads

    (text,) = [text for page, text in blocks("toml") if page.name == "topologies.md"]
    lab = loads(text, Topology)
    assert lab.nodes == Topology.parse("rack:2x2").nodes
    assert [link.rate for link in lab.links] == [10**10] * 2 + [10**9] * 4
    assert lab.links[1].delay == 0.001
    assert lab.links[-1].queue == Queue(64)


def test_topology_forms_and_settings_are_documented() -> None:
    from topologies import Link
    from topologies.specs import KINDS

    text = (ROOT / "docs" / "topologies.md").read_text()
    for kind in KINDS.values():
        assert f"| `{kind.example}` |" in text
    for name in Link("h1", "s1").__dict__.keys() - {"a", "b"}:
        assert f"| `{name}` |" in text


@pytest.fixture
def worker(switch: Where) -> Iterator[None]:
    """Somebody is in the job of the commands."""
    with Worker(switch, job=7, numel=1000):
        yield


def trains(words: list[str]) -> object:
    """What `iswitch train` would do with these options."""
    parser = argparse.ArgumentParser()
    train.configure(parser)
    args = parser.parse_args(words)
    if args.algorithm in train.FEDERATED:  # tests/federated/test_train_command.py
        return federated_plan(args)
    return train_plan(args, chosen_topology(args.topology, args.workers))


def measures(words: list[str]) -> object:
    """What `iswitch bench` would do with these options."""
    parser = argparse.ArgumentParser()
    bench.configure(parser)
    args = parser.parse_args(words)
    if args.what == "federated":  # tests/federated/test_bench_federated.py
        return federated_bench(args)
    if args.what == "sharing":  # tests/lab/test_bench_sharing.py
        return sharing_bench(args)
    return os.geteuid() != 0 or plan_of(args).cells


@pytest.mark.usefixtures("worker")
def test_commands(switch: Where, tmp_path: Path) -> None:
    """Each is of a kind that is tested: here, or as the comment says."""
    for command in commands():
        words = shlex.split(command.replace("127.0.0.1:26963", "{}:{}".format(*switch)))
        if words[0] == "make":  # demo: tests/training/test_demo.py; test: this run
            dry = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True)
            assert dry.returncode == 0, dry.stderr
        elif words[:2] == ["iswitch", "switch"]:  # as the fixture starts it
            assert words[2] in ("--listen", "--ports")  # the latter: tests/ports/test_raw.py
            parser = argparse.ArgumentParser()
            configure(parser)
            assert bool(impairments(settings(parser.parse_args(words[2:])))[0]) == (
                "--impair" in words
            )
        elif words[:2] == ["iswitch", "run"]:  # tests/worlds/test_run.py
            options = words[2 : words.index("--")]
            of_mininet = ["--world", "mininet", "--topology", "rack:2x3"]
            restarts = ["--topology", "star:4", "--max-restarts", "3"]  # worlds/test_crashes.py
            plain = ["--topology", "star:4"]
            tree = ["--topology", "rack:2x2"]  # torch/test_torch_doc.py
            virtual = ["--world", "sim", "--topology", "star:4,rate=10Gbit"]  # test_virtual.py
            virtual += ["--compute", "fixed:3ms"]
            cookbook = ["--topology", "star:1", "--workers-per-host", "4"]
            fallback = [*plain, "--fallback", "besteffort:512"]  # worlds/test_run_fallback.py
            sharing = [*plain, "--switch=--memory=4", "--switch=--policy=lanes:fair"]  # there, too
            assert options in (
                plain,
                tree,
                restarts,
                BAD_LINKS,
                of_mininet,
                cookbook,
                fallback,
                sharing,
                virtual,
                *OF_STRATEGIES,
            )
        elif words[:2] == ["iswitch", "demo"]:  # tests/worlds/test_worlds.py
            assert words[2:] == ["--world", "mininet", "--topology", "rack:2x3"]
        elif words[:2] == ["iswitch", "train"]:  # tests/training/test_train.py
            assert trains(words[2:])
        elif words[:2] == ["iswitch", "bench"]:  # tests/lab/test_bench.py
            assert measures(words[2:])
        elif words[:2] == ["iswitch", "soak"]:  # tests/lab/test_soak_command.py
            assert words[2:] in (["--seeds", "20"], ["--seed", "7"])
        elif words[0] == "mn":  # tests/docs/test_listings.py
            assert command in OF_MININET
        elif words[0] == "iswitch":
            done = python("-m", *words, folder=tmp_path)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            assert done.stdout
        else:  # README: the listing in four processes, as above
            assert command in (
                ". .venv/bin/activate",
                "for i in 1 2 3 4; do python example.py & done; wait",
                "for i in 1 2 3 4; do python learn.py & done; wait",  # tests/docs/test_cookbook.py
            )


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_makefile_knows_the_readme_targets() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test"} <= set(targets)


def test_a_checkout_is_installed_in_one_way() -> None:
    """Compiled code is kept by its place: one that moves is compiled again."""
    pages = [*PAGES, ROOT / "docs" / "tutorial" / "README.md"]
    text = "\n".join(page.read_text() for page in pages)
    assert text.count("pip install -e '.[") > 10
    assert not re.findall(r"pip install '?(?:\.|iswitch).*", text)


def test_links() -> None:
    """Links between the pages lead somewhere."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_workloads_and_options_of_training_are_documented() -> None:
    from worker_lib.rl.workloads import PAIRS

    text = (ROOT / "docs" / "train.md").read_text()
    for names in PAIRS:
        assert all(f"`{name}`" in text for name in names)
    text += FEDPROX.read_text()
    for option in options_of(train.configure):
        assert not option.startswith("--") or option in text, option


def test_options_of_the_benchmark_are_documented() -> None:
    pages = (ROOT / "docs" / "bench.md", FEDPROX, SHARING)
    text = "".join(page.read_text() for page in pages)
    for option in options_of(bench.configure):
        assert not option.startswith("--") or option in text, option


def test_worker_arguments_are_documented() -> None:
    import inspect

    from worker_lib import Worker, errors

    text = (ROOT / "docs" / "worker.md").read_text()
    for name in inspect.signature(Worker.__init__).parameters:
        assert name == "self" or f"`{name}`" in text, name
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, errors.WorkerError):
            assert f"`{name}`" in text, name


def test_stats_are_documented(switch: Where) -> None:
    with Worker(switch, 1, 0) as worker:
        stats = worker.stats()
    text = (ROOT / "docs" / "worker.md").read_text()
    table = text[text.index("| key of `stats()`") :]
    assert set(stats) <= set(re.findall(r"`(\w+)`", table[: table.index("\n\n")]))
