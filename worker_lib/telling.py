"""Says in the log for what a worker waits while it joins, and what seems wrong."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import NO_RANK, Ack

from . import naming

log = logging.getLogger(__name__)

ASTRAY = 60  # seconds from which on a clock is remarked on; short runs in a row get a few ahead
SILENT = 1.0  # seconds that a worker waits for its rank before it says so


def of_clock(behind: int | None, incarnation: int) -> None:
    """Warn if the clock seems to have stepped back since the previous process began.

    Args:
        behind: seconds by which the previous process's incarnation is ahead of the clock. Short
            consecutive runs get a few seconds ahead, since each takes a number above all used.
        incarnation: incarnation of this process.
    """
    if behind is not None and behind >= ASTRAY:
        log.warning(
            "the incarnation of the process before at this address is %d s ahead of this host's "
            "clock: did it step back? joined as incarnation %d; look at the clock (timedatectl)",
            behind,
            incarnation,
        )


def of_memory(job: int, rank: int, place: int, waiting: int, switch: Address) -> None:
    """Say that a job waits for memory of the switch, and at which place."""
    who = f"job {job}" + f" (rank {rank})" * (rank != NO_RANK)
    where = f"at place {place} of {waiting}; `iswitch ctl queue --switch {switch}` lists jobs"
    log.warning("%s waits for memory of the switch, %s", who, where)


def of_places(refusal: Exception, seconds: float) -> None:
    """Say that a job has all its workers, and how long to wait for a place there."""
    log.warning("%s; asking again for %.0f s, the rest of the timeout", refusal, seconds)


def of_rank(job: int, ack: Ack, hosts: Mapping[str, str], seconds: float) -> None:
    """Say that another worker, perhaps dead, has the rank asked for, and how long to wait for it.

    Args:
        job: the job.
        ack: the refusal, which names that worker.
        hosts: names of hosts by address.
        seconds: the rest of the timeout.
    """
    log.warning(
        "job %d: another worker has the rank asked for%s; if it was killed, its rank is free when "
        "its lease has run out (the switch's --lease, 30 s by default), and at once for a process "
        "with its ISWITCH_BIND (bind=); if it runs, end it; asking again for %.0f s, the rest of "
        "the timeout",
        job,
        naming.owner(ack, hosts),
        seconds,
    )


def of_leaving(job: int, seconds: float) -> None:
    """Say that a worker that would leave waits for others, at most for so long."""
    log.warning(
        "job %d: another worker is several versions behind this one, which lets it catch up before "
        "it leaves; waiting %.0f s at most",
        job,
        seconds,
    )


def of_lost(job: int, version: int, newest: int) -> None:
    """Warn that nobody has the versions behind `version` any more, up to `newest`."""
    log.warning(
        "job %d: the versions after %d up to %d are lost: while this worker was behind, all that "
        "had applied them have ended; it goes on from its weights of version %d, as version %d",
        job,
        version,
        newest,
        version,
        newest,
    )


def of_threshold(threshold: int, there: int) -> None:
    """Warn if a job has fewer workers than complete a segment."""
    if too_few := naming.too_few(threshold, there):
        log.warning("H is %d: %s; start them, or set a lower H", threshold, too_few)
