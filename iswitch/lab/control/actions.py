"""The actions of `iswitch ctl`: each asks one thing of a job's switch and reports the answer."""

from __future__ import annotations

import argparse
import os
from typing import Any, NamedTuple

from iswitch.core.format.wire import KIB, Action, Threshold
from iswitch.outside import UsageError
from worker_lib import environment, naming
from worker_lib.controller import Controller

from .words import (
    left,
    member,
    member_fields,
    memory,
    memory_fields,
    missing,
    not_begun,
    prior,
    segments,
    span,
    span_fields,
    state,
    state_fields,
    waits,
)


class Answer(NamedTuple):
    """The result of an action, in words and as fields for programs."""

    line: str
    fields: dict[str, Any]


def status(controller: Controller, args: argparse.Namespace) -> Answer:
    """Show the job, and change nothing."""
    controller.look()  # else joining would make the job
    with controller.membership():
        members = controller.members()
        job = controller.look()
        has = controller.memory_of(args.job)
    if not job.contributors:
        controller.look()  # it may have ended before we joined: then our leaving ended ours
    hosts, lease = environment.hosts(os.environ), job.lease / 1000
    lines = [f"job {args.job}: {state(job)}"]
    if memory(has):
        lines.append(f"  memory: {memory(has)}")
    lines += [f"  {member(one, lease, hosts)}" for one in members]
    named = [{**member_fields(one), "silent": one.silent / 1000} for one in members]
    fields = {**state_fields(job), **memory_fields(has), "lease": lease, "members": named}
    return Answer("\n".join(lines), fields)


def jobs(controller: Controller, _: argparse.Namespace) -> Answer:
    """List the jobs of a switch, and how much memory they leave."""
    itself = controller.switch_itself()
    found = [(ack, controller.memory_of(ack.rank)) for ack in controller.jobs()]
    reserved = f"{itself.round * KIB / 2**20:,.1f} MiB of memory reserved"
    free = f"{itself.threshold * KIB / 2**20:,.1f} MiB free"
    plural = "s" * (len(found) != 1)
    whose = " with this key" * controller.keyed
    lines = [f"{len(found)} job{plural}{whose}, {reserved}, {free}"]
    for ack, has in found:
        told = f"job {ack.rank}: {state(ack)}", left(ack), memory(has)
        lines.append("; ".join(filter(None, told)))
    if itself.known:
        lines.append("the switch is drained: it takes no new jobs")
    if itself.round and not found:
        lines.append(
            "the memory is of slots that all jobs share, or of jobs with another key (--job and "
            "--key-file list these)"
        )
    if itself.contributors and not found:
        lines.append(
            "a job is here once the switch above has taken it in; the log tells if that is silent"
        )
    fields = {
        "jobs": [
            {"job": ack.rank, **state_fields(ack), **memory_fields(has)} for ack, has in found
        ],
        "total": len(found),
        "reserved": itself.round * KIB,
        "free": itself.threshold * KIB,
        "above": bool(itself.contributors),
        "drained": bool(itself.known),
    }
    return Answer("\n".join(lines), fields)


def queue(controller: Controller, _: argparse.Namespace) -> Answer:
    """List the jobs that wait for memory, and those that have it."""
    waiting = list(controller.queue())
    there = jobs(controller, _)
    lines = [f"{len(waiting)} job{'s' * (len(waiting) != 1)} waiting for memory"]
    lines += [
        f"job {ack.rank}: place {ack.round} of {ack.contributors}, needs {ack.threshold:,} KiB"
        f"{prior(ack)}"
        for ack in waiting
    ]
    named = [
        {
            "job": ack.rank,
            "place": ack.round,
            "needs": ack.threshold * KIB,
            "priority": ack.known,
        }
        for ack in waiting
    ]
    return Answer("\n".join([*lines, there.line]), {"waiting": named, **there.fields})


def join(controller: Controller, args: argparse.Namespace) -> Answer:
    """Try to join; remain a member if asked to."""
    if not args.stay:
        with controller.membership():
            job = controller.look()
        line = f"job {args.job} can be joined: {state(job)}"
    else:
        controller.join()
        job = controller.look()
        options = f"--job {args.job} --switch {controller.switch} --bind {controller.address}"
        line = (
            f"joined job {args.job} as a controller: {state(job)}\n"
            "it ends when its lease runs out, as ctl sends no heartbeats; "
            f"to end it before: iswitch ctl leave {options}"
        )
    fields = {**state_fields(job), "address": str(controller.address)}
    return Answer(line, {**fields, "stays": args.stay})


def leave(controller: Controller, args: argparse.Namespace) -> Answer:
    """End a membership that `join --stay` left behind."""
    if not args.bind[1]:
        raise UsageError("--bind needs the port that `iswitch ctl join --stay` printed")
    controller.leave()
    return Answer(f"left job {args.job}", {"address": str(controller.address)})


def seth(controller: Controller, args: argparse.Namespace) -> Answer:
    """Set H."""
    with controller.settings() as joined:
        ack = controller.request(Action.SETH, Threshold(args.threshold))
        here = len(controller.members())  # of this switch: these count in its H
    there = joined.contributors
    why = "set" if args.threshold else "automatic: every worker"
    line = f"job {args.job}: H = {ack.threshold} ({why})"
    fields: dict[str, Any] = {
        "threshold": ack.threshold,
        "automatic": not args.threshold,
        "workers": there,
    }
    if too_few := naming.too_few(ack.threshold, there):
        fields["warning"] = too_few
        line += f"; {too_few}"
    elif args.threshold and args.threshold < here:
        fields["warning"] = (
            f"of {here} contributors: in a synchronous job for Workers made with partial=True, "
            "or to go on without a dead one; where others leave calls out, rounds are mixed up"
        )
        line += f", {fields['warning']}"
    return Answer(line, fields)


def reset(controller: Controller, args: argparse.Namespace) -> Answer:
    """Clear the job, which ends a Halt."""
    with controller.settings():
        ack = controller.request(Action.RESET)
    line = f"job {args.job} was reset and goes on from round {ack.round}; "
    line += "what was under way is void (JobReset)"
    return Answer(line, {"round": ack.round})


def halt(controller: Controller, args: argparse.Namespace) -> Answer:
    """Suspend the job."""
    with controller.settings():
        ack = controller.request(Action.HALT)
    line = f"job {args.job} is halted at round {ack.round}; `iswitch ctl reset` resumes it"
    return Answer(line, {"round": ack.round})


def fbcast(controller: Controller, args: argparse.Namespace) -> Answer:
    """Complete open segments with the contributions they have."""
    with controller.membership() as joined:
        named = segments(args, joined)
        ack = controller.request(Action.FBCAST, named)
    fewest = ack.contributors
    what = f"broadcast with {fewest} or more contributions each"
    if not fewest:
        what = not_begun(named, ack) or "nothing to force"
    return Answer(f"{span(args, named)}: {what}", {**span_fields(named), "contributors": fewest})


def help_(controller: Controller, args: argparse.Namespace) -> Answer:
    """Find the missing workers, whom the switch also asks for their contributions."""
    with controller.membership() as joined:
        named = segments(args, joined)
        ack = controller.request(Action.HELP, named)
        whom, fields = missing(controller, named)
        job = controller.look()
    if fields["missing"]:
        whom = f"missing from {whom}{waits(job)}"
    else:
        whom = not_begun(named, ack) or f"nobody's contribution is missing{waits(job)}"
    fields["current"] = ack.round
    return Answer(f"{span(args, named)}: {whom}", {**span_fields(named), **fields})


ACTIONS = {
    "jobs": jobs,
    "queue": queue,
    "status": status,
    "join": join,
    "leave": leave,
    "seth": seth,
    "fbcast": fbcast,
    "help": help_,
    "halt": halt,
    "reset": reset,
}
