"""Loads compiled kernels, and compiles them if no earlier process has."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

SWITCH = "ISWITCH_FAST"  # 0: the Python way only
KERNELS = ("switch_kernel", "worker_kernel")  # the modules that hold kernels
_loading = threading.Lock()
MINE = Path(__file__).parent
RULES = MINE.parents[1] / "worker_lib" / "protocol" / "window.py"  # which a kernel compiles, too


def installed() -> bool:
    """Return whether Numba is installed; it is not imported."""
    return find_spec("numba") is not None


def wanted() -> bool:
    """Return whether the environment allows the fast path."""
    return os.environ.get(SWITCH, "1") != "0"


def available() -> bool:
    """Return whether kernels can be used: installed, not switched off, and there is a cache."""
    return wanted() and installed() and has_cache()


def forgo() -> None:
    """Switch the fast path off in this process and in those that it starts."""
    os.environ[SWITCH] = "0"


def checks_bounds() -> bool:
    """Return whether kernels check every index of an array, as NUMBA_BOUNDSCHECK=1 asks."""
    return os.environ.get("NUMBA_BOUNDSCHECK", "0") not in ("", "0")


def say(text: str) -> None:
    """Write a line for people to stderr."""
    if sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)


def load(name: str, tell: Callable[[str], None] = say) -> ModuleType:
    """Load a module of kernels, ready to be called, where they are `available`.

    With a filled cache this takes half a second; otherwise Numba compiles first. So call it before
    a worker joins or a switch serves.

    Args:
        name: one of KERNELS.
        tell: is told what the caller waits for if the kernels must be compiled.

    Raises:
        ImportError: Numba cannot be imported, or what it compiles cannot be kept.
    """
    full = f"{__package__}.{name}"
    with _loading, ExitStack() as stack:
        if full in sys.modules:
            return sys.modules[full]
        folder = cache()
        mark = folder / f"{name}.ready"
        if not mark.exists():
            tell("Compiling the fast path (once, about 20 s)...")
            stack.enter_context(_alone(folder))
        with _kept_in(folder):
            try:
                kernels = import_module(full)
            except OSError as error:
                raise ImportError(f"{folder}: {error.strerror}") from error
        with suppress(OSError):
            mark.touch()
        return kernels


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from compiling in the `with` block: they find what this one has."""
    with ExitStack() as stack:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def is_compiled() -> bool:
    """Return whether every kernel has been compiled by an earlier process."""
    return all((cache() / f"{name}.ready").exists() for name in KERNELS)


def cache() -> Path:
    """Return the folder in which compiled kernels are kept.

    Numba's own index tells apart processors, but neither a changed function that a kernel calls,
    nor checks of bounds; the folder's name does.
    """
    given = os.environ.get("NUMBA_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    digest = hashlib.sha256(str(checks_bounds()).encode())
    for path in (*sorted(MINE.glob("*.py")), RULES):
        digest.update(path.read_bytes())
    with suppress(PackageNotFoundError):
        digest.update(version("numba").encode())
    root = Path(given) if given else Path(home, "iswitch", "fast")
    return root / digest.hexdigest()[:16]


def has_cache() -> bool:
    """Return whether compiled kernels can be kept; the folder is made if it is missing.

    Without it every process would compile them again.
    """
    try:
        cache().mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(cache(), os.W_OK | os.X_OK)


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Let functions that are compiled in the `with` block be kept in this folder."""
    from numba import config

    before = config.CACHE_DIR, config.BOUNDSCHECK
    config.CACHE_DIR, config.BOUNDSCHECK = str(folder), int(checks_bounds())
    try:
        yield
    finally:
        config.CACHE_DIR, config.BOUNDSCHECK = before
