"""Loads compiled kernels, and compiles them if no earlier process has."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import gc
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from iswitch.system.switches import is_on

from .keeping import MEND, cache, kept_in, trouble

SWITCH = "ISWITCH_FAST"  # 0: the Python way only
KERNELS = (
    "switch_kernel",
    "worker_kernel",
    "ring_worker_kernel",
    "capture_kernel",
)  # the modules that hold kernels
COMPILING = "Compiling the fast path (once, half a minute; minutes on a busy machine)..."
COMPILED = "parts are compiled"
COMPILER = "libllvmlite"
MADV_DONTNEED = 4
MAPPING = re.compile(
    r"(?P<start>[0-9a-f]+)-(?P<stop>[0-9a-f]+) (?P<rights>\S+) \S+ \S+ \S+ *(?P<file>.*)"
)
_loading = threading.Lock()


def installed() -> bool:
    """Return whether Numba is installed; it is not imported."""
    return find_spec("numba") is not None


def wanted() -> bool:
    """Return whether the environment allows the fast path."""
    return is_on(SWITCH)


def available() -> bool:
    """Return whether kernels can be used: installed, not switched off, and there is a cache.

    Where only the cache is missing, say so once.
    """
    if not (wanted() and installed()):
        return False
    found = trouble()
    if found:
        _refuse(found)
    return not found


@functools.cache
def _refuse(found: str) -> None:
    say(f"The fast path is off, as {found}: {MEND}, or set {SWITCH}=0")


def forgo() -> None:
    """Switch the fast path off in this process and in those that it starts."""
    os.environ[SWITCH] = "0"


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
            tell(COMPILING)
            stack.enter_context(_alone(folder))
        with kept_in(folder), _sparing():
            try:
                kernels = import_module(full)
            except OSError as error:
                raise ImportError(f"{folder}: {error.strerror}") from error
        with suppress(OSError):
            mark.touch()
        return kernels


@contextmanager
def _sparing() -> Iterator[None]:
    """Save time and memory of the `with` block, which imports Numba.

    Of the tens of thousands of objects that it makes none is garbage, so there is no search for it
    (a fifth of the time). Then the system takes back the pages of the compiler's code and constants
    (65 MB), as there is nothing more to compile; if there is, it reads them again.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        with suppress(OSError):
            for start, stop in _as_in_file(Path("/proc/self/smaps").read_text(), COMPILER):
                ctypes.CDLL(None).madvise(
                    ctypes.c_void_p(start), ctypes.c_size_t(stop - start), MADV_DONTNEED
                )


def _as_in_file(smaps: str, name: str) -> list[tuple[int, int]]:
    """Return where memory holds a file as it is: what is dropped there can be read again.

    Args:
        smaps: text of /proc/self/smaps.
        name: a part of the file's name.
    """
    found, at = [], None
    for line in smaps.splitlines():
        if mapping := MAPPING.match(line):
            named = name in mapping["file"] and "w" not in mapping["rights"]
            at = (int(mapping["start"], 16), int(mapping["stop"], 16)) if named else None
        elif at and line.startswith("Private_Dirty:") and line.split()[1] == "0":
            found.append(at)
    return found


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from compiling in the `with` block: they find what this one has."""
    with ExitStack() as stack:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def load_all() -> None:
    """Load all kernels, and compile those that are not compiled.

    Raises:
        ImportError: as for `load`.
    """
    compiles = not is_compiled()
    if compiles:
        say(COMPILING)
    for number, name in enumerate(KERNELS, 1):
        load(name, tell=lambda _: None)
        if compiles:
            say(f"{number} of {len(KERNELS)} {COMPILED}")


def is_progress(line: str) -> bool:
    """Return whether `load_all` writes such a line while it compiles."""
    return line.endswith(COMPILED)


def is_compiled() -> bool:
    """Return whether every kernel has been compiled by an earlier process."""
    return all((cache() / f"{name}.ready").exists() for name in KERNELS)
