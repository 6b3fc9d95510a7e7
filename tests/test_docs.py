"""Every command and listing of README.md and docs/ runs as it stands there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker_lib import Worker

from .conftest import Where

ROOT = Path(__file__).parent.parent
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
        for _, text in blocks("console")
        for line in text.splitlines()
        if line.startswith("$ ")
    ]


@pytest.mark.parametrize(
    "listing", [text for _, text in blocks("python")], ids=[p.name for p, _ in blocks("python")]
)
def test_python_listing_in_four_processes(listing: str, switch: Where, tmp_path: Path) -> None:
    assert '("127.0.0.1", 26963)' in listing
    example = tmp_path / "example.py"
    example.write_text(listing.replace("26963", str(switch[1])))
    workers = [
        subprocess.Popen(
            [sys.executable, str(example)], stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        )
        for _ in range(4)
    ]  # fmt: skip
    outputs = [worker.communicate(timeout=60)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4
    if "the sum over all four" in listing:
        assert sorted(outputs) == [f"rank {rank} got [0. 4. 8.]\n" for rank in range(4)]
    if "(6.0, 4.0)" in listing:
        assert sorted(outputs) == [f"rank {rank} sums (6.0, 4.0)\n" for rank in range(4)]


@pytest.fixture
def worker(switch: Where) -> Iterator[None]:
    """Somebody is in the job of the commands."""
    with Worker(switch, job=7, numel=1000):
        yield


@pytest.mark.usefixtures("worker")
def test_commands(switch: Where) -> None:
    """Each is of a kind that is tested: here, or as the comment says."""
    for command in commands():
        words = shlex.split(command.replace("127.0.0.1:26963", "{}:{}".format(*switch)))
        if words[0] == "make":  # demo: tests/test_demo.py; test: this run
            dry = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True)
            assert dry.returncode == 0, dry.stderr
        elif words[:2] == ["iswitch", "switch"]:  # as the fixture starts it
            assert words[2] == "--listen"
        elif words[0] == "iswitch":
            done = subprocess.run(
                [sys.executable, "-m", *words], capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            assert done.stdout
        else:  # README: the listing in four processes, as above
            assert command in (
                ". .venv/bin/activate",
                "for i in 1 2 3 4; do python example.py & done; wait",
            )


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_makefile_knows_the_readme_targets() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test"} <= set(targets)


def test_links() -> None:
    """Links between the pages lead somewhere."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


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
