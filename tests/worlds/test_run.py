"""`iswitch run`: a command on every host, in a world of sockets and in those of namespaces."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from iswitch.cli import main
from tests.conftest import heed_interrupts
from tests.support import ROOT

pytestmark = pytest.mark.serial

PATIENCE = 60.0
PREFIX = "isw-"
as_root = pytest.mark.root(reason="only root can make namespaces")
WORLDS = ["loopback", *(pytest.param(world, marks=as_root) for world in ("netns", "mininet"))]
SUM = """
    import numpy as np
    from worker_lib import Worker
    with Worker.from_env(numel=5000) as worker:
        total = worker.allreduce(np.arange(5000, dtype=np.float32))
        assert (total == worker.num_workers * np.arange(5000, dtype=np.float32)).all()
        print("summed over", worker.num_workers)
"""


def start(*words: str, command: str = "run") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "iswitch", command, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=heed_interrupts,
    )


def run(*words: str, command: str = "run") -> tuple[int, str, str]:
    with start(*words, command=command) as process:
        try:
            out, err = process.communicate()  # pytest ends a test that takes far too long
        finally:
            process.kill()  # else its end would be a warning in whatever test runs then
    return process.returncode, out, err


def namespaces(pid: int) -> list[str]:
    path = Path("/run/netns")
    return [p.name for p in path.iterdir() if f"-{pid}-" in p.name] if path.exists() else []


@pytest.mark.parametrize("world", WORLDS)
def test_workers_of_every_host_sum_up(world: str, tmp_path: Path) -> None:
    """And every switch is captured."""
    topology, hosts, switches = "rack:2x2", 4, ["core1", "tor1", "tor2"]
    report, folder = tmp_path / "report.json", tmp_path / "made"
    code = textwrap.dedent(SUM)
    words = ["--topology", topology, "--world", world, "--json", str(report), "--job", "9"]
    captures = ["--capture", str(folder)]
    status, out, err = run(*words, *captures, "--", sys.executable, "-c", code)
    assert status == 0, err
    check_captures(folder, switches)
    assert sorted(out.splitlines()) == [f"h{i + 1} | summed over {hosts}" for i in range(hosts)]
    told = json.loads(report.read_text())
    assert (told["status"], len(told["workers"])) == (0, hosts)
    assert all(counters["data"] for counters in told["switches"].values())


def check_captures(folder: Path, switches: list[str]) -> None:
    """See that tshark finds in each what the workers of a switch and its parent had to say."""
    assert sorted(path.name for path in folder.iterdir()) == [f"{name}.pcapng" for name in switches]
    for path in folder.iterdir():
        read = ["tshark", "-r", str(path), "-Y", "udp", "-T", "fields"]
        done = subprocess.run(
            [*read, "-e", "ip.dsfield"], capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        assert {"0x0c", "0x1c"} <= set(done.stdout.split())  # control and data


def test_two_runs_at_once_meet_at_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of one would else be told that those of the other have their ranks."""
    monkeypatch.delenv("MASTER_PORT", raising=False)
    words = ["--topology", "star:2", "--", "printenv", "MASTER_PORT"]
    both = [start(*words) for _ in range(2)]
    told = [process.communicate(timeout=PATIENCE)[0].split("| ")[1:] for process in both]
    ports = [{int(port.split()[0]) for port in lines} for lines in told]
    assert [len(of_run) for of_run in ports] == [1, 1]
    assert ports[0] != ports[1]
    monkeypatch.setenv("MASTER_PORT", "29517")
    assert sorted(run(*words)[1].splitlines()) == ["h1 | 29517", "h2 | 29517"]


@pytest.mark.parametrize("world", WORLDS[:2])
def test_torch_does_not_warn_of_names_of_addresses(
    world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)
    words = ["--topology", "star:1", "--world", world, "--", "printenv", "TORCH_CPP_LOG_LEVEL"]
    assert run(*words)[1] == "h1 | ERROR\n"


@pytest.mark.root(reason="only root can make namespaces")
def test_bad_links(tmp_path: Path) -> None:
    """As docs/links.md has it."""
    report = tmp_path / "report.json"
    words = ["--topology", "star:4,loss=1%,delay=2ms,seed=1", "--world", "netns"]
    code = textwrap.dedent(SUM.replace("5000", "200_000"))
    status, _, err = run(*words, "--json", str(report), "--", sys.executable, "-c", code)
    assert status == 0, err
    counters = json.loads(report.read_text())["switches"]["s1"]
    assert counters["lost_in"] > 0 < counters["lost_out"]


@pytest.mark.root(reason="only root can make namespaces")
def test_captures_of_the_demo(tmp_path: Path) -> None:
    """In one world: switches are captured alike for all commands, as above."""
    folder = tmp_path / "made"
    words = ["--topology", "rack:2x1", "--world", "netns", "--capture", str(folder)]
    status, _, err = run(*words, "--iterations", "3", "--seed", "3", command="demo")
    assert status == 1, err  # it has not learned so soon
    check_captures(folder, ["core1", "tor1", "tor2"])


def test_loopback_has_no_links_to_be_bad() -> None:
    status, _, err = run("--topology", "star:2,loss=1%", "--", "true")
    assert status == 2
    assert "link h1-s1 has loss=1%, and the loopback world has no links" in err


@pytest.mark.parametrize("world", WORLDS)
def test_environment(world: str) -> None:
    names = ["RANK", "WORLD_SIZE", "ISWITCH_JOB", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
    command = "echo " + " ".join(f"${name}" for name in names)
    words = ["--topology", "star:2", "--world", world, "--workers-per-host", "2", "--job", "3"]
    status, out, err = run(*words, "--", "sh", "-c", command)
    assert status == 0, err
    told = sorted(line.partition("| ")[2] for line in out.splitlines())
    assert told == ["0 4 3 0 2", "1 4 3 1 2", "2 4 3 0 2", "3 4 3 1 2"]


GLOO = """
    import numpy as np
    from worker_lib.strategies import make
    with make("gloo", 3) as strategy:
        print(*strategy.allreduce(np.arange(3, dtype=np.float32)))
"""


@as_root
def test_torch_is_quiet_in_namespaces() -> None:
    """It warned that it cannot look up names there."""
    command = [sys.executable, "-c", textwrap.dedent(GLOO)]
    status, out, err = run("--topology", "star:2", "--world", "netns", "--", *command)
    assert status == 0, err
    assert sorted(out.splitlines()) == [f"h{i + 1} | 0.0 2.0 4.0" for i in range(2)]
    assert not [line for line in err.splitlines() if line.startswith("h")]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    ("command", "wanted"), [("exit $((RANK == 1 ? 7 : 0))", 7), ("kill -9 $$", 137)]
)
def test_exit_status_is_that_of_the_first_that_failed(
    world: str, command: str, wanted: int
) -> None:
    words = ["--topology", "star:2", "--world", world]
    status, _, err = run(*words, "--", "sh", "-c", command)
    assert status == wanted, err
    assert "rank" in err


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all(world: str, signum: int) -> None:
    """And nothing is left: no process, no namespace."""
    process = start(
        "--topology", "star:2", "--world", world, "--", "sh", "-c", "echo $$; exec sleep 1000"
    )
    assert process.stdout is not None
    pids = [int(process.stdout.readline().partition("| ")[2]) for _ in range(2)]
    process.send_signal(signum)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signum
    assert signal.Signals(signum).name in err
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert namespaces(process.pid) == []


INTERRUPTED = """
import os, signal, sys
import mininet.log, mininet.net, mininet.node, mininet.util
from iswitch.__main__ import main

def interrupted(*args, **kwargs):
    setattr({owner}, "{name}", original)
    os.kill(os.getpid(), signal.SIGINT)
    return original(*args, **kwargs)

original = getattr({owner}, "{name}")
setattr({owner}, "{name}", interrupted)

def lacking(*_):
    raise OSError("no such limit here")  # of which Mininet tells in its log

mininet.util.sysctlTestAndSet = lacking
sys.argv = "iswitch run --world mininet --topology rack:2x2 -- sleep 40".split()
sys.exit(main())
"""


@as_root
@pytest.mark.parametrize(
    "moment",
    [
        "util.rlimitTestAndSet",
        "log.StreamHandlerNoNewline.format",
        "node.Node.startShell",
        "net.Mininet.build",
    ],
)
def test_mininet_swallows_no_signal_while_it_builds(moment: str) -> None:
    owner, _, name = f"mininet.{moment}".rpartition(".")
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED.format(owner=owner, name=name)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    ) as process:
        try:
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, namespaces(process.pid)) == (130, [])
    assert err.endswith("iswitch run: stopped by SIGINT; all processes have ended\n")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--topology", "ring:4", "--", "true"], "star:4"),
        (["--topology", "star:4"], "nothing to run"),
        (
            ["--topology", "star:2", "--world", "netns", "--capture", "/dev/null", "--", "true"],
            "--capture /dev/null: cannot make that folder",
        ),
        (["--topology", "star:65", "--", "true"], "64 at most"),
        (["--topology", "star:2", "--job", "70000", "--", "true"], "a job number is 0..65535"),
    ],
)
def test_misuse(words: list[str], message: str) -> None:
    status, _, err = run(*words)
    assert status == 2
    assert message in err
    assert err.startswith("iswitch run: ")
    assert "Traceback" not in err


def test_a_folder_for_records_that_cannot_be_made() -> None:
    words = "--to", "/dev/null", "--topology", "star:2", "--", "true"
    status, _, err = run(*words, command="record")
    assert status == 2
    assert err.startswith("iswitch record: --to /dev/null: cannot make that folder")


def test_a_folder_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(*_: object, **__: object) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "glob", denied)
    monkeypatch.setattr(os, "makedirs", denied)
    words = ["--to", str(tmp_path / "x"), "--topology", "star:2", "--", "true"]
    assert main(["record", *words]) == 2
    said = capsys.readouterr().err
    assert said.endswith("/x: you may not write there; name a folder of your own\n")


def test_from_env_outside_a_run() -> None:
    from worker_lib import Worker

    with pytest.raises(ValueError, match="iswitch run"):
        Worker.from_env(numel=3)


@pytest.mark.root(reason="only root can make namespaces")
def test_a_network_of_its_own_says_how_to_ask_its_switch() -> None:
    """From outside nothing reaches it; the command that is printed does."""
    process = start("--topology", "star:1", "--world", "netns", "--job", "9", "--", "sleep", "20")
    assert process.stderr is not None
    try:
        said = next(line for line in process.stderr if "to ask the switch: " in line)
        entry, _, asks = said.partition("to ask the switch: ")[2].partition(" iswitch ")
        command = [*entry.split(), sys.executable, "-m", "iswitch", *asks.split()]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        assert "10.26.255.254:26963" in done.stderr, done
        assert "job 9" in done.stderr
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def test_a_record_without_packets_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "too"
    status, _, err = run(
        "--to", str(folder), "--topology", "star:1", "--", "true", command="record"
    )
    assert status == 0
    assert f"iswitch record: {folder}/s1.pcapng holds no packets: no worker has joined" in err
