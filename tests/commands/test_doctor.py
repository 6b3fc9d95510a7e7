"""`iswitch doctor`: every lack is found and told, on machines made up and on this one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest

from iswitch.cli import main
from iswitch.lab.doctor.checks import CHECKS, Check, Finding, Result
from iswitch.lab.doctor.host import PACKETS, Buffers, Exchange, Host
from iswitch.lab.doctor.report import examine, loopback_runs, show, verdict
from tests.support import ROOT

pytestmark = pytest.mark.serial

COMMAND = [sys.executable, "-m", "iswitch", "doctor"]
SINGLY = Exchange(PACKETS, False, False, PACKETS, frozenset({0x1C}))
WHOLE = Exchange(PACKETS, True, True, PACKETS, frozenset({0x1C}))
VITAL = {"kernel", "Python", "NumPy", "recvmmsg, sendmmsg", "IP_RECVTOS", "open files"}

GOOD: dict[str, Any] = {
    "system": ("Linux", "6.1.0-test"),
    "python": (3, 11, 7),
    "version": "1.0",
    "numpy": "2.0.0",
    "torch_knows_iswitch": True,
    "wants_fast": True,
    "fast_trouble": "",
    "load_fast": (0.5, False),
    "has_rings": True,
    "wants_rings": "",
    "program": "/usr/bin/it",
    "p4_tool": "/opt/p4/bin/it",
    "p4_cli": "",
    "sysctl": 16 << 20,
    "exchange": WHOLE,
    "overflow": 12,
    "buffers": Buffers(16 << 20, 16 << 20),
    "descriptors": 1024,
    "cores": 8,
    "user": 0,
    "capabilities": (1 << 41) - 1,
    "packet_socket": True,
    "namespaces": "yes",
}


def fake(**answers: Any) -> Host:
    """A host that answers so, and else as a perfect one; an exception is raised."""

    def answering(answer: Any) -> Any:
        def probe(_: Host, *__: object, **___: object) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        return probe

    probes = {name: answering(answer) for name, answer in (GOOD | answers).items()}
    host: Host = type("Fake", (Host,), probes)()
    return host


def find(name: str, **answers: Any) -> Result:
    return next(r for r in examine(fake(**answers)) if r.name == name)


def test_a_perfect_machine() -> None:
    results = examine(fake())
    assert {r.state for r in results} == {"ok"}
    assert not any(r.cost or r.mend for r in results)
    assert loopback_runs(results)
    assert verdict(results).endswith(f"; {len(CHECKS)} checks: {len(CHECKS)} ok.")


def test_verdict_tells_limited_from_missing() -> None:
    results = examine(fake(cores=1, packet_socket=False, overflow=0))
    assert verdict(results).endswith(f": {len(CHECKS) - 3} ok, 2 limited, 1 missing.")


def test_every_probe_is_faked() -> None:
    assert set(GOOD) == {name for name in vars(Host) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("name", "answers", "state", "words"),
    [
        ("kernel", {"system": ("Linux", "4.19.0")}, "limited", "super-datagrams"),
        ("kernel", {"system": ("Darwin", "23.0")}, "missing", "Linux"),
        ("Python", {"python": (3, 10, 2)}, "missing", "3.11"),
        ("NumPy", {"numpy": "1.26.4"}, "missing", "pip install 'numpy>=2.0'"),
        ("NumPy", {"numpy": ImportError("No module named 'numpy'")}, "missing", "pip install"),
        ("UDP_SEGMENT", {"exchange": SINGLY}, "limited", "one by one"),
        ("UDP_GRO", {"exchange": SINGLY}, "limited", "one by one"),
        ("UDP_GRO", {"exchange": WHOLE._replace(came_whole=False)}, "limited", "came apart"),
        ("recvmmsg, sendmmsg", {"exchange": SINGLY._replace(intact=3)}, "missing", "3 of 44"),
        ("IP_RECVTOS", {"exchange": SINGLY._replace(tos=frozenset({0}))}, "missing", "came 0x00"),
        ("IP_RECVTOS", {"exchange": SINGLY._replace(tos=frozenset())}, "missing", "no packet"),
        ("SO_RXQ_OVFL", {"overflow": 0}, "limited", "rx_overflow"),
        (
            "receive buffer",
            {"buffers": Buffers(212992, 212992), "sysctl": 212992},
            "limited",
            "four have 52 KiB each, of 1280 at most",
        ),
        (
            "receive buffer",
            {"buffers": Buffers(4 << 20, 4 << 20), "sysctl": 4 << 20},
            "limited",
            "as root: sysctl -w net.core.rmem_max=16777216",
        ),
        (
            "receive buffer",
            {"buffers": Buffers(212992, 212992), "sysctl": None},
            "limited",
            "not shown",
        ),
        (
            "send buffer",
            {"buffers": Buffers(16 << 20, 212992), "sysctl": 212992},
            "limited",
            "sysctl -w net.core.wmem_max=16777216",
        ),
        ("netdev_max_backlog", {"sysctl": 300}, "limited", "net.core.netdev_max_backlog=1000"),
        ("open files", {"descriptors": 8}, "missing", "ulimit -n 1024"),
        ("cores", {"cores": 1}, "limited", "5 processes share 1 core:"),
        ("privileges", {"capabilities": 0, "user": 65534}, "missing", "loopback and sim work"),
        ("privileges", {"capabilities": 1 << 13}, "limited", "without CAP_NET_ADMIN;"),
        ("AF_PACKET", {"packet_socket": False}, "missing", "raw switch ports"),
        ("network namespaces", {"namespaces": "no"}, "missing", "sudo"),
        ("network namespaces", {"namespaces": "user"}, "limited", "unshare"),
        ("gymnasium", {"version": None}, "missing", "pip install -e '.[demo]'"),
        ("matplotlib", {"version": None}, "missing", "iswitch demo"),
        ("ml_dtypes", {"version": None}, "missing", "bfloat16"),
        ("torch", {"torch_knows_iswitch": False}, "limited", "import worker_lib.torch"),
        ("pyroute2", {"version": None}, "missing", "[netns,mininet]"),
        ("Mininet", {"version": None}, "missing", "[netns,mininet]"),
        ("torch", {"version": None}, "missing", "`gloo`"),
        ("fast path", {"version": None}, "missing", "[fast]"),
        ("fast path", {"wants_fast": False}, "limited", "unset ISWITCH_FAST"),
        ("fast path", {"fast_trouble": "others can write to /x"}, "limited", "NUMBA_CACHE_DIR"),
        ("shared memory", {"has_rings": False}, "limited", "x86-64"),
        ("shared memory", {"wants_rings": "0"}, "limited", "unset ISWITCH_SHM"),
        ("mnexec", {"program": None}, "missing", "apt-get install --no-install-recommends mininet"),
        ("networkx", {"version": None}, "missing", "no strategy `tree`; pip install -e '.[tree]'"),
        (
            "SciPy",
            {"version": None},
            "missing",
            "no strategy `tree`, no `place --policy fastest`; pip install -e '.[tree]'",
        ),
        ("mpi4py", {"version": None}, "missing", "no strategy `mpi`; pip install -e '.[mpi]'"),
        ("mpirun", {"program": None}, "missing", "strategy `mpi`; apt-get install --no-install"),
        ("scapy", {"version": None}, "missing", "scapy; pip install -e '.[scapy]'"),
        ("aiohttp", {"version": None}, "missing", "no `iswitch web`; pip install -e '.[web]'"),
        ("prometheus_client", {"version": None}, "missing", "no --metrics; pip install"),
        (
            "OpenTelemetry",
            {"version": None},
            "missing",
            "no ISWITCH_TRACE; pip install -e '.[trace]'",
        ),
        ("scikit-learn", {"version": None}, "missing", "`--data digits`; pip install"),
        ("Dask", {"version": None}, "missing", "no `simulate --scheduler`; pip install"),
        ("tshark", {"program": None}, "missing", "`iswitch dissector`"),
        ("p4c-bm2-ss", {"p4_tool": None}, "missing", "docs/p4.md says, and name their prefix by"),
        ("simple_switch", {"p4_tool": None}, "missing", "no `--world bmv2`"),
        ("simple_switch_CLI", {"p4_tool": None}, "missing", "no `--world bmv2`"),
        (
            "simple_switch_CLI",
            {"p4_cli": "No module named 'thrift'"},
            "missing",
            "does not load: No module named 'thrift'; no `--world bmv2`, no `--switch bmv2`; "
            "pip install -e '.[p4]'",
        ),
        ("rich", {"version": None}, "missing", "plain"),
    ],
)
def test_a_lack(name: str, answers: dict[str, Any], state: str, words: str) -> None:
    result = find(name, **answers)
    assert result.state == state
    assert result.cost
    assert words in "; ".join((result.found, result.cost, result.mend))
    results = examine(fake(**answers))
    assert loopback_runs(results) == (name not in VITAL or state != "missing")


def test_compiling_is_not_called_loading() -> None:
    found = find("fast path", load_fast=(271.6, True)).found
    assert found == "compiled in 271.6 s, once (Numba 1.0)"
    found = find("fast path", load_fast=(0.4, False)).found
    assert found == "compiled before: 0.4 s to load (Numba 1.0)"


def test_enough_of_what_is_limited_by_name_only() -> None:
    """Root gets the buffers whatever the limit says; a container may not show the limit."""
    for limit in (212992, None):
        assert find("receive buffer", sysctl=limit).state == "ok"
    assert find("netdev_max_backlog", sysctl=None).state == "ok"


@pytest.mark.parametrize("error", [OSError(1, "no"), ValueError("odd"), KeyError("x")])
@pytest.mark.parametrize("probe", [p for p in GOOD if p not in ("user",)])
def test_a_probe_that_fails_is_a_finding(probe: str, error: Exception) -> None:
    results = examine(fake(**{probe: error}))
    lacking = [r for r in results if r.state != "ok"]
    assert lacking
    for result in lacking:
        assert result.state == "missing"
        assert type(error).__name__ in result.found
        assert result.cost


def test_vital_checks() -> None:
    assert {check.name for check in CHECKS if check.vital} == VITAL
    broken = Check("IP_RECVTOS", lambda _: Finding("missing", "gone", "all"), vital=True)
    result = broken.run(fake())
    assert not loopback_runs([result])
    assert "cannot run here; mend first: IP_RECVTOS" in verdict([result])


# How it looks


@pytest.mark.parametrize("rich", [True, False])
def test_report(
    rich: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if not rich:
        monkeypatch.setitem(sys.modules, "rich", None)
    poor = Buffers(212992, 212992)
    show(examine(fake(buffers=poor, sysctl=212992, version=None, capabilities=0, cores=1)))
    out = capsys.readouterr().out
    for check in CHECKS:
        assert check.name in out
    for text in ("missing", "limited", "ok", "'.[demo]'", "net.core.rmem_max=16777216"):
        assert text in out
    if rich:
        assert max(map(len, out.splitlines())) <= 100
        assert "\x1b" not in out


@pytest.mark.parametrize(("columns", "width"), [("60", 60), ("140", 140), ("0", 100), ("x", 100)])
def test_width_when_piped(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    show([Result("check", "limited", "found " * 50, "cost " * 50, "", False)])
    lines = capsys.readouterr().out.splitlines()
    assert width - 6 <= max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)


def test_exit_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("iswitch.lab.doctor.report.Host", lambda: fake(python=(3, 9, 0)))
    assert main(["doctor"]) == 1
    assert "mend first: Python" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["loopback"] is False


LACKING = """
import sys
sys.modules[sys.argv.pop(1)] = None
from iswitch.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["numpy", "ml_dtypes", "rich"])
def test_a_python_without_a_library(module: str) -> None:
    """Only NumPy is needed by all commands; the doctor runs without it, too."""
    lacking = [sys.executable, "-c", LACKING, module]
    done = subprocess.run([*lacking, "doctor"], cwd=ROOT, capture_output=True, text=True)
    vital = module == "numpy"
    assert (done.returncode, done.stderr) == (int(vital), ""), done
    if vital:
        assert re.search(r"(?m)^ ?NumPy +missing ", done.stdout)
        assert "mend first: NumPy" in done.stdout
        assert "pip install 'numpy>=2.0'" in done.stdout
    words = ["generate", os.devnull, "--numel", "9", "--rounds", "1"]
    done = subprocess.run([*lacking, *words], cwd=ROOT, capture_output=True, text=True)
    assert ("cannot load numpy" in done.stderr) == vital
    assert ("; pip install numpy" in done.stderr) == vital
    assert done.returncode == 2 * vital, done


# This machine


def check_json(text: str) -> dict[str, dict[str, Any]]:
    answer = json.loads(text)
    assert answer["loopback"] is True
    assert [c["name"] for c in answer["checks"]] == [check.name for check in CHECKS]
    for check in answer["checks"]:
        assert set(check) == {"name", "state", "found", "cost", "mend", "vital"}
        assert check["state"] in ("ok", "limited", "missing")
        assert check["found"]
        assert bool(check["cost"]) == (check["state"] != "ok")
        assert not check["found"].startswith("cannot be tried"), check
    return {check["name"]: check for check in answer["checks"]}


def test_here() -> None:
    done = subprocess.run([*COMMAND, "--json"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done
    checks = check_json(done.stdout)
    assert all(checks[name]["state"] == "ok" for name in VITAL)
    done = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("The loopback world runs here")


@pytest.mark.root(reason="only root can become nobody")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (util-linux)")
def test_as_nobody() -> None:
    # Reading everything stays allowed, or an interpreter in root's home could not start.
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    keep = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    done = subprocess.run(
        [*drop, *keep, *COMMAND, "--json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done
    checks = check_json(done.stdout)
    assert checks["privileges"]["found"].startswith("user 65534, without")
    assert checks["privileges"]["state"] == checks["AF_PACKET"]["state"] == "missing"
    assert checks["network namespaces"]["state"] in ("limited", "missing")


def test_the_trial_namespace_is_not_ours() -> None:
    before = os.readlink("/proc/self/ns/net")
    assert Host().namespaces() in ("yes", "user", "no")
    assert os.readlink("/proc/self/ns/net") == before


def test_a_reader_that_goes_away() -> None:
    """As in `iswitch doctor | head -1`: no traceback."""
    command = f"{sys.executable} -m iswitch doctor | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout
    assert done.stderr == ""
