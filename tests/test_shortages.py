"""Full disks, few descriptors, closed streams and Ctrl-C: one sentence or none, no traceback."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import ROOT, heed_interrupts

COMMAND = [sys.executable, "-m", "iswitch"]


def run(*line: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [*COMMAND, *line], cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60,
        **{"stdout": subprocess.DEVNULL, **more},
    )  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        ["soak", "--seed", "1", "--pcapng", "/dev/full"],
        ["generate", "/dev/full", "--numel", "9000", "--rounds", "1"],
        ["run", "--topology", "star:1", "--json", "/dev/full", "--", "true"],
        ["switch", "--listen", "127.0.0.1:0", "--capture", "/dev/full"],
    ],
    ids=lambda line: line[0],
)
def test_full_disks(line: list[str]) -> None:
    done = run(*line)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"iswitch {line[0]}: cannot write /dev/full: No space left on device"
        + ("; make room there, or name another place")
    )
    assert "Traceback" not in done.stderr


def test_standard_output_is_full_or_nobody_reads_it() -> None:
    with open("/dev/full", "w") as full:
        done = run("soak", "--seed", "1", stdout=full)
    assert done.returncode == 2
    assert done.stderr.startswith("iswitch soak: cannot write standard output: No space left")
    assert done.stderr.count("\n") == 1
    shell = f"{' '.join(COMMAND)} soak --seed 1 | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) in ((141, ""), (0, ""))


@pytest.mark.parametrize("most", [6, 8, 12])
def test_few_descriptors(most: int) -> None:
    done = run(
        "run", "--topology", "star:2", "--", "true",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)),
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Too many open files; raise the limit of this process" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4])
def test_an_interrupt_while_it_is_loaded(delay: float, tmp_path: Path) -> None:
    """From the first moment on that is ours: before, Python itself is loaded."""
    begin = (
        "import sys; import iswitch.__main__ as command; print(1, flush=True); "
        "sys.argv = ['iswitch', 'soak', '--seeds', '2000', '--processes', '1']; "
        "sys.exit(command.main())"
    )
    with (
        open(tmp_path / "said", "w") as said,
        subprocess.Popen(
            [sys.executable, "-c", begin], cwd=ROOT, stdout=subprocess.PIPE, stderr=said,
            preexec_fn=heed_interrupts,
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay + 0.002)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert (tmp_path / "said").read_text() == ""
