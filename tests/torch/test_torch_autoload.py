"""PyTorch finds the backend by itself, and is none the worse for it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from tests.support import ROOT
from worker_lib.torch import NAME
from worker_lib.torch.address import SCHEME

KNOWN = "import torch.distributed as d; assert 'iswitch' in d.Backend.backend_list"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


@pytest.mark.parametrize("first", ["import torch", "import worker_lib.torch"])
def test_the_backend_is_known(first: str) -> None:
    done = python(f"{first}; {KNOWN}")
    assert (done.returncode, done.stderr) == (0, "")


def test_without_autoload_an_import_registers_it() -> None:
    done = python(f"import worker_lib.torch; {KNOWN}", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert python(f"import torch; {KNOWN}", TORCH_DEVICE_BACKEND_AUTOLOAD="0").returncode != 0


def test_importing_torch_loads_nothing_of_ours() -> None:
    done = python("import sys, torch; print(*(n for n in sys.modules if n.startswith('iswitch') or"
                  " n.startswith('worker_lib')))")  # fmt: skip
    assert done.stdout.split() == ["worker_lib", "worker_lib.torch"]


REFUSED = (
    "def refuse(*a, **b): raise TypeError('another signature')\n"
    "d.Backend.register_backend = refuse\n"
    "import worker_lib.torch; worker_lib.torch.autoload()"
)
LACKING = "sys.modules['torch.distributed.rendezvous'] = None\nimport worker_lib.torch"


@pytest.mark.parametrize("code", [REFUSED, LACKING], ids=["refused", "without a module"])
def test_a_torch_that_takes_no_backend_is_imported_all_the_same(code: str) -> None:
    again = "import sys, torch; sys.modules.pop('worker_lib.torch'); d = torch.distributed\n"
    done = python(f"{again}del d.Backend.ISWITCH\n{code}")
    assert done.returncode == 0, done.stderr
    assert "PyTorch does not take the backend iswitch" in done.stderr


def test_it_is_an_entry_point() -> None:
    assert NAME == SCHEME
    (found,) = entry_points(group="torch.backends", name="iswitch")
    assert found.value == "worker_lib.torch:autoload"
