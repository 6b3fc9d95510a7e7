"""Memory with one writer, which others can only read: memfds, sealed."""

from __future__ import annotations

import fcntl
import mmap
import os
import platform

HEAD = 4096  # bytes before the ring's own
LINE = 64  # bytes of a cache line: words of a head, and records, begin at multiples
LARGEST = 64 << 20  # bytes of a ring that another process may make us map
F_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h; since Linux 5.1
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL


class BrokenRing(Exception):
    """The other side's memory or records are not as they must be."""


def supported() -> bool:
    """Return whether this machine can have rings: stores stay in order, and memory has seals."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        fd, memory = create(LINE)
    except OSError:
        return False
    memory.close()
    os.close(fd)
    return True


def create(size: int) -> tuple[int, mmap.mmap]:
    """Make memory for a ring of `size` bytes, which only the returned mapping can write to.

    Returns:
        a descriptor to hand over, and the mapping.

    Raises:
        OSError: this system has no such memory, or too little.
    """
    fd = os.memfd_create("iswitch-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, HEAD + size)  # else a lack of memory would be a SIGBUS later
        memory = mmap.mmap(fd, HEAD + size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd, memory


def attach(fd: int) -> mmap.mmap:
    """Map memory that another process has made, for reading; the descriptor is closed.

    Raises:
        BrokenRing: it is no memory of the kind that `create` makes.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        size = os.fstat(fd).st_size
        if seals & SEALS != SEALS or not HEAD < size <= HEAD + LARGEST or size % LINE:
            raise BrokenRing("memory without seals, or of a size that no ring has")
        return mmap.mmap(fd, size, prot=mmap.PROT_READ)
    except OSError as error:
        raise BrokenRing(f"no memory for a ring: {error.strerror}") from None
    finally:
        os.close(fd)
