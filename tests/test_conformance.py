"""Every conformance case against the switch this package starts, over real sockets.

Once as they are, and once over a path that loses a fifth of all packets and doubles a tenth.
"""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conformance import turns
from tests.conformance.__main__ import main
from tests.conformance.case import run
from tests.conformance.cases import CASES
from tests.conformance.client import Address
from tests.conformance.packets import CaseSkipped
from tests.conftest import StartSwitch, running_switch
from tests.support import ROOT

KEYED = {60_000 + n: f"key {n} of these tests".encode() for n in range(3)}
PARTS = 4  # of the cases under loss, each with a switch of its own, side by side
OF_TURNS = [name for name, case in CASES.items() if case.run.__module__ == turns.__name__]
NEEDS_KEY = [name for name in CASES if name.startswith("keyed_")]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of keys."""
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.touch(0o600)
    path.write_text("\n".join(f'{job} = "hex:{key.hex()}"' for job, key in KEYED.items()))
    return str(path)


@pytest.fixture(scope="module", params=["0", "1"], ids=["python", "fast"])
def switch(start_switch: StartSwitch, keys: str, request: pytest.FixtureRequest) -> Address:
    """Some of whose jobs are keyed; in Python, and with a compiled kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISWITCH_FAST", request.param)
        return start_switch("127.0.0.1:0", "--keys", keys, "--no-shm")[1]


@pytest.fixture(scope="module")
def keyed() -> Iterator[tuple[int, bytes]]:
    """Keyed jobs, in turn."""
    return itertools.cycle(KEYED.items())


SEEDS = int(os.environ.get("ISWITCH_LOSSY_SEEDS", "1"))  # `make lossy` takes more
LOSSLESS = {name: case.lossless for name, case in CASES.items() if case.lossless}


@pytest.mark.parametrize("name", CASES)
def test_conformance(
    name: str, switch: Address, jobs: Iterator[int], keyed: Iterator[tuple[int, bytes]]
) -> None:
    """The switch keeps the promise this case is about."""
    try:
        run(CASES[name], switch, jobs, keyed)
    except CaseSkipped as skipped:
        if name in NEEDS_KEY:  # this switch has keyed jobs
            raise
        pytest.skip(str(skipped))


def test_conformance_of_turns(
    start_switch: StartSwitch, jobs: Iterator[int], keyed: Iterator[tuple[int, bytes]]
) -> None:
    """At a switch whose jobs take turns, which is the only one that does not skip these cases."""
    _, where = start_switch("127.0.0.1:0", "--policy", "lanes:fifo", "--memory", "1", "--no-shm")
    assert len(OF_TURNS) == 3
    for name in OF_TURNS:
        run(CASES[name], where, jobs, keyed)


def outcomes(capsys: pytest.CaptureFixture[str], switch: Address, *options: str) -> dict[str, str]:
    """Results and messages of the cases of keyed jobs, from the command."""
    where = "{}:{}".format(*switch)
    capsys.readouterr()
    assert main(["--switch", where, "--json", *options, "--case", *NEEDS_KEY]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {each["name"]: f"{each['result']} {each['message']}" for each in found}


def test_cases_of_keyed_jobs_are_never_skipped_silently(
    switch: Address, start_switch: StartSwitch, keys: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are skipped, with the reason, where there is no keyed job."""
    assert set(outcomes(capsys, switch, "--keys", keys).values()) == {"passed "}
    assert len(NEEDS_KEY) == 8
    assert all("--keys FILE" in why for why in outcomes(capsys, switch).values())
    unkeyed = outcomes(capsys, start_switch()[1], "--keys", keys)
    assert all("skipped the switch has no key for job" in why for why in unkeyed.values())


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_conformance_under_loss(seed: int) -> None:
    """All but the cases about a single packet keep their promise when packets are lost."""
    faults = f"loss=0.2,duplicate=0.1,seed={seed}"

    def played(part: int) -> subprocess.CompletedProcess[str]:
        with running_switch("127.0.0.1:0", "--impair", faults) as (_, (host, port)):
            return subprocess.run(
                [sys.executable, "-m", "tests.conformance", "--lossy", "--json", "--first-job", "1",
                 "--switch", f"{host}:{port}", "--case", *list(CASES)[part::PARTS]],
                cwd=ROOT, capture_output=True, text=True, timeout=300,
            )  # fmt: skip

    with ThreadPoolExecutor(PARTS) as pool:  # they wait for packets that are lost
        parts = list(pool.map(played, range(PARTS)))
    outcomes = [json.loads(line) for done in parts for line in done.stdout.splitlines()]
    assert [o["message"] for o in outcomes if o["result"] == "failed"] == []
    assert [done.returncode for done in parts] == [0] * PARTS, [done.stderr for done in parts]
    assert sorted(o["name"] for o in outcomes) == sorted(CASES)
    skipped = {o["name"]: o["message"] for o in outcomes if o["result"] == "skipped"}
    for name, reason in LOSSLESS.items():
        assert skipped.pop(name) == f"needs a lossless path: {reason}"
    for name in OF_TURNS:
        assert "lets no jobs take turns" in skipped.pop(name, "lets no jobs take turns")
    for name in NEEDS_KEY:  # they look at single packets, too
        assert "--keys FILE" in skipped.pop(name)
    assert all("offload" in message for message in skipped.values()), skipped
    passed = sum(o["result"] == "passed" for o in outcomes)
    assert passed >= 0.9 * (len(CASES) - len(NEEDS_KEY) - len(OF_TURNS))
