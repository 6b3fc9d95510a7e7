"""Limits of the system, and terminals that go away."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from iswitch.system.boundary import from_outside
from tests.commands.test_damaged_checkpoints import CRAFTED
from tests.commands.test_every_command import in_a_terminal, nothing_odd
from tests.commands.test_shortages import (
    BENCH,
    COMMAND,
    DEMO,
    ROOT_ONLY,
    TRAIN,
    finds_no_room,
    run,
    trace,
)
from tests.support import ROOT

pytestmark = pytest.mark.serial

__all__ = ["trace"]  # fixtures


def limited(*line: str, **limits: int) -> subprocess.CompletedProcess[str]:
    """Run a command line under limits, of descriptors or bytes of addresses."""

    def limit() -> None:
        for name, most in limits.items():
            number = getattr(resource, f"RLIMIT_{name.upper()}")
            resource.setrlimit(number, (most, most))

    return run(*line, preexec_fn=limit)


def told_in_one_sentence(done: subprocess.CompletedProcess[str]) -> None:
    assert "Traceback" not in done.stderr
    assert done.returncode == 2, done.stderr
    assert re.match(r"iswitch \w+: ", done.stderr.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("most", [3, 4])
def test_where_python_itself_has_too_few_descriptors(most: int) -> None:
    """It ends before our first line: an editable install is found by a file that `site` runs."""
    done = limited("run", "--topology", "star:2", "--", "true", nofile=most)
    assert done.returncode
    assert not re.search(r"/(iswitch|worker_lib|topologies)/\w+\.py", done.stderr), done.stderr


def test_few_descriptors_of_python_alone() -> None:
    """As it is where iswitch is installed, rather than linked to a checkout."""
    paths = [str(ROOT), sysconfig.get_path("purelib")]
    begin = (
        f"import sys; sys.path[:0] = {paths}; sys.argv[1:] = ['run', '--topology', 'star:2', '--', "
        "'true']\nfrom iswitch.__main__ import main; sys.exit(main())"
    )
    limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4)); "
    begin = limit + f"os.execv(sys.executable, ['iswitch', '-S', '-c', {begin!r}])"
    done = subprocess.run([sys.executable, "-c", begin], capture_output=True, text=True, timeout=60)
    told_in_one_sentence(done)
    assert "Too many open files; raise the limit of this process" in done.stderr


@ROOT_ONLY
@pytest.mark.parametrize("most", [5, 7])
def test_few_descriptors_of_a_network(most: int) -> None:
    """A library that looks for a folder then says that there is none."""
    done = limited("run", "--world", "netns", "--topology", "star:2", "--", "true", nofile=most)
    told_in_one_sentence(done)
    assert "Too many open files; raise the limit of this process" in done.stderr


@ROOT_ONLY
def test_a_record_of_a_network_that_finds_no_room_at_all(tmp_path: Path) -> None:
    finds_no_room("netns", tmp_path / "disk")


def test_a_worker_that_cannot_load_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISWITCH_FAST", "0")  # there is memory for Numba, or for PyTorch's threads
    done = limited(*TRAIN.split(), **{"as": 400_000 << 10})
    told_in_one_sentence(done)
    assert re.search(r"h1 \(rank 0, process \d+\): cannot load .*; free some memory", done.stderr)


LINES = {"switch": "switch --listen 127.0.0.1:0", "demo": DEMO, "bench": BENCH}


@pytest.mark.parametrize("command", LINES)
def test_few_descriptors_of_other_commands(command: str) -> None:
    done = limited(*LINES[command].split(), nofile=6)
    told_in_one_sentence(done)
    assert "Too many open files; raise the limit of this process" in done.stderr


@ROOT_ONLY
def test_no_more_processes() -> None:
    """As another user, for root is not limited; Python's files may not be theirs to read."""
    begin = (
        "import os, resource, sys; import iswitch.__main__ as command\n"
        "sys.argv = ['iswitch', 'run', '--topology', 'star:2', '--', 'true']\n"
        "assert command.main() == 0\n"  # all is loaded
        "resource.setrlimit(resource.RLIMIT_NPROC, (0, 0)); os.setgroups([]); os.setuid(64123)\n"
        "sys.exit(command.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", begin], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    told_in_one_sentence(done)
    assert "no more processes or threads can be started" in done.stderr


@pytest.mark.parametrize(
    ("most", "limits"),
    [(resource.RLIM_INFINITY, "ulimit -u,"), (1 << 40, "ulimit -v or ulimit -u,")],
)
def test_no_more_threads(most: int, limits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack of a thread counts against a limit on addresses, where there is one."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    said = from_outside(RuntimeError("can't start new thread"))
    assert said is not None
    assert said.startswith(f"no more threads can be started: raise {limits}")


@pytest.mark.parametrize("mib", [160, 190])
@pytest.mark.parametrize("command", ["replay", "soak", "run", "generate"])
def test_few_addresses(command: str, mib: int, trace: str, tmp_path: Path) -> None:
    """So few that something may not be had, whatever it is."""
    lines = {
        "replay": ["replay", trace],
        "soak": ["soak", "--seed", "1"],
        "run": ["run", "--topology", "star:1", "--", "true"],
        "generate": ["generate", str(tmp_path / "x.pcapng"), "--numel", "30000000"],
    }
    done = limited(*lines[command], **{"as": mib << 20})
    if done.returncode:
        told_in_one_sentence(done)
    assert done.returncode or command != "generate"


def test_a_checkpoint_that_announces_more_than_there_is_memory(tmp_path: Path) -> None:
    CRAFTED["4 GB as 0.npy"](tmp_path / "checkpoint.npz")
    done = limited(*TRAIN.split(), "--out", str(tmp_path), "--resume", **{"as": 1 << 30})
    told_in_one_sentence(done)
    assert "checkpoint.npz is damaged" in done.stderr


def test_a_refusal_in_a_narrow_terminal() -> None:
    status, said = in_a_terminal([*COMMAND, "run", "--topology", "x", "--", "x"])
    assert status == 2
    nothing_odd(said)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(closed: str) -> None:
    for words, wanted in (("soak --seed 1", 0), ("run --topology star:1 -- true", 0),
                          ("run --topology star:x -- true", 2)):  # fmt: skip
        shell = f"{' '.join(COMMAND)} {words} {closed}"
        done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True)
        assert "Traceback" not in done.stderr + done.stdout
        assert done.returncode == wanted, done.stderr
