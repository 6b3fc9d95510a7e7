"""How long kernels look for packets before they sleep: about as long as waking up takes.

Between two looks they let others run (`sched_yield`). Who has to wait then, and for how long, is
defined for real-time policies only (sched_yield(2)). With others, a yield on a busy core can last
milliseconds, and at sockets that costs more than it saves. So it does where many processes share
the cores: to a core whose process yields, the system moves none that waits for another core.
"""

from __future__ import annotations

import os

WAKING = 50_000  # nanoseconds
SMALL = 1 << 18  # bytes of a vector: in longer rounds a wake-up takes a small part of the time
WORKERS = 2  # for each core; where there are more, there is always one to run


def at_sockets(nbytes: int, workers: int) -> int:
    """Return the nanoseconds for which this thread should look at sockets before it sleeps.

    Args:
        nbytes: bytes of the longest vector that it awaits.
        workers: number of workers, which may be on this machine.
    """
    if nbytes > SMALL or workers > WORKERS * (os.cpu_count() or 1):
        return 0
    policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
    return WAKING if policy in (os.SCHED_FIFO, os.SCHED_RR) else 0
