"""What tests share."""

import gc
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent  # of the checkout


def python(
    *words: str, folder: Path = ROOT, timeout: float = 120.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run this Python on these words, with this checkout to import from; return how it ended."""
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=timeout,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


def open_files() -> set[str]:
    """Return this process's file descriptors, without those that only garbage still holds.

    An earlier test may have left such garbage, which Python would collect at any moment.
    """
    gc.collect()
    return set(os.listdir("/proc/self/fd"))
