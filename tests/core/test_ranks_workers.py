"""Ranks of real workers, and those that launchers give."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import StartSwitch
from tests.support.joined import TAKEN
from worker_lib import Refused, TooFewWorkers, Worker, environment

pytestmark = pytest.mark.unit


@pytest.mark.slow
def test_two_workers_that_ask_for_one_rank(
    start_switch: StartSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, where = start_switch()
    with Worker(where, 1, 3, rank=2) as first:
        at = "{}:{}".format(*first._port.socket.getsockname())
        said = rf"rank 2 is that of the worker at {at}, heard [\d.]+ s ago"
        with pytest.raises(Refused, match=said) as refused:
            Worker(where, 1, 3, rank=2, timeout=20.0)
        assert refused.value.status is TAKEN
        monkeypatch.setenv("ISWITCH_RANK", "2")
        monkeypatch.setenv("RANK", "1")
        with pytest.raises(Refused, match=f"{said}.*: ISWITCH_RANK=2 is in the environment"):
            Worker(where, 1, 3, rank=2, timeout=1.0)
        with Worker(where, 1, 3) as second:
            assert (first.rank, second.rank) == (2, 0)
    with Worker(where, 1, 3, rank=2) as third:
        assert third.rank == 2


@pytest.mark.slow
def test_a_rank_behind_another_switch_is_refused_with_the_way_there(
    start_switch: StartSwitch,
) -> None:
    """From the root the switch below is named, from another one below the root."""
    _, root = start_switch()
    above = "{}:{}".format(*root)
    leaves = [start_switch("127.0.0.1:0", "--parent", above)[1] for _ in range(2)]
    with Worker(leaves[0], 1, 3, rank=2), Worker(leaves[1], 1, 3, rank=0), Worker(root, 1, 3):
        for at, via in ((root, leaves[0]), (leaves[1], root)):
            way = "{}:{}".format(*via)
            said = rf"rank 2 is that of a worker behind the switch at {way}\)"
            with pytest.raises(Refused, match=said) as refused:
                Worker(at, 1, 3, rank=2, timeout=1.0)
            assert refused.value.status is TAKEN


@pytest.mark.parametrize("rank", [4, -1, "1", 1.5, True])
def test_a_rank_beyond_num_workers(rank: object) -> None:
    with pytest.raises(ValueError, match=r"the ranks of 4 workers are 0\.\.3; mend the rank"):
        Worker(("127.0.0.1", 9), 1, 3, 4, rank=rank)  # type: ignore[arg-type]


NO_RANK = (
    "^joined job 1, but no rank was free within 1 s: a worker that died .*one process too many, or "
    "another run uses this job number"
)


@pytest.mark.slow
def test_who_waits_for_a_rank_is_told_so(start_switch: StartSwitch) -> None:
    """Of three workers of two: nobody is missing."""
    _, where = start_switch()
    with ThreadPoolExecutor(2) as pool:
        made = [
            pool.submit(Worker, where, 1, 3, 2, on_member_lost="continue", timeout=20.0)
            for _ in range(2)
        ]
        first, second = (future.result(20.0) for future in made)
    with first, second, pytest.raises(TooFewWorkers, match=NO_RANK):
        Worker(where, 1, 3, 2, on_member_lost="continue", timeout=1.0)


JOB_OF_ALL = {"ISWITCH_SWITCH": "127.0.0.1:9", "ISWITCH_JOB": "1"}
TOLD = {  # by the variable of a rank: that of the number of ranks; in the order that they count
    "ISWITCH_RANK": "WORLD_SIZE",
    "RANK": "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "SLURM_PROCID": "SLURM_STEP_NUM_TASKS",
}


def told(*given: tuple[str, int], size: int = 4) -> tuple[int, int | None]:
    """Number of workers and rank, by these ranks of so many each."""
    variables = {name: str(rank) for name, rank in given}
    variables |= {TOLD[name]: str(size) for name, _ in given}
    place = environment.read(JOB_OF_ALL | variables)
    return place.num_workers, place.rank


@pytest.mark.parametrize("name", TOLD)
def test_ranks_of_launchers(name: str) -> None:
    """Each is taken, with its number of processes; the first in the table before all others."""
    names = list(TOLD)
    later = names[names.index(name) + 1 :]
    assert told((name, 3)) == (4, 3)
    assert told((name, 3), *((other, 1) for other in later)) == (4, 3)
    of = TOLD[name]
    said = rf"{name} is 4, and there are 4 workers \({of}\): .*are 0 to 3.* as many .* as {of} says"
    with pytest.raises(ValueError, match=said):
        told((name, 4))


def test_the_number_of_workers_is_blamed_on_the_variable_that_tells_it() -> None:
    for rank, size in (("RANK", "WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")):
        with pytest.raises(ValueError, match=f"^{size} is 0: a job has 1 worker or more$"):
            told((rank, 0), size=0)
    with pytest.raises(ValueError, match=r"^there are 0 workers: a job has 1 worker or more$"):
        environment.rank({"RANK": "0"}, 0)  # the call says 0
    with pytest.raises(ValueError, match=r"^RANK is 'x': a rank, 0 to 3, is wanted$"):
        environment.rank({"RANK": "x"}, 4)
    with pytest.raises(ValueError, match=r"PMI_RANK is 1, and there is 1 worker \(PMI_SIZE\)"):
        told(("PMI_RANK", 1), size=1)
    with pytest.raises(ValueError, match=r"RANK is 3, and there are 2 workers \(world_size\)"):
        environment.rank({"RANK": "3", "WORLD_SIZE": "4"}, 2)  # the call says 2


@pytest.mark.parametrize("text", ["x", "-1", "65536"])
def test_a_job_that_is_no_number_is_told_the_range(text: str) -> None:
    place = {"ISWITCH_SWITCH": "127.0.0.1:9", "WORLD_SIZE": "4", "ISWITCH_JOB": text}
    with pytest.raises(ValueError, match=rf"^ISWITCH_JOB is '?{text}'?: .* 0\.\.65535$"):
        environment.read(place)
    with pytest.raises(ValueError, match=r"^WORLD_SIZE is 'four': a job has 1 to 4096 workers"):
        environment.read(place | {"ISWITCH_JOB": "1", "WORLD_SIZE": "four"})


def test_only_a_local_port_may_be_any() -> None:
    place = JOB_OF_ALL | {"WORLD_SIZE": "4", "ISWITCH_SWITCH": "127.0.0.1:9"}
    assert environment.read(place | {"ISWITCH_BIND": "127.0.0.1:0"}).bind == ("127.0.0.1", 0)
    for name, least, wrong in (("SWITCH", 1, 0), ("SWITCH", 1, 65536), ("BIND", 0, 65536)):
        said = f"ISWITCH_{name} is 'h:{wrong}': write HOST:PORT, with a port of {least} to 65535,"
        with pytest.raises(ValueError, match=said):
            environment.read(place | {f"ISWITCH_{name}": f"h:{wrong}"})
    with pytest.raises(
        ValueError, match=r"ISWITCH_SWITCH is 'a\.\.b:1': no host can have that name"
    ):
        environment.read(place | {"ISWITCH_SWITCH": "a..b:1"})


def test_rounds_to_come_are_a_number() -> None:
    place = JOB_OF_ALL | {"WORLD_SIZE": "4", "ISWITCH_SWITCH": "127.0.0.1:9"}
    assert environment.read(place).rounds is None
    assert environment.read(place | {"ISWITCH_ROUNDS": "500"}).rounds == 500
    for wrong in ("0", "many", "-1"):
        with pytest.raises(ValueError, match=r"ISWITCH_ROUNDS is .*: write how many allreduces"):
            environment.read(place | {"ISWITCH_ROUNDS": wrong})
    with pytest.raises(ValueError, match="rounds = 0: pass the number of allreduces"):
        Worker(("127.0.0.1", 9), 1, 1, rounds=0)


def test_an_exported_rank_that_goes_before_a_launchers_is_named() -> None:
    exported = {"ISWITCH_RANK": "0", "RANK": "3"}
    said = environment.overridden(exported, 0)
    assert said.startswith(": ISWITCH_RANK=0 is in the environment, and goes before RANK=3; unset")
    for others in ({}, {"ISWITCH_RANK": "3"}, {"ISWITCH_RANK": ""}, {"ISWITCH_RANK": "2"}):
        assert not environment.overridden({"RANK": "3"} | others, 0)
    assert not environment.overridden({"ISWITCH_RANK": "0"}, 0)


@pytest.mark.parametrize("name", list(TOLD)[2:])
def test_a_launcher_numbers_all_workers_or_none(name: str) -> None:
    """Of four, an mpirun of two on each of two machines would number two 0, and two 1."""
    variables = JOB_OF_ALL | {"WORLD_SIZE": "4", name: "1", TOLD[name]: "2"}
    assert environment.read(variables).rank is None
    assert environment.read(variables | {"RANK": "3"}).rank == 3
    assert environment.read(JOB_OF_ALL | {"WORLD_SIZE": "4"}).rank is None


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_NUM_TASKS": "1"}])
def test_a_shell_of_slurms_is_no_rank(step: dict[str, str]) -> None:
    """That of sbatch has SLURM_PROCID 0, and so has all that is started in it without srun."""
    shell = JOB_OF_ALL | {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"} | step
    assert environment.read(shell | {"WORLD_SIZE": "4"}).rank is None
    mpirun = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
    place = environment.read(shell | mpirun)
    assert (place.num_workers, place.rank) == (4, 2)
    with pytest.raises(ValueError, match=r"WORLD_SIZE is not set: .*\(mpirun and srun tell"):
        environment.read(shell)
    srun = environment.read(shell | {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"})
    assert (srun.num_workers, srun.rank) == (4, 3)
