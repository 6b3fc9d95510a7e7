"""Settings of memory for a process that serves.

It has the C library keep the memory that is freed, for it makes buffers all the time.

What is left of a burst is put together in a new buffer of up to a megabyte. By default glibc gives
such buffers back to the kernel, and gets them again page by page: that costs more than the copy.
"""

from __future__ import annotations

import ctypes
import gc

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT = 64 << 20  # bytes at the end of the heap that are not given back
LARGE = 32 << 20  # bytes from which on a buffer has pages of its own; the most glibc allows


def keep_freed() -> None:
    """Have the C library keep freed memory, where it has such a setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_TRIM_THRESHOLD, KEPT)


def settle() -> None:
    """Take all that exists now, modules mostly, out of the collector's reach.

    It would look through all of it again and again, in the middle of a round.
    """
    gc.collect()
    gc.freeze()
