"""Children that do not outlive who started them."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1  # linux/prctl.h
LIBC = ctypes.CDLL(None)  # loaded here: after a fork it is too late


class DiesWithParent:
    """For `preexec_fn`: the child is killed when the thread that starts it dies, even crashes."""

    def __init__(self) -> None:
        self._parent = os.getpid()

    def __call__(self) -> None:
        """Runs in the child, before exec."""
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._parent:  # it died before it could matter
            os._exit(1)
