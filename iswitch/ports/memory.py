"""Sets how a serving process keeps its memory.

Such a process allocates buffers all the time: the rest of a burst is copied to a new buffer of up
to a megabyte. By default glibc gives such buffers back to the kernel, and gets them again page by
page, which costs more than the copy.
"""

from __future__ import annotations

import ctypes
import gc

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT = 64 << 20  # bytes at the end of the heap that are not given back
LARGE = 32 << 20  # bytes of a buffer that gets pages of its own; the most that glibc allows


def keep_freed() -> None:
    """Make the C library keep freed memory, if it has such a setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_TRIM_THRESHOLD, KEPT)


def settle() -> None:
    """Exempt all present objects, mostly modules, from garbage collection.

    The collector would go through them again and again, in the middle of a round.
    """
    gc.collect()
    gc.freeze()
