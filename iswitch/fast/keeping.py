"""Where compiled code is kept, and whether it may be trusted: what lies there is run."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from pathlib import Path

MEND = "name a folder of your own by NUMBA_CACHE_DIR, which only you can write to"
MINE = Path(__file__).parent
RULES = [  # which kernels compile, too
    MINE.parents[1] / name
    for name in (
        "worker_lib/protocol/window.py",
        "iswitch/core/sums/numbered.py",
        "iswitch/core/sums/partial.py",
        "iswitch/faults/fifo.py",
        "iswitch/ports/rings/due.py",
    )
]
OTHERS = stat.S_IWGRP | stat.S_IWOTH
PROCESSORS = Path("/proc/cpuinfo")
KINDS = (b"vendor", b"cpu family", b"model", b"CPU ", b"flags", b"Features")  # lines of it


def checks_bounds() -> bool:
    """Return whether kernels check every index of an array, as NUMBA_BOUNDSCHECK=1 asks."""
    return os.environ.get("NUMBA_BOUNDSCHECK", "0") not in ("", "0")


def cache() -> Path:
    """Return the folder in which compiled kernels are kept.

    Numba's own index tells apart processors, and the place and age of a kernel's file, but neither
    a changed function that it calls, nor checks of bounds. The folder's name tells all of these, so
    that what is in a folder serves all that find it, though kinds of machines share a home.
    """
    given = os.environ.get("NUMBA_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    digest = hashlib.sha256(str(checks_bounds()).encode() + processor())
    for path in (*sorted(MINE.glob("*.py")), *RULES):
        digest.update(f"{path} {path.stat().st_mtime_ns} ".encode() + path.read_bytes())
    with suppress(PackageNotFoundError):
        digest.update(version("numba").encode())
    root = Path(given) if given else Path(home, "iswitch", "fast")
    return root / digest.hexdigest()[:16]


def processor() -> bytes:
    """Return what this machine says of the kind and the abilities of its first processor."""
    with suppress(OSError), PROCESSORS.open("rb") as lines:
        return b"".join(line for line in takewhile(bytes.strip, lines) if line.startswith(KINDS))
    return b""


def trouble() -> str:
    """Return why compiled kernels cannot be kept in `cache`, which is made if it is missing.

    Nothing is wrong if this is empty. Without a cache every process would compile them again. In a
    folder that others can write to, or can put another in place of, they could have put code that
    this process would run.
    """
    folder = cache().absolute()
    try:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(mode=0o700, exist_ok=True)
        found = folder.resolve()
        for path in (found, *found.parents):
            about = path.stat()
            if about.st_uid not in (0, os.geteuid()):
                return f"{path} belongs to another user"
            # In a folder such as /tmp nobody can replace what another user owns.
            if about.st_mode & OTHERS and (path == found or not about.st_mode & stat.S_ISVTX):
                return f"others can write to {path}"
    except OSError as error:
        return f"compiled code cannot be kept in {folder}: {error.strerror}"
    if not os.access(found, os.W_OK | os.X_OK):
        return f"compiled code cannot be kept in {folder}"
    return ""


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Let functions that are compiled in the `with` block be kept in this folder."""
    from numba import config

    before = config.CACHE_DIR, config.BOUNDSCHECK
    config.CACHE_DIR, config.BOUNDSCHECK = str(folder), int(checks_bounds())
    try:
        yield
    finally:
        config.CACHE_DIR, config.BOUNDSCHECK = before
