"""What tests share."""

import argparse
import gc
import os
import subprocess
import sys
from collections.abc import Callable
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


def options_of(configure: Callable[[argparse.ArgumentParser], object]) -> set[str]:
    """Return all options of a command but those for help."""
    parser = argparse.ArgumentParser()
    configure(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    return options - {"-h", "--help"}


def open_files() -> set[str]:
    """Return this process's file descriptors, without those that only garbage still holds.

    An earlier test may have left such garbage, which Python would collect at any moment.
    """
    gc.collect()
    return set(os.listdir("/proc/self/fd"))
