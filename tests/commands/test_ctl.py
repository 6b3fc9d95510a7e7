"""`iswitch ctl` against a switch in a process of its own, and against worse."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.core.format.wire import (
    NO_RANK,
    Ack,
)
from tests.conftest import StartSwitch, Where
from worker_lib import JobHalted, JobReset, Worker, WorkerError
from worker_lib.controller import Controller

PATIENCE = 20.0  # seconds until a test is given up
ELEMENTS = 1000  # three segments

Ctl = Callable[..., dict[str, Any]]


@pytest.fixture
def ctl(switch: Where, job: int, capsys: pytest.CaptureFixture[str]) -> Ctl:
    """Runs a command with --json; the object it prints, which must fit its exit status."""

    def call(action: str, *words: object, job: int = job) -> dict[str, Any]:
        capsys.readouterr()
        where = "{}:{}".format(*switch)
        options = ["--switch", where, "--job", str(job), "--json"]
        exit_status = main(["ctl", action, *map(str, words), *options])
        printed = capsys.readouterr()
        answer: dict[str, Any] = json.loads(printed.out)
        assert not printed.err
        assert (answer["action"], answer["switch"], answer["job"]) == (action, where, job)
        assert exit_status == (0 if answer["status"] == "OK" else 1)
        return answer

    return call


@pytest.fixture
def workers(switch: Where, job: int) -> Iterator[Callable[[int], list[Worker]]]:
    """Makes workers that have joined, and lets them leave at the end."""
    made: list[Worker] = []

    def make(count: int) -> list[Worker]:
        made.extend(Worker(switch, job, ELEMENTS, timeout=PATIENCE) for _ in range(count))
        return made

    yield make
    for worker in made:
        worker.leave()


def until(ask: Callable[[], dict[str, Any]], what: Callable[[dict[str, Any]], bool]) -> None:
    """Ask again and again until the answer is as it should be."""
    end = time.monotonic() + PATIENCE
    while not what(answer := ask()):
        assert time.monotonic() < end, answer


def vector(value: float) -> np.ndarray:
    return np.full(ELEMENTS, value, np.float32)


# The actions


def test_status_of_an_unknown_job(ctl: Ctl) -> None:
    answer = ctl("status")
    assert answer["status"] == "NO_SUCH_JOB"
    assert answer["message"].startswith(f"there is no job {answer['job']} at the switch at ")
    assert [one["job"] for one in ctl("jobs")["jobs"]].count(answer["job"]) == 0  # nor is it now


def test_status_names_the_members(
    ctl: Ctl, switch: Where, job: int, workers: Callable[[int], list[Worker]]
) -> None:
    there = workers(20)  # more than one answer holds
    addresses = {worker.rank: worker._port.socket.getsockname() for worker in there}
    controller = Controller(switch, job, bind=("127.0.0.1", 0))
    with controller, controller.membership():  # who only commands is not named
        answer = ctl("status")
    named = {one["rank"]: (one["host"], one["port"]) for one in answer["members"]}
    assert named == {rank: ("127.0.0.1", port) for rank, (_, port) in addresses.items()}


def test_a_switch_older_than_a_question_is_asked_the_others(
    ctl: Ctl, job: int, workers: Callable[[int], list[Worker]], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers(2)
    unknown = SimpleNamespace(SWITCH=0, JOBS=1, MEMBERS=2, QUEUE=98, MEMORY=99)
    monkeypatch.setattr("worker_lib.controller.Shown", unknown)
    answer = ctl("queue")
    assert answer["waiting"] == []
    (told,) = [one for one in answer["jobs"] if one["job"] == job]
    assert (told["workers"], told["reserved"]) == (2, None)
    assert ctl("status")["reserved"] is None


def test_a_job_that_ends_as_status_is_asked(
    ctl: Ctl, switch: Where, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To have joined it makes it no job: it is none, as it was."""
    other, join = Controller(switch, job), Controller.join

    def late(controller: Controller) -> Ack:
        if controller is not other:
            other.leave()
        return join(controller)

    with other:
        other.join()
        assert ctl("status")["workers"] == 0
        monkeypatch.setattr(Controller, "join", late)
        assert ctl("status")["status"] == "NO_SUCH_JOB"


def test_jobs_are_listed(ctl: Ctl, job: int, workers: Callable[[int], list[Worker]]) -> None:
    before = ctl("jobs")
    workers(2)
    answer = ctl("jobs")
    assert answer["total"] == before["total"] + 1
    (ours,) = (one for one in answer["jobs"] if one["job"] == job)
    assert (ours["threshold"], ours["round"], ours["workers"]) == (2, 0, 2)
    numbers = [one["job"] for one in answer["jobs"]]
    assert numbers == sorted(numbers)
    assert answer["reserved"] > before["reserved"]
    assert answer["reserved"] + answer["free"] <= 1 << 30
    assert not answer["above"]


def test_workers_that_are_still_to_come_are_shown(
    ctl: Ctl, switch: Where, job: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """By status, jobs and help, while the first of two waits for the second."""
    make = partial(Worker, switch, job, ELEMENTS, num_workers=2, timeout=PATIENCE)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(make)
        until(lambda: ctl("jobs"), lambda a: job in [one["job"] for one in a["jobs"]])
        (ours,) = (one for one in ctl("jobs")["jobs"] if one["job"] == job)
        for answer in (ours, ctl("status"), ctl("join")):
            assert (answer["workers"], answer["expected"]) == (1, 2)
            assert (answer["state"], answer["halted"]) == ("gathering", False)
        options = ["--switch", "{}:{}".format(*switch), "--job", str(job)]
        for action, first in (("status", f"job {job}: H = 1, round 0, 1 of 2 workers"),
                              ("help 0 0", f"job {job}, round 0, segment 0: ")):  # fmt: skip
            assert main(["ctl", *action.split(), *options]) == 0
            line = capsys.readouterr().out.splitlines()[0]
            assert line.startswith(first)
            assert line.endswith("; nothing completes until all 2 have joined")
        with make(), waiting.result(PATIENCE):
            answer = ctl("status")
            assert (answer["workers"], answer["expected"], answer["state"]) == (2, 2, "running")
            assert all(0 <= one["silent"] < answer["lease"] for one in answer["members"])


def test_jobs_of_another_key_are_not_listed(start_switch: StartSwitch, tmp_path: Path) -> None:
    path, key = tmp_path / "keys.toml", tmp_path / "key"
    path.touch(0o600)
    path.write_text('7 = "of seven"\n')
    key.touch(0o600)
    key.write_text("of seven")
    _, where = start_switch("127.0.0.1:0", "--keys", str(path))
    with Worker(where, 7, 5, key=b"of seven"), Worker(where, 8, 5):
        with Controller(where, 7, key=b"of seven") as keyed:
            assert [ack.rank for ack in keyed.jobs()] == [7]
            with keyed.membership():
                assert len(keyed.members()) == 1
        with Controller(where, 0) as plain:
            assert [ack.rank for ack in plain.jobs()] == [8]
            assert plain.switch_itself().rank == 1
        with Controller(where, 7, timeout=0.3) as stranger, pytest.raises(WorkerError):
            stranger.look()


def test_below_a_switch_members_are_switches(start_switch: StartSwitch) -> None:
    _, root = start_switch()
    _, below = start_switch("127.0.0.1:0", "--parent", "{}:{}".format(*root))
    with (
        Worker(below, 7, 5, rank=3),
        Controller(root, 7) as above,
        Controller(below, 7) as leaf,
    ):
        above.join()
        leaf.join()
        (switch,) = above.members()
        assert (switch.rank, switch.port) == (NO_RANK, below[1])
        assert [one.rank for one in leaf.members()] == [3]
        assert (leaf.switch_itself().contributors, above.switch_itself().contributors) == (1, 0)


def test_status_follows_the_job(ctl: Ctl, workers: Callable[[int], list[Worker]]) -> None:
    (alone,) = workers(1)
    for _ in range(3):
        alone.allreduce(vector(1))
    answer = ctl("status")
    assert (answer["threshold"], answer["round"], answer["workers"]) == (1, 2, 1)
    assert [one["rank"] for one in answer["members"]] == [0]
    workers(1)
    answer = ctl("status")
    assert (answer["threshold"], answer["workers"]) == (2, 2)
    assert [one["rank"] for one in answer["members"]] == [0, 1]


def test_join_leaves_nothing(ctl: Ctl, workers: Callable[[int], list[Worker]]) -> None:
    workers(2)
    for _ in range(70):  # more than a job has room for
        answer = ctl("join")
        assert (answer["threshold"], answer["workers"]) == (2, 2)
        assert answer["stays"] is False


def test_join_to_stay_and_leave(ctl: Ctl) -> None:
    stayed = ctl("join", "--stay")
    assert stayed["stays"] is True
    left = ctl("leave", "--bind", stayed["address"])
    assert left["address"] == stayed["address"]


def test_an_action_from_the_same_address_ends_the_stay(
    ctl: Ctl, workers: Callable[[int], list[Worker]]
) -> None:
    workers(1)
    stayed = ctl("join", "--stay")
    assert ctl("seth", 2, "--bind", stayed["address"])["threshold"] == 2
    until(  # a number of its own, not one that the command before has used
        lambda: ctl("leave", "--bind", stayed["address"]), lambda a: a["status"] == "NOT_MEMBER"
    )


def test_leave_of_a_stranger(ctl: Ctl) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answer = ctl("leave", "--bind", f"127.0.0.1:{port}")
    assert answer["status"] == "NOT_MEMBER"
    assert "nothing is left to do" in answer["message"]


def test_seth(ctl: Ctl, workers: Callable[[int], list[Worker]]) -> None:
    first, _ = workers(2)
    answer = ctl("seth", 1)
    assert (answer["threshold"], answer["automatic"]) == (1, False)
    assert ctl("status")["threshold"] == 1  # it outlasts the command
    assert (first.allreduce(vector(3)) == 3).all()
    answer = ctl("seth", 0)
    assert (answer["threshold"], answer["automatic"]) == (2, True)


def test_seth_says_what_an_h_below_the_number_of_workers_may_do(
    switch: Where,
    job: int,
    workers: Callable[[int], list[Worker]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A Worker refuses it; the operator is told, and obeyed."""
    first, _ = workers(2)
    with pytest.raises(ValueError, match="partial=True"):
        first.set_threshold(1)
    for threshold in (1, 2, 0):
        options = ["--switch", "{}:{}".format(*switch), "--job", str(job)]
        assert main(["ctl", "seth", str(threshold), *options]) == 0
        assert ("rounds are mixed up" in capsys.readouterr().out) == (threshold == 1)


def test_seth_warns_programs_too(ctl: Ctl, workers: Callable[[int], list[Worker]]) -> None:
    workers(1)
    assert "nothing completes in a synchronous job until 5" in ctl("seth", 5)["warning"]
    assert "warning" not in ctl("seth", 1)


@pytest.mark.parametrize("action", [("seth", 2), ("halt",), ("reset",)])
def test_nothing_is_set_without_workers(
    ctl: Ctl, workers: Callable[[int], list[Worker]], action: tuple[object, ...]
) -> None:
    """It would be gone with the command; while there are workers, it lasts."""
    answer = ctl(*action)
    assert answer["status"] == "NO_SUCH_JOB"
    assert "there is no job" in answer["message"]
    stayed = ctl("join", "--stay")
    answer = ctl(*action)
    assert answer["status"] == "NO_WORKERS"
    assert "start the workers first" in answer["message"]
    ctl("leave", "--bind", stayed["address"])
    (alone,) = workers(1)
    before = ctl("status")
    assert (before["threshold"], before["halted"]) == (1, False)
    assert ctl(*action)["status"] == "OK"
    after = ctl("status")
    assert (after["threshold"], after["halted"]) == (
        2 if "seth" in action else 1,
        "halt" in action,
    )
    alone.leave()
    assert ctl("status")["halted"] is False


def test_a_switch_whose_name_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ctl", "status", "--switch", "no.such.host.invalid:9", "--job", "1"]) == 2
    said = capsys.readouterr().err
    assert "cannot reach no.such.host.invalid:9: " in said
    assert "is the name of the host right?" in said
    assert "--bind" not in said


def test_help_then_fbcast(ctl: Ctl, workers: Callable[[int], list[Worker]]) -> None:
    first, second = workers(2)
    assert ctl("fbcast", 0, 0, 3)["contributors"] == 0
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(first.allreduce, vector(3))
        # Every segment lacks the second worker's contribution, and only that.
        until(lambda: ctl("help", 0, 0, 3), lambda a: a["missing_ranks"] == [second.rank])
        answer = ctl("help", 0, 2)
        where = dict(zip(("host", "port"), second._port.socket.getsockname(), strict=True))
        missed = {"type": "worker", "rank": 1, **where}
        assert (answer["missing"], answer["missing_workers"]) == (1, [missed])
        answer = ctl("fbcast", "current", 0, 3)
        assert (answer["contributors"], answer["count"]) == (1, 3)
        assert (waiting.result(PATIENCE) == 3).all()
    answer = ctl("help", 0, 0, 3)
    assert (answer["missing"], answer["missing_ranks"]) == (0, [])
    assert (second.allreduce(vector(4)) == 3).all()  # late: it gets what was broadcast


def test_the_current_round(ctl: Ctl, workers: Callable[[int], list[Worker]]) -> None:
    (alone,) = workers(1)
    for round_ in range(3):
        alone.allreduce(vector(1))
        for action in ("help", "fbcast"):
            assert ctl(action, "current", 0)["round"] == round_
    assert ctl("help", 7, 0)["current"] == 2


def test_halt_then_reset(ctl: Ctl, job: int, workers: Callable[[int], list[Worker]]) -> None:
    (alone,) = workers(1)
    alone.allreduce(vector(1))
    assert ctl("halt")["round"] == 0
    assert [one["halted"] for one in ctl("jobs")["jobs"] if one["job"] == job] == [True]
    assert ctl("status")["halted"] is True
    with pytest.raises(JobHalted):
        alone.allreduce(vector(2), timeout=0.2)
    for action in [("seth", 1), ("help", 0, 0), ("fbcast", 0, 0), ("halt",)]:
        answer = ctl(*action)
        assert answer["status"] == "HALTED"
        assert "reset" in answer["message"]
    assert ctl("reset")["round"] == 2
    assert ctl("status")["halted"] is False
    with pytest.raises(JobReset):  # relayed before the status was answered
        alone.allreduce(vector(2))
    assert (alone.allreduce(vector(5)) == 5).all()
    assert alone.round == 3


def test_segments_that_are_not_there(ctl: Ctl, workers: Callable[[int], list[Worker]]) -> None:
    assert ctl("help", 0, 0)["status"] == "BAD_REQUEST"  # no worker, no vector
    workers(1)
    assert ctl("fbcast", 0, 1, 2)["status"] == "OK"
    answer = ctl("fbcast", 0, 1, 3)
    assert answer["status"] == "BAD_REQUEST"
    assert "no such segments" in answer["message"]


def test_a_round_that_is_gone(ctl: Ctl, workers: Callable[[int], list[Worker]]) -> None:
    (alone,) = workers(1)
    for _ in range(4):
        alone.allreduce(vector(1))
    for action in ("help", "fbcast"):
        answer = ctl(action, 0, 0)
        assert answer["status"] == "GONE"
        assert "the job is at round 3" in answer["message"]
