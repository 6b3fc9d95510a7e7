"""Puts the answers of a switch in words, and in fields for programs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from iswitch.core.format.wire import (
    HEARTBEAT,
    KIB,
    MILLION,
    NO_RANK,
    RANKS,
    Ack,
    AckJob,
    Awaited,
    JobState,
    Present,
    Segments,
    Turn,
    round_distance,
)
from iswitch.lab.options import workers
from worker_lib import environment, naming
from worker_lib.controller import Controller

TURNS: dict[int, str] = {Turn.NONE: "", Turn.HAS: ", its turn", Turn.WAITS: ", waits for its turn"}
MISSED = 2  # heartbeats that a living worker may miss, before its silence is worth telling


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
    """Return the segments as fields for programs: round, start, count."""
    return {"round": named.round, "start": named.index, "count": named.count}


def not_begun(named: Segments, ack: Ack) -> str:
    """Say where the job is, if it has not begun the round; else ""."""
    ahead = round_distance(named.round, ack.round) > 0
    return f"not begun; the job is at round {ack.round}" if ahead else ""


def state(job: AckJob) -> str:
    """Say in words how far a job is, who is in it, and what it waits for."""
    there = workers(job.contributors)
    if job.contributors < job.expected:
        there = f"{job.contributors} of {workers(job.expected)}"
    begun = "" if job.contributors else "next "
    known = f"H = {job.threshold or 'all'}, {begun}round {job.round}, {there}{prior(job)}"
    return f"{known}{waits(job)}"


def prior(job: Ack) -> str:
    """Name the priority of a job; "" if it has none."""
    return f", priority {job.known}" if job.known else ""


def memory(has: Ack | None) -> str:
    """Say in words what a job has of the switch's memory; "" if it has none."""
    if has is None or not has.threshold:
        return ""
    words = [f"{has.threshold:,} KiB"]
    if has.rank:
        words.append(f"lane {has.rank}{TURNS.get(has.known, '')}")
    if has.round:
        words.append(f"{has.round:,} slots")
    if has.contributors < MILLION:
        words.append(f"{has.contributors / MILLION:.0%} added here")
    return ", ".join(words)


def memory_fields(has: Ack | None) -> dict[str, Any]:
    """Return what `memory` says as fields for programs."""
    if has is None:
        return dict.fromkeys(("reserved", "slots", "lane", "turn", "added"))
    return {
        "reserved": has.threshold * KIB,
        "slots": has.round or None,
        "lane": has.rank or None,
        "turn": Turn(has.known).name.lower() if has.rank and has.known in TURNS else None,
        "added": has.contributors / MILLION,
    }


def waits(job: AckJob) -> str:
    """Say in words why nothing completes in a job; "" if it does."""
    if job.state == JobState.HALTED:
        return "; halted: `iswitch ctl reset` resumes it"
    if job.state == JobState.AWAITING_RESET:
        return "; nothing completes until the switch above names the round in which all resume"
    if job.state == JobState.GATHERING and job.contributors < job.expected:
        return f"; nothing completes until all {job.expected} have joined"
    if job.threshold > job.contributors > 0:
        return f"; nothing completes until {job.threshold} workers are there"
    return ""


def left(job: AckJob) -> str:
    """Say what a job without workers is still listed for; "" if it has some."""
    if job.state != JobState.DORMANT:
        return ""
    return f"dormant: without workers, it is forgotten {job.lease / 1000:g} s after the last left"


def state_fields(job: AckJob) -> dict[str, Any]:
    """Return what `state` says as fields for programs."""
    return {
        "threshold": job.threshold,
        "round": job.round,
        "workers": job.contributors,
        "expected": job.expected,
        "state": JobState(job.state).name.lower(),
        "halted": job.state == JobState.HALTED,
        "priority": job.known,
    }


def member(one: Present, lease: float, hosts: Mapping[str, str]) -> str:
    """Describe a member: a worker by rank and place, or a switch below; and its silence, if any.

    Args:
        one: the member.
        lease: seconds of silence after which a member is lost.
        hosts: names of hosts by address.
    """
    who = "a switch" if one.rank == NO_RANK else naming.ranked(one.rank)
    silent = one.silent / 1000
    odd = ""
    if silent >= lease:
        odd = f": lost, silent for {silent:.0f} s"
    elif silent > MISSED * HEARTBEAT:
        odd = f": silent for {silent:.0f} s, lost after {lease:g} s"
    return f"{who} ({naming.place(one.host, one.port, hosts)}){odd}"


def member_fields(member: Awaited | Present) -> dict[str, Any]:
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
