"""Children that die with the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1  # linux/prctl.h
LIBC = ctypes.CDLL(None)  # loaded here: after a fork it is too late


class DiesWithParent:
    """Makes the kernel kill a child when the thread that starts it dies; for `preexec_fn`."""

    def __init__(self) -> None:
        self._parent = os.getpid()

    def __call__(self) -> None:
        """Run in the child, before exec."""
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._parent:  # the parent died before the call
            os._exit(1)
