"""`iswitch run --jobs`: several jobs side by side, in every world that has more than one."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from iswitch.cli import main
from iswitch.lab.launch import launch
from iswitch.lab.launch.programs import Program, WorkerProcess
from iswitch.lab.launch.restarts import Restarts
from tests.worlds.test_run import as_root, check_captures, run

pytestmark = pytest.mark.serial

SUM = """
    import os, sys
    import numpy as np
    from worker_lib import Worker
    numel = int(sys.argv[1])
    with Worker.from_env(numel=numel) as worker:
        for _ in range(3):
            total = worker.allreduce(np.full(numel, 1 + worker.rank, np.float32))
        print("job", os.environ["ISWITCH_JOB"], "rank", worker.rank, "has", *set(total.tolist()))
"""
WORLDS = {  # and the options with which it is run; "": the folder of the test
    "loopback": [],
    "netns": ["--capture", "/captures", "--key-file", "/key", "--policy", "spread"],
    "mininet": [],
    "sim": ["--capture", "/captures", "--key-file", "/key", "--compute", "zero"],
}


def jobs_file(folder: Path, **commands: tuple[int, str]) -> str:
    """Write jobs of so many workers, and the commands that they run."""
    path = folder / "jobs.toml"
    path.write_text(
        "".join(
            f"[[jobs]]\nname = {json.dumps(name)}\nworkers = {workers}\nnumel = 9\n"
            f"command = {json.dumps(command)}\n"
            for name, (workers, command) in commands.items()
        )
    )
    return str(path)


@pytest.mark.parametrize(
    "world",
    [pytest.param(one, marks=[as_root] * (one in ("netns", "mininet"))) for one in WORLDS],
)
def test_each_job_has_its_sums_lines_and_log(world: str, tmp_path: Path) -> None:
    """On a tree, keyed, captured and at a rate, where the world has these."""
    (tmp_path / "key").write_text("secret\n")
    (tmp_path / "key").chmod(0o600)
    script = tmp_path / "sum.py"
    script.write_text(textwrap.dedent(SUM))
    command = shlex.join([sys.executable, str(script)])
    jobs = jobs_file(tmp_path, big=(3, f"{command} 20000"), small=(2, f"{command} 7"))
    form = "rack:2x3" + ",rate=1Gbit" * (world != "loopback")
    more = [str(tmp_path) + word if word.startswith("/") else word for word in WORLDS[world]]
    logs, report = tmp_path / "logs", tmp_path / "report.json"
    status, out, err = run(
        "--topology", form, "--world", world, "--jobs", jobs, "--logs", str(logs),
        "--json", str(report), *more,
    )  # fmt: skip
    assert status == 0, err
    told = json.loads(report.read_text())
    places = {name: one["hosts"] for name, one in told["jobs"].items()}
    if world != "netns":
        assert places == {"big": ["h1", "h2", "h3"], "small": ["h4", "h5"]}
    expected = {
        "big": [f"{host} | job 1 rank {i} has 6.0" for i, host in enumerate(places["big"])],
        "small": [f"{host} | job 2 rank {i} has 3.0" for i, host in enumerate(places["small"])],
    }
    for name, lines in expected.items():
        assert sorted((logs / f"{name}.log").read_text().splitlines()) == lines
        assert f"iswitch run: {name}: {len(lines)} x {sys.executable} in {form} ({world})" in err
    every = [
        f"{f'{name} {line.split()[0]}':8} |{line.partition('|')[2]}"
        for name, lines in expected.items()
        for line in lines
    ]
    assert sorted(out.splitlines()) == sorted(every)
    assert {name: (one["job"], one["status"]) for name, one in told["jobs"].items()} == {
        "big": (1, 0), "small": (2, 0),
    }  # fmt: skip
    assert [(one["job"], one["rank"]) for one in told["workers"]] == [
        (1, 0), (1, 1), (1, 2), (2, 0), (2, 1),
    ]  # fmt: skip
    assert all(counters["data"] for counters in told["switches"].values())
    if "--capture" in more:
        check_captures(tmp_path / "captures", ["core1", "tor1", "tor2"])


@pytest.mark.parametrize("world", ["loopback", "sim"])
def test_a_job_that_fails_leaves_the_others_alone(world: str, tmp_path: Path) -> None:
    """Its own processes are ended, even one that would go on for long and heeds no SIGTERM."""
    script = tmp_path / "sum.py"
    script.write_text(textwrap.dedent(SUM))
    stubborn = "trap '' TERM; while :; do sleep 0.1; done"
    jobs = jobs_file(
        tmp_path,
        bad=(2, shlex.join(["sh", "-c", f"test $RANK = 0 && exit 3; {stubborn}"])),
        good=(2, shlex.join([sys.executable, str(script), "7"])),
    )
    report = tmp_path / "report.json"
    words = ["--topology", "star:4", "--world", world, "--jobs", jobs, "--json", str(report)]
    status, out, err = run(*words)
    assert status == 3, err
    assert out.count("job 2 rank") == 2
    assert "ended with status 3; ending the others of bad" in err
    told = json.loads(report.read_text())["jobs"]
    assert {name: one["status"] for name, one in told.items()} == {"bad": 3, "good": 0}


def test_processes_of_a_job_are_restarted(tmp_path: Path) -> None:
    """And those of the other job are not."""
    once = f"test -e {tmp_path}/was || {{ touch {tmp_path}/was; exit 4; }}; echo $RANK again"
    echo = "echo $RANK $WORLD_SIZE $ISWITCH_JOB ${ISWITCH_BIND:+bound} $ISWITCH_ROUNDS"
    jobs = jobs_file(
        tmp_path,
        twice=(1, shlex.join(["sh", "-c", once])),
        plain=(2, shlex.join(["sh", "-c", echo])),
    )
    with Path(jobs).open("a") as file:  # of the last one
        file.write("rounds = 70\n")
    words = ["--topology", "star:3", "--jobs", jobs, "--max-restarts", "1"]
    status, out, err = run(*words)
    assert status == 0, err
    assert sorted(out.splitlines()) == [
        "plain h1 | 0 2 2 bound 70", "plain h2 | 1 2 2 bound 70", "twice h3 | 0 again",
    ]  # fmt: skip
    assert "ended with status 4; starting it again (1 of 1)" in err


class Ended:
    """A process that has failed, or that heeds no SIGTERM."""

    def __init__(self, status: int | None) -> None:
        self.ended = status
        self.signals: list[int] = []
        self.process = SimpleNamespace(pid=1)

    def status(self) -> int | None:
        return self.ended

    def signal(self, signum: int) -> None:
        self.signals.append(signum)


def test_a_process_that_waits_for_its_restart_stays_down_with_its_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And one that heeds no SIGTERM is killed after a while, in which the others are heard."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    started: list[object] = []
    switches: Any = SimpleNamespace(fleet=None, world=None, ended=started.append, in_order=False)
    programs = [Program(["x"], 1, ["h1", "h2", "h3"], name="bad"), Program(["x"], 2, ["h4"])]
    crew = launch.Crew(switches, programs, hear=lambda *_: None)
    monkeypatch.setattr(crew, "_launch", lambda *_: pytest.fail("it was started again"))
    ends = [Ended(4), Ended(5), Ended(None), Ended(None)]
    for number, (end, most) in enumerate(zip(ends, (1, 0, 1, 0), strict=True)):
        one, rank = (programs[0], number) if number < 3 else (programs[1], 0)
        child: Any = end
        crew.workers.append(
            WorkerProcess(one, number, one.hosts[rank], rank, 0, one.called(rank), {}, child,
                          Restarts(most))
        )  # fmt: skip
    for clock[0] in (100.0, 102.0, 104.0):
        crew._look()
        crew._tend()
    assert [worker.status for worker in crew.workers] == [4, 5, None, None]
    assert ends[2].signals == [signal.SIGTERM, signal.SIGKILL]
    assert ends[3].signals == []
    assert crew.failed is crew.workers[1]
    assert [one["status"] for one in crew.statuses().values()] == [5, None]
    assert started == [1, 0]  # these have ended for good


def test_each_job_meets_at_a_port_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever MASTER_PORT says: on one machine only one of them could listen there."""
    monkeypatch.setenv("MASTER_PORT", "29517")
    command = "printenv MASTER_PORT"
    for world in ("loopback", "sim"):
        jobs = jobs_file(tmp_path, a=(2, command), b=(2, command))
        out = run("--topology", "star:4", "--world", world, "--jobs", jobs)[1]
        found = {tuple(line.split()[::3]) for line in out.splitlines()}
        assert len(found) == 2
        assert len({port for _, port in found} - {"29517"}) == 2


def test_what_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    jobs_file(tmp_path, a=(2, ""), b=(1, "true"))
    line = "run --topology rack:2x2 --jobs jobs.toml"
    for more, words in (
        ("-- true", "--jobs jobs.toml has the commands; leave out true"),
        ("", "jobs.toml: job 'a' has no command to run; add one, such as command ="),
        ("--job 2", "--job: jobs.toml says how many workers and which job; leave it out"),
        ("--workers-per-host 2", "--workers-per-host: jobs.toml says how many workers"),
        ("--topology star:2", "the jobs need 3 hosts, one for each worker, and star:2 has 2"),
    ):
        assert main([*line.split(), *more.split()]) == 2
        assert words in capsys.readouterr().err
    for option in ("--policy pack", "--logs x"):
        assert main([*f"run --topology star:2 {option} -- true".split()]) == 2
        assert "goes with --jobs FILE; add that, or leave it out" in capsys.readouterr().err
    jobs_file(tmp_path, a=(2, "true"), b=(1, "true"))
    assert main([*line.split(), "--world", "netns", "--switch", "bmv2"]) == 2
    assert "a tree of P4 programs has one job at a time" in capsys.readouterr().err
