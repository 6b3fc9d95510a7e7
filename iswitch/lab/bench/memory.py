"""Reckons the memory that a benchmark needs, before anything is started.

Linux promises more memory than there is, and kills the process that then uses it, without a word.
What is reckoned is there at once: the vectors of all workers of all strategies, which are on a
network together, and what the sums of one strategy are checked with. Of vectors of 128 MB each of 4
workers was seen to have 7.6 in a ring, and 9.2 at a switch, which had 2.1: here 8, 9 and 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from iswitch.outside import UsageError
from iswitch.ports.reserved import room
from worker_lib.strategies.collectives import ROOT, sizes

from .plan import ALLREDUCE, ASYNC, BARRIER, ELEMENT, FORWARD, Plan, Size, Way

# In vectors. `BenchWorker` keeps four: its own, the one it sums, moments and weights. Drawing one
# takes three, since NumPy draws 64 bits; the exact sum is one.
KEPT, DRAWN = 4, 3
AT_ROOT = ("reduce", "gather")  # whose result only the root has, and checks
AS_DRAWN = ("broadcast", "scatter", BARRIER)  # nothing is added up or joined to check them
RESULT = dict.fromkeys(("iswitch", FORWARD, ASYNC), 1)  # others sum in place
ADDING = dict.fromkeys(("iswitch", "ps"), 2)  # of a switch, or of all servers: two rounds
PROCESS = 20e6  # bytes of a worker without vectors, which shares most of its memory with others


def check_memory(plan: Plan, workers: Sequence[int], free: float | None = None) -> None:
    """Refuse a measurement that needs more memory than is free.

    Args:
        plan: the measurements.
        workers: the number of workers on the network of each setting.
        free: bytes that this process and its children can still use; None: as the system says.

    Raises:
        UsageError: the message says how large vectors may be.
    """
    free = room() if free is None else free
    in_turn = plan.world == "sim"
    for setting, count in zip(plan.settings, workers, strict=True):
        ways = plan.ways_on(setting)
        for collective, size in plan.calls(count):
            needed = reckoned(ways, collective, size, count, in_turn)
            if needed <= free:
                continue
            at_all = reckoned(ways, collective, Size("", 0), count, in_turn)
            fits = int((free - at_all) / (needed - at_all) * size.bytes / 1e6) if size.bytes else 0
            several = len(ways) > 1
            mends = [f"--sizes up to {fits}MB"] * (fits > 0) + ["fewer workers"] * (count > 1)
            # Those of the paper are given.
            mends += ["fewer --strategies"] * (several and not plan.free and not in_turn)
            with_workers = f"{', each' * several} with {count} worker{'s' * (count > 1)}"
            need = f", need {'up to' if in_turn else 'together'}" if several else " needs"
            raise UsageError(
                f"--sizes {size.label}: {', '.join(way.label for way in ways)}{with_workers}{need} "
                f"{shown(needed)} of memory, and {shown(free)} are free; take "
                f"{' or '.join(mends or ['a machine with more'])}"
            )


def reckoned(
    ways: Sequence[Way], collective: str, size: Size, workers: int, in_turn: bool = False
) -> float:
    """Reckon the bytes that are there at once.

    Args:
        ways: the strategies.
        collective: what they are called for.
        size: size of the vector.
        workers: number of workers of each.
        in_turn: whether each strategy has the machine to itself, in one process.
    """
    given, got = [size.numel] * workers, [size.numel] * workers
    kept = KEPT * sum(given)
    if collective != ALLREDUCE:
        each = [sizes(collective, size.numel, workers, rank) for rank in range(workers)]
        given, got = ([one[i] for one in each] for i in range(2))
        kept = 2 * sum(given) + sum(got)
    of_ways = [
        kept + RESULT.get(way.name, 0) * sum(got) + ADDING.get(way.name, 0) * size.numel
        for way in ways
    ]
    one = checked(collective, size.numel, given[ROOT])
    if in_turn:
        return ELEMENT * (max(of_ways) + one)
    checkers = 1 if collective in AT_ROOT else workers
    # Before a worker has its vectors, it draws its own: 3, where of some collectives it keeps 2.
    checking = max(checkers * one, sum(given))
    return ELEMENT * (sum(of_ways) + checking) + PROCESS * workers * len(ways)


def checked(collective: str, numel: int, drawn: int) -> int:
    """Reckon the elements that are there while one worker makes the exact result (`vectors`).

    Args:
        collective: the collective.
        numel: elements of the whole vector.
        drawn: elements that are drawn for each rank.
    """
    return DRAWN * drawn + numel * (collective not in AS_DRAWN)


def shown(nbytes: float) -> str:
    """Write bytes for people, in three digits or whole GB."""
    if nbytes < 999.5e6:
        return f"{max(nbytes, 0) / 1e6:.3g} MB"
    return f"{nbytes / 1e9:.3g} GB" if nbytes < 999.5e9 else f"{nbytes / 1e9:,.0f} GB"
