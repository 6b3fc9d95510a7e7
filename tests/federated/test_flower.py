"""Flower's loop over a switch: the example, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.conftest import Where
from worker_lib.federated import picks

ROUND = re.compile(r"round (\d+): ranks \((.*?)\), \d+ samples, error ([\d.]+)")

pytestmark = pytest.mark.skipif(
    find_spec("flwr") is None,
    reason="flwr is missing; it wants other versions than dev: pip install -e '.[flower]' "
    "pytest pytest-timeout in an environment of its own",
)


def test_the_example(switch: Where) -> None:
    """The mean of each round is of those who were picked, and the model is learned."""
    where = f"{switch[0]}:{switch[1]}"
    words = ["--switch", where, "--members", "4", "--per-round", "3", "--rounds", "6"]
    done = subprocess.run(
        [sys.executable, "-m", "worker_lib.federated.flower_example", *words],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    rounds = ROUND.findall(done.stdout)
    assert [int(number) for number, _, _ in rounds] == list(range(1, 7))
    for number, ranks, _ in rounds:
        assert ranks == ", ".join(map(str, picks(0, int(number), 4, 3)))
    assert float(rounds[-1][2]) < float(rounds[0][2]) / 3
