"""Every conformance case against the switch this package starts, over real sockets.

Once as they are, and once over a path that loses a fifth of all packets and doubles a tenth.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.conformance.case import run
from tests.conformance.cases import CASES
from tests.conformance.client import Address, CaseSkipped

from .conftest import ROOT, running_switch

SEEDS = int(os.environ.get("ISWITCH_LOSSY_SEEDS", "1"))  # `make lossy` takes more
LOSSLESS = {name: case.lossless for name, case in CASES.items() if case.lossless}


@pytest.mark.parametrize("name", CASES)
def test_conformance(name: str, switch: Address, jobs: Iterator[int]) -> None:
    """The switch keeps the promise this case is about."""
    try:
        run(CASES[name], switch, jobs)
    except CaseSkipped as skipped:
        pytest.skip(str(skipped))


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_conformance_under_loss(seed: int) -> None:
    """All but the cases about a single packet keep their promise when packets are lost."""
    faults = f"loss=0.2,duplicate=0.1,seed={seed}"
    with running_switch("127.0.0.1:0", "--impair", faults) as (_, (host, port)):
        done = subprocess.run(
            [sys.executable, "-m", "tests.conformance", "--lossy", "--json", "--first-job", "1",
             "--switch", f"{host}:{port}"],
            cwd=ROOT, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert [o["message"] for o in outcomes if o["result"] == "failed"] == []
    assert done.returncode == 0, done.stderr
    assert [o["name"] for o in outcomes] == list(CASES)
    skipped = {o["name"]: o["message"] for o in outcomes if o["result"] == "skipped"}
    for name, reason in LOSSLESS.items():
        assert skipped.pop(name) == f"needs a lossless path: {reason}"
    assert all("offload" in message for message in skipped.values()), skipped
    assert sum(o["result"] == "passed" for o in outcomes) >= 0.9 * len(CASES)
