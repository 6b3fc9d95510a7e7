"""Virtual time for some threads of a real process, for a while: `topologies.simulate`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from . import environment, names, polling, streams, threads
from .patches import Patches

_lock = threading.Lock()
_patches = Patches()
_users = 0


@contextmanager
def patched() -> Iterator[None]:
    """Give threads in virtual time their own clocks, locks, sockets and variables.

    After the last of several `with` blocks that overlap, Python's modules are as they were.
    """
    global _users
    with _lock:
        if not _users:
            for module in (threads, streams, polling, names, environment):
                module.install(_patches)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _patches.take_back()
