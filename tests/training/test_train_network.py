"""`iswitch train` on a network of namespaces."""

from __future__ import annotations

import pytest

from tests.training.test_train import run

pytestmark = [
    pytest.mark.serial,
    pytest.mark.root(reason="building namespaces needs root"),
    pytest.mark.usefixtures("nothing_is_left"),
]


def test_on_a_network_of_three_switches() -> None:
    """With gloo: tests/strategies/test_strategy_costs.py."""
    options = ["--env", "CartPole-v1", "--world", "netns", "--topology", "rack:2x2"]
    done = run("ppo", *options, "--iterations", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " ok     weights of 4 workers equal to the last bit" in done.stdout
