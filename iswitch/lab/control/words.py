"""What a switch's answer says, in words and as fields for programs."""

from __future__ import annotations

import argparse
import os
from typing import Any

from iswitch.core.format.wire import NO_RANK, RANKS, Ack, Awaited, Segments, round_distance
from iswitch.lab.options import workers
from worker_lib import environment, naming
from worker_lib.controller import Controller


def segments(args: argparse.Namespace, joined: Ack) -> Segments:
    """Read the segments on the command line; the Ack of the Join says which round is current."""
    round_ = joined.round if args.round is None else args.round
    return Segments(round_, args.start, args.count)


def span(args: argparse.Namespace, named: Segments) -> str:
    """Name the segments in words."""
    last = named.index + named.count - 1
    which = f"segments {named.index}-{last}" if named.count > 1 else f"segment {named.index}"
    return f"job {args.job}, round {named.round}, {which}"


def span_fields(named: Segments) -> dict[str, int]:
    """Name the segments for programs."""
    return {"round": named.round, "start": named.index, "count": named.count}


def not_begun(named: Segments, ack: Ack) -> str:
    """Say where the job is, if it has not begun the round; else ""."""
    ahead = round_distance(named.round, ack.round) > 0
    return f"not begun; the job is at round {ack.round}" if ahead else ""


def state(ack: Ack) -> str:
    """Say in words what the Ack of a Join tells of the job."""
    return f"H = {ack.threshold}, round {ack.round}, {workers(ack.contributors)}"


def too_few(ack: Ack) -> str:
    """Say in words that H exceeds the number of workers; else ""."""
    if ack.threshold <= ack.contributors or not ack.contributors:
        return ""
    return f"; nothing completes until {ack.threshold} workers are there"


def state_fields(ack: Ack) -> dict[str, int]:
    """Tell what the Ack of a Join tells of the job, for programs."""
    return {"threshold": ack.threshold, "round": ack.round, "workers": ack.contributors}


def member_fields(member: Awaited) -> dict[str, Any]:
    """Describe a member for programs; a switch or a worker without a rank has rank None."""
    kind = "switch" if member.rank == NO_RANK else "worker"
    rank = member.rank if member.rank < RANKS else None
    return {"type": kind, "rank": rank, "host": member.host, "port": member.port}


def missing(controller: Controller, named: Segments) -> tuple[str, dict[str, Any]]:
    """Find the members of the tree whose contributions are missing, in words and fields."""
    total, awaited = controller.for_whom(named)
    found = [member_fields(one) for one in awaited]
    fields = {"missing": total, "missing_ranks": naming.ranks(awaited), "missing_workers": found}
    return naming.workers(awaited, total, environment.hosts(os.environ)), fields
