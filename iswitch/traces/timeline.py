"""One round of a trace: who sent when, when segments completed, and where the time went.

For each worker the round has four parts: until its first packet comes; while new ones come; from
its last one to the last one of all workers; and from then to the last aggregate. Packets that are
sent again fall in the third or fourth part. At a switch below another the fourth part ends with the
last sum that goes up, and a fifth follows: until the last aggregate comes from above.
"""

from __future__ import annotations

from textwrap import wrap
from typing import Any

import numpy as np

from iswitch.core.format.packets import index_ranges
from iswitch.faults.units import count

from .observed import JobSeen, Watch
from .rounds import AGGREGATE, RoundFigures, VersionsSeen

MEANING = (
    "Before: until its first packet came. Sending: until its last new one. Waiting for others: "
    "until the last of anybody's. Repairs and the rest: until the last aggregate, with what was "
    "lost and sent again, and the way of the aggregates through the switch."
)
SHOWN = 8  # ranges of rounds
FROM_ABOVE = " Waiting above: from the last sum that went up to the last aggregate."
PARTS = ("before", "sending", "waiting for others", "repairs and the rest")
ABOVE = "waiting above"


def chosen(
    watch: Watch, job: int | None, number: int | None
) -> tuple[JobSeen, RoundFigures] | None:
    """Choose the round named, or the longest of those that ended; None: there is none."""
    jobs = [seen for seen in watch.jobs.values() if job in (None, seen.number)]
    told = [
        (seen, each)
        for seen in jobs
        for each in seen.rounds.told
        if (number is None or each.number == number) and each.spans
    ]
    return max(told, key=lambda pair: (pair[1].seconds or 0.0, -pair[1].number), default=None)


def available(watch: Watch) -> str:
    """List the rounds that can be chosen, as text."""
    return "; ".join(map(_available, watch.jobs.values())) or "nobody has joined"


def _available(job: JobSeen) -> str:
    if isinstance(job.rounds, VersionsSeen):
        return f"job {job.number} is asynchronous and has no rounds"
    numbers = np.array([told.number for told in job.rounds.told if told.spans])
    if not len(numbers):
        return f"job {job.number} has no round"
    ranges = [
        f"{numbers[a]} to {numbers[b - 1]}" if b - a > 1 else f"{numbers[a]}"
        for a, b in index_ranges(numbers, 1)
    ]
    more = f" and {count(len(ranges) - SHOWN, 'range')} more" if len(ranges) > SHOWN else ""
    return f"job {job.number} has round{'s'[: len(numbers) > 1]} {', '.join(ranges[:SHOWN])}{more}"


def part_names(told: RoundFigures) -> tuple[str, ...]:
    """Name the parts of a round: a fifth if it waited for the switch above."""
    return (*PARTS, ABOVE) if told.above else PARTS


def meaning(told: RoundFigures) -> str:
    """Say what the parts of a round are."""
    return MEANING + FROM_ABOVE * bool(told.above)


def parts(told: RoundFigures) -> dict[int, list[float]]:
    """Return, by rank, the seconds of each part that `part_names` lists."""
    last = max(end for _, end in told.spans.values())
    done = max(last, told.start + (told.seconds or 0.0))
    here = max(last, done - told.above)
    above = [done - here] if told.above else []
    return {
        rank: [begin - told.start, end - begin, last - end, here - last, *above]
        for rank, (begin, end) in told.spans.items()
    }


def as_json(job: JobSeen, told: RoundFigures) -> dict[str, Any]:
    """Return a round in detail for JSON, with seconds from its first packet."""
    events = job.rounds.events.get(told.number, [])
    return {
        "job": job.number,
        "round": told.number,
        "start": round(told.start, 9),
        "seconds": None if told.seconds is None else round(told.seconds, 9),
        "straggler": told.straggler,
        "behind": round(told.behind, 9),
        "where_time_went": {
            str(rank): dict(zip(part_names(told), (round(part, 9) for part in cut), strict=True))
            for rank, cut in parts(told).items()
        },
        "events": [
            {
                "what": event.what,
                "rank": None if event.what == AGGREGATE else event.rank,
                "begin": round(event.begin - told.start, 9),
                "end": round(event.end - told.start, 9),
                "segments": [event.start, event.stop],
            }
            for event in events
        ],
    }


def lines(job: JobSeen, told: RoundFigures) -> list[str]:
    """Write as text where the time of a round went."""
    seconds = 0.0 if told.seconds is None else told.seconds
    found = [
        f"round {told.number} of job {job.number}: {seconds * 1000:.3f} ms, "
        f"{count(told.segments, 'segment')}; milliseconds of each worker:",
        "  " + " " * 9 + "".join(f"{name:>22}" for name in part_names(told)),
    ]
    for rank, cut in parts(told).items():
        found.append(f"  {job.called(rank):9}" + "".join(f"{1000 * part:22.3f}" for part in cut))
    return [*found, *wrap(f"  {meaning(told)}", 100, subsequent_indent="  ")]
