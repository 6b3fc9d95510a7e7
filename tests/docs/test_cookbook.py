"""The recipes of docs/cookbook.md, as they stand there; torchrun: tests/torch/test_torchrun.py."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from iswitch import cli
from iswitch.core.format.wire import Shape
from iswitch.core.sums.numpy_plane import memory_needed
from tests.conftest import Where, running_switch
from tests.docs.test_docs import BLOCK, COOKBOOK, blocks
from tests.support import ROOT, python
from tests.support.ranks import free_port
from worker_lib import Refused, Worker

PATIENCE = 300.0  # seconds until a test is given up; they import a lot
RECIPES = {  # by the name in their first line
    code.split("\n", 1)[0].removeprefix("# "): code
    for tag, code in BLOCK.findall((ROOT / "docs" / COOKBOOK).read_text())
    if tag == "python"
}
SCRIPTS = {
    next(line for line in text.splitlines() if not line.startswith("#!")).removeprefix("# "): text
    for tag, text in BLOCK.findall((ROOT / "docs" / COOKBOOK).read_text())
    if tag == "sh"
}
SCRIPTS = {("torchrun" if "torchrun" in name + text else name): text
           for name, text in SCRIPTS.items()}  # fmt: skip
LAUNCHED = {
    "shard.py": "$ iswitch run --topology star:4 -- python shard.py\n",
    "fit.py": "$ iswitch run --topology star:1 --workers-per-host 4 -- python fit.py\n",
    "zero.py": "$ iswitch run --topology star:4 -- python zero.py\n",
}
(SUMS,) = [
    code
    for tag, code in BLOCK.findall((ROOT / "docs" / "run.md").read_text())
    if code.startswith("# sums.py")
]


def run(code: str, times: int, switch: Where, folder: Path) -> list[str]:
    """What so many processes of a recipe print."""
    script = folder / "recipe.py"
    script.write_text(code.replace("26963", str(switch[1])))
    processes = [
        subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for _ in range(times)
    ]  # fmt: skip
    printed = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * times
    return printed


def test_every_recipe_is_run() -> None:
    alone = {"learn.py", "cluster.py", "cell.py", "jobs.py", "trainer.py"}
    assert RECIPES.keys() == alone | LAUNCHED.keys()
    assert SCRIPTS.keys() == {"mpirun", "job.sbatch", "three jobs", "torchrun"}
    done = {text for page, text in blocks("console") if page.name == COOKBOOK}
    assert done == {"$ for i in 1 2 3 4; do python learn.py & done; wait\n", *LAUNCHED.values()}


def test_stable_baselines(switch: Where, tmp_path: Path) -> None:
    """A2C, then PPO with two rollouts in the same processes: the page says that it goes alike."""
    code = RECIPES["learn.py"]
    ppo = code.replace("A2C", "PPO").replace("job=20", "job=120")
    ppo = ppo.replace('device="cpu"', 'device="cpu", n_steps=250, batch_size=50')
    assert "n_steps" in ppo
    (said,) = {*run(f"{code}\n{ppo}", 4, switch, tmp_path)}
    assert re.fullmatch("[0-9a-f]{64}\n" * 2, said)
    assert len({*said.split()}) == 2


def test_dask(switch: Where, tmp_path: Path) -> None:
    (output,) = run(RECIPES["cluster.py"], 1, switch, tmp_path)
    assert f"```text\n{output}```" in (ROOT / "docs" / COOKBOOK).read_text()


def needs(package: str) -> None:
    """Skip a test of a package that is large, and not everywhere."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def test_ray_train(switch: Where, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers have equal weights; on a busy machine Ray is slow to start them."""
    needs("ray")
    monkeypatch.setenv("HOME", str(tmp_path))  # where it keeps results
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else a token is made
    for what in ("GROUP_START", "HEALTH_CHECK"):
        monkeypatch.setenv(f"RAY_TRAIN_WORKER_{what}_TIMEOUT_S", str(PATIENCE))
    script = tmp_path / "trainer.py"
    script.write_text(RECIPES["trainer.py"].replace("26963", str(switch[1])))
    done = python(str(script), folder=tmp_path, timeout=2 * PATIENCE)
    weights = re.findall(r"weights (\S+)", done.stdout + done.stderr)
    assert len(weights) == 2, done.stderr
    assert len(set(weights)) == 1


def shell(script: str, folder: Path, **variables: str) -> str:
    """What a script of the page prints, with this Python and this iswitch in its PATH."""
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", script], cwd=folder, capture_output=True, text=True, timeout=PATIENCE,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


FOUR = [f"rank {rank}: 4 workers" for rank in range(4)]


def lines(said: str) -> list[str]:
    """Of those that several processes print at once, whose ends may change places."""
    return sorted(re.findall(r"rank \d: 4 workers", said))


def test_mpirun(switch: Where, tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(SUMS)
    as_root = {f"OMPI_ALLOW_RUN_AS_ROOT{end}": "1" for end in ("", "_CONFIRM")}
    few_cores = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl": "tcp,self"}
    script = SCRIPTS["mpirun"].replace("26963", str(switch[1]))
    assert lines(shell(script, tmp_path, **as_root, **few_cores)) == FOUR


SRUN = """#!/bin/sh
tasks=$SLURM_NTASKS
while :; do
  case $1 in
    --ntasks=*) tasks=${1#--ntasks=};;
    --*) ;;
    *) break;;
  esac
  shift
done
[ "$tasks" != 1 ] || exec "$@"
export SLURM_STEP_NUM_TASKS=$tasks
for SLURM_PROCID in $(seq 0 $((tasks - 1))); do
  "$@" &
done
wait
"""


def test_slurm(tmp_path: Path) -> None:
    """Its variables, set by a stand-in: there is no cluster here. The shell has a rank, too."""
    (tmp_path / "sums.py").write_text(SUMS)
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/sh\necho 127.0.0.1\necho other\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    script = SCRIPTS["job.sbatch"].replace("26963", str(free_port()))
    batch = {"SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_PROCID": "0"}
    assert lines(shell(script, tmp_path, **batch)) == FOUR


def test_jupyter(switch: Where, tmp_path: Path) -> None:
    """As its kernel runs a cell: in the main thread, with an event loop running."""
    (tmp_path / "cell.py").write_text(RECIPES["cell.py"].replace("26963", str(switch[1])))
    kernel = (
        "async def cell(): exec(open('cell.py').read(), {})\nimport asyncio; asyncio.run(cell())"
    )
    output = python("-c", kernel, folder=tmp_path).stdout
    assert f"```text\n{output}```" in (ROOT / "docs" / COOKBOOK).read_text()
    assert output == "[6.0, 6.0, 6.0, 6.0]\n"


def test_three_jobs(tmp_path: Path) -> None:
    with running_switch("127.0.0.1:0", "--memory", "20.35") as (_, where):
        (tmp_path / "jobs.py").write_text(RECIPES["jobs.py"].replace("26963", str(where[1])))
        said = shell(SCRIPTS["three jobs"], tmp_path)
        jobs = sorted(re.findall(r"job (\d+): 2 workers", said))
        assert jobs == ["31", "31", "32", "32", "33", "33"]
        with (
            Worker(where, 41, 1_681_062), Worker(where, 42, 866_439), Worker(where, 43, 10_247),
            pytest.raises(Refused, match="needs 84 KiB more of the switch's memory, and 32 KiB"),
            Worker(where, 44, 10_247),
        ):  # fmt: skip
            pass


def test_the_memory_of_three_jobs() -> None:
    text = (ROOT / "docs" / COOKBOOK).read_text()
    sums = [0] * 4
    for job, numel in ((31, 1_681_062), (32, 866_439), (33, 10_247)):
        shape = Shape.of(numel)
        needed = memory_needed(shape, reproducible=False, first=True)
        row = [shape.segments, shape.segments * 2 * 1464, shape.segments * 120, needed]
        assert f"| {job} | {numel:,} | " + " | ".join(f"{n:,}" for n in row) + " |" in text
        sums = [a + b for a, b in zip(sums, row, strict=True)]
    assert "| all | | " + " | ".join(f"{n:,}" for n in sums) + " |" in text
    assert 20.3 * 2**20 < sums[3] < 20.35 * 2**20


@pytest.mark.parametrize("name", LAUNCHED)
def test_under_iswitch_run(name: str, tmp_path: Path) -> None:
    if name == "zero.py":
        needs("deepspeed")
    (tmp_path / name).write_text(RECIPES[name])
    command = LAUNCHED[name].removeprefix("$ ").replace("run", "run --json told.json", 1)
    said = shell(command, tmp_path)
    weights = re.findall(r"\| weights (\S+)", said)
    assert len(weights) == 4
    assert len(set(weights)) == 1
    (counters,) = json.loads((tmp_path / "told.json").read_text())["switches"].values()
    assert counters["aggregates"] > 0


# Docker: what its file does, without a daemon


def test_the_steps_of_the_dockerfile(tmp_path: Path) -> None:
    """In a folder of its own, as another user; packages other than iswitch are those of here."""
    steps = [line.split(maxsplit=1) for line in (ROOT / "Dockerfile").read_text().splitlines()]
    assert {step for step, _ in steps} - {"#"} == {
        "FROM", "WORKDIR", "COPY", "RUN", "USER", "ENTRYPOINT", "CMD"
    }  # fmt: skip
    source, site = tmp_path / "src", tmp_path / "site"
    source.mkdir()
    for words in [rest.split() for step, rest in steps if step == "COPY"]:
        for name in words[:-1]:
            to = source / words[-1]
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, to)
    (install,) = [rest for step, rest in steps if step == "RUN" and rest.startswith("pip")]
    assert install == 'pip install --no-cache-dir ".[demo,netns]"'
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(source)], check=True, timeout=PATIENCE)
    assert (site / "bin" / "iswitch").is_file()
    entry = next(json.loads(rest) for step, rest in steps if step == "ENTRYPOINT")
    command = next(json.loads(rest) for step, rest in steps if step == "CMD")
    assert (entry, command) == (["iswitch"], ["demo"])
    short = ["--workers", "2", "--iterations", "2", "--json", str(tmp_path / "told.json")]
    done = subprocess.run(
        [sys.executable, "-P", "-m", *entry, *command, *short], capture_output=True, text=True,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)}, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr  # too few iterations to learn
    assert "weights of all 2 workers equal to the last bit" in done.stdout


def test_the_commands_of_docker() -> None:
    """With privileges: tests/worlds/test_worlds.py runs it, as root."""
    text = (ROOT / "docs" / COOKBOOK).read_text()
    lines = re.findall(r"^    docker run --rm (.*)$", text, re.MULTILINE)
    assert lines[0] == "iswitch"
    assert lines[1].startswith("--privileged --user root iswitch ")
    args = cli.parser().parse_args(lines[1].split("iswitch ")[1].split())
    assert (args.chosen, args.world, args.topology) == ("demo", "netns", "rack:2x3")
