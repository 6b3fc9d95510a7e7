"""What tests share."""

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
