"""The recipes of docs/cookbook.md, as they stand there; for torchrun: tests/test_torchrun.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Where
from .test_docs import BLOCK, COOKBOOK, ROOT

PATIENCE = 300.0  # seconds until a test is given up; they import a lot
RECIPES = {  # by the name in their first line
    code.split("\n", 1)[0].removeprefix("# "): code
    for tag, code in BLOCK.findall((ROOT / "docs" / COOKBOOK).read_text())
    if tag == "python"
}


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
    assert RECIPES.keys() == {"learn.py", "cluster.py"}


@pytest.mark.parametrize("algorithm", ["A2C", "PPO"])
def test_stable_baselines(algorithm: str, switch: Where, tmp_path: Path) -> None:
    code = RECIPES["learn.py"].replace("A2C", algorithm)
    if algorithm == "PPO":  # two rollouts; the page says that it goes in the same way
        code = code.replace('device="cpu"', 'device="cpu", n_steps=250, batch_size=50')
        assert "n_steps" in code
    digests = {*run(code, 4, switch, tmp_path)}
    assert len(digests) == 1
    assert re.fullmatch("[0-9a-f]{64}\n", digests.pop())


def test_dask(switch: Where, tmp_path: Path) -> None:
    (output,) = run(RECIPES["cluster.py"], 1, switch, tmp_path)
    assert f"```text\n{output}```" in (ROOT / "docs" / COOKBOOK).read_text()
