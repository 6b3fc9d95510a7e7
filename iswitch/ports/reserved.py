"""Allocates buffers whose memory the system really has.

Linux promises more memory than there is, and kills a process that uses too much of it. So before an
allocation this module reads the limits that strike only on use: those of the machine and of control
groups. Then all pages are touched, those of small buffers at once, those of large ones by a thread,
so that the switch need not wait. A limit on addresses (`ulimit -v`) or strict overcommit refuses
the allocation itself.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from iswitch.core.format.packets import Rows
from iswitch.core.sums.buffers import Buffers

SMALL = 4 << 20  # bytes that are touched at once: a millisecond or two
SLICE = 4 << 20  # bytes that the thread touches at a time
SLACK = 32 << 20  # bytes that the machine and each control group keep
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE (linux/mman.h, 5.14): as if written, contents unchanged
TRIES, TRY_PAUSE = 20, 0.05  # seconds: a signal, or a group that is full for a moment
QUIET = 1.0  # seconds between two lines for the operator
UNLIMITED = 1 << 62
GROUPS = Path("/sys/fs/cgroup")


def room(proc: Path = Path("/proc"), groups: Path = GROUPS) -> int:
    """Return the bytes that this process can still use before the machine or a group is full."""
    return min((_machine(proc), *_control_groups(proc, groups)))


def _machine(proc: Path) -> int:
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError:  # no descriptor is free, say
        return UNLIMITED
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return UNLIMITED


def _control_groups(proc: Path, groups: Path) -> Iterator[int]:
    """Return the bytes left in each control group of this process, version 1 or 2."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            roots = [groups, groups / "unified"]
            names = ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            roots = [groups / "memory"]
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        for root in roots:
            at = root / path.strip("/")
            for folder in (at, *at.parents):
                yield _left(folder, *names)
                if folder == root:
                    break


def _left(folder: Path, limit: str, usage: str) -> int:
    """Return the bytes left below a group's limit; pages of files count as free."""
    try:
        most = (folder / limit).read_text().strip()
        if most == "max":
            return UNLIMITED
        used = int((folder / usage).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:  # not seen from here, or no limit is there
        return UNLIMITED
    files = ("total_inactive_file", "total_active_file")
    if files[0] not in stat:
        files = ("inactive_file", "active_file")
    return int(most) - used + sum(int(stat.get(name, 0)) for name in files)


class SystemBuffers(Buffers):
    """Takes memory from the system.

    Args:
        tell: takes a line for the operator; None: it is printed on stderr.
    """

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self._tell = tell or (lambda line: print(line, file=sys.stderr, flush=True))
        self._told = -QUIET
        self._pending = 0  # bytes that are not touched yet
        self._lock = threading.Lock()
        self._madvise = ctypes.CDLL(None, use_errno=True).madvise
        self._madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    @property
    def pending(self) -> int:
        """Return the bytes that were allocated and are still to be touched."""
        return self._pending

    def see(self, nbytes: int) -> None:
        """Check, before the first byte is taken, that the system can provide a total of `nbytes`.

        Raises:
            MemoryError: the system cannot provide them.
        """
        if nbytes and nbytes + self._pending + SLACK > room():
            raise MemoryError

    def take(self, nbytes: int) -> Rows:
        """Take `nbytes` bytes, all zero, that the system will not take back.

        Raises:
            MemoryError: the system cannot provide them.
        """
        if nbytes < SMALL:
            found = np.empty(nbytes, np.uint8)
            found.fill(0)
            return found
        self.see(nbytes)
        try:
            mapped = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as error:
            raise MemoryError from error
        found = np.frombuffer(mapped, np.uint8)
        with self._lock:
            self._pending += nbytes
        try:
            threading.Thread(target=self._touch, args=(found,), daemon=True).start()
        except RuntimeError:  # no thread can be had
            self._touch(found)
        return found

    def _touch(self, buffer: Rows) -> None:
        """Touch the pages of a buffer; called in a thread, since it can take long."""
        at, size = buffer.ctypes.data, buffer.nbytes
        for start in range(0, size, SLICE):
            part = min(SLICE, size - start)
            if not self._populate(at + start, part):
                break
        with self._lock:
            self._pending -= size

    def _populate(self, at: int, nbytes: int) -> bool:
        """Touch some pages, retrying for a while; return False on a kernel that cannot.

        Pages that are not touched here are made when they are used.
        """
        for _ in range(TRIES):
            if not self._madvise(at, nbytes, POPULATE_WRITE):
                return True
            if ctypes.get_errno() == errno.EINVAL:
                return False
            time.sleep(TRY_PAUSE)
        return True

    def refused(self, job: int, nbytes: int) -> None:
        """Tell the operator, once a second at most."""
        now = time.monotonic()
        if now - self._told >= QUIET:
            self._told = now
            self._tell(
                f"job {job}: a Join is answered FULL: the system has no memory for its "
                f"{nbytes:,} bytes; stop other programs, raise the limit (ulimit -v, the control "
                "group's), or start the switch with a smaller --memory"
            )
