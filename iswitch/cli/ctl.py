"""Command a job at a running switch: status, threshold, reset, halt, partial broadcast.

The command is a controller: a member that contributes nothing and counts in no H. It joins the job,
asks for one thing, prints what the switch answered, and leaves. What it set, an H or a Halt, lasts
until the job's last member leaves; so it sets nothing in a job without workers. In an asynchronous
job, read "version" for "round".

  iswitch ctl jobs                              which jobs are there?
  iswitch ctl status --job 7                    is it alive, how far, and who is in it?
  iswitch ctl seth 3 --job 7                    three contributions complete a segment
  iswitch ctl help current 0 100 --job 7        whose contributions are missing?
  iswitch ctl fbcast current 0 100 --job 7      send what these segments hold, partial as it is

Exit status: 0 done, 1 the switch refused or did not answer, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from iswitch.lab.options import host_port, quantity, workers
from iswitch.outside import UsageError

if TYPE_CHECKING:
    from iswitch.core.format.wire import Ack, Awaited, Segments
    from worker_lib.controller import Controller


class Report(NamedTuple):
    """What an action found: for people, and for programs."""

    line: str
    fields: dict[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add an action each, with its options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, command in COMMANDS.items():
        action = actions.add_parser(name, help=command.help, description=command.help)
        command.configure(action)
        action.add_argument(
            "--switch",
            type=host_port,
            default="127.0.0.1:26963",
            metavar="HOST:PORT",
            help="where the switch listens (default: %(default)s)",
        )
        job = number("a job", 0xFFFF)
        of_all = name == "jobs"
        action.add_argument(
            "--job",
            type=job,
            required=not of_all,
            default=0,
            metavar="N",
            help="its number" if not of_all else "list jobs that have its key (default: 0)",
        )
        action.add_argument(
            "--bind",
            type=host_port,
            default=":0",
            required=name == "leave",
            metavar="HOST:PORT",
            help="local address, by which the switch knows this member (default: any)",
        )
        action.add_argument(
            "--timeout",
            type=quantity(),
            default=5.0,
            metavar="SECONDS",
            help="how long to wait for an answer (default: %(default)s)",
        )
        action.add_argument(
            "--key-file",
            metavar="FILE",
            help="the key of a keyed job (default: ISWITCH_KEY or ISWITCH_KEY_FILE)",
        )
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Ask the switch, tell what it answered."""
    from worker_lib.controller import Controller, NoSuchJob, NoWorkers
    from worker_lib.errors import Refused, WorkerError

    if not args.switch[1]:
        raise UsageError("--switch needs the port the switch listens at, such as 127.0.0.1:26963")
    where = "{}:{}".format(*args.switch)
    head = {"action": args.action, "switch": where, "job": args.job}
    try:
        controller = Controller(
            args.switch, args.job, timeout=args.timeout, bind=args.bind, key=key(args.key_file)
        )
    except OSError as error:
        local = "{}:{}".format(*args.bind)
        raise UsageError(
            f"cannot reach {where} from {local}: {error.strerror}; is --switch an address of this "
            "network, and --bind a free one of this machine?"
        ) from None
    try:
        with controller:
            report = COMMANDS[args.action].run(controller, args)
    except WorkerError as error:
        status = "NO_WORKERS" if isinstance(error, NoWorkers) else "NO_ANSWER"
        if isinstance(error, NoSuchJob):
            status = "NO_SUCH_JOB"
        if isinstance(error, Refused):
            status = error.status.name
        if args.json:
            print(json.dumps({**head, "status": status, "message": str(error)}))
        else:
            print(f"iswitch ctl: {error}", file=sys.stderr)
        return 1
    print(json.dumps({**head, "status": "OK", **report.fields}) if args.json else report.line)
    return 0


def key(path: str | None) -> bytes | None:
    """The key from the file named, or from the environment."""
    from iswitch.system.keyfiles import key_in, read_key

    return read_key(path) if path else key_in(os.environ)


# The actions


def status(controller: Controller, args: argparse.Namespace) -> Report:
    """Look, and change nothing."""
    from iswitch.core.format.wire import ROUND_MASK, Action, Segments, Status
    from worker_lib import environment, naming
    from worker_lib.errors import Refused

    halted = False
    controller.look()  # of a job that is none nobody becomes one
    with controller.membership() as ack:
        members = controller.members()
        # Only a refusal shows a Halt. Help for a round that cannot have begun asks nobody.
        beyond = Segments((ack.round + 2) & ROUND_MASK, 0, 1)
        try:
            controller.request(Action.HELP, beyond)
        except Refused as refused:
            halted = refused.status is Status.HALTED
    if not ack.contributors:
        controller.look()  # it may have ended before we joined: then our leaving ended ours
    line = f"job {args.job}: {state(ack)}{too_few(ack)}"
    if halted:
        line += "; halted: `iswitch ctl reset` resumes it"
    hosts = environment.hosts(os.environ)
    line += "".join(f"\n  {naming.member(member, hosts)}" for member in members)
    named = [member_fields(member) for member in members]
    return Report(line, {**state_fields(ack), "halted": halted, "members": named})


def member_fields(member: Awaited) -> dict[str, Any]:
    """A member for programs: the rank is None of a worker without one so far, and of a switch."""
    from iswitch.core.format.wire import NO_RANK, RANKS

    kind = "switch" if member.rank == NO_RANK else "worker"
    rank = member.rank if member.rank < RANKS else None
    return {"type": kind, "rank": rank, "host": member.host, "port": member.port}


def jobs(controller: Controller, _: argparse.Namespace) -> Report:
    """List the jobs of a switch, and how much memory they leave."""
    from iswitch.core.format.wire import KIB

    itself = controller.switch_itself()
    found = list(controller.jobs())
    memory = f"{itself.round * KIB / 2**20:,.1f} MiB of memory reserved"
    free = f"{itself.threshold * KIB / 2**20:,.1f} MiB free"
    plural = "s" * (len(found) != 1)
    whose = " with this key" * controller.keyed
    lines = [f"{len(found)} job{plural}{whose}, {memory}, {free}"]
    lines += [f"job {ack.rank}: {state(ack)}{too_few(ack)}" for ack in found]
    if itself.round and not found:
        lines.append("jobs with another key are not listed; --job and --key-file name one")
    fields = {
        "jobs": [{"job": ack.rank, **state_fields(ack)} for ack in found],
        "total": len(found),
        "reserved": itself.round * KIB,
        "free": itself.threshold * KIB,
        "above": bool(itself.contributors),
    }
    return Report("\n".join(lines), fields)


def join(controller: Controller, args: argparse.Namespace) -> Report:
    """Try whether one can join; stay if asked to."""
    if not args.stay:
        with controller.membership() as ack:
            pass
        line = f"job {args.job} can be joined: {state(ack)}"
    else:
        ack = controller.join()
        options = f"--job {args.job} --switch {controller.switch} --bind {controller.address}"
        line = (
            f"joined job {args.job} as a controller: {state(ack)}\n"
            "it ends when its lease runs out, as ctl sends no heartbeats; "
            f"to end it before: iswitch ctl leave {options}"
        )
    fields = {**state_fields(ack), "address": str(controller.address)}
    return Report(line, {**fields, "stays": args.stay})


def leave(controller: Controller, args: argparse.Namespace) -> Report:
    """End a membership that `join --stay` left behind."""
    if not args.bind[1]:
        raise UsageError("--bind needs the port that `iswitch ctl join --stay` printed")
    controller.leave()
    return Report(f"left job {args.job}", {"address": str(controller.address)})


def seth(controller: Controller, args: argparse.Namespace) -> Report:
    """Set H."""
    from iswitch.core.format.wire import Action, Threshold

    with controller.settings() as joined:
        ack = controller.request(Action.SETH, Threshold(args.threshold))
        here = len(controller.members())  # of this switch: these count in its H
    there = joined.contributors
    why = "set" if args.threshold else "automatic: every worker"
    line = f"job {args.job}: H = {ack.threshold} ({why})"
    if ack.threshold > there:
        line += (
            f"; with {workers(there)}, nothing completes in a synchronous job until "
            f"{ack.threshold} are there"
        )
    elif args.threshold and args.threshold < here:
        line += (
            f", of {here} contributors: in a synchronous job for Workers made with partial=True, "
            "or to go on without a dead one; where others leave calls out, rounds are mixed up"
        )
    fields = {"threshold": ack.threshold, "automatic": not args.threshold, "workers": there}
    return Report(line, fields)


def reset(controller: Controller, args: argparse.Namespace) -> Report:
    """Clear the job; ends a Halt."""
    from iswitch.core.format.wire import Action

    with controller.settings():
        ack = controller.request(Action.RESET)
    line = f"job {args.job} was reset and goes on from round {ack.round}; "
    line += "what was under way is void (JobReset)"
    return Report(line, {"round": ack.round})


def halt(controller: Controller, args: argparse.Namespace) -> Report:
    """Suspend the job."""
    from iswitch.core.format.wire import Action

    with controller.settings():
        ack = controller.request(Action.HALT)
    line = f"job {args.job} is halted at round {ack.round}; `iswitch ctl reset` resumes it"
    return Report(line, {"round": ack.round})


def fbcast(controller: Controller, args: argparse.Namespace) -> Report:
    """Complete open segments as they are."""
    from iswitch.core.format.wire import Action

    with controller.membership() as joined:
        named = segments(args, joined)
        ack = controller.request(Action.FBCAST, named)
    fewest = ack.contributors
    what = f"broadcast with {fewest} or more contributions each"
    if not fewest:
        what = not_begun(named, ack) or "nothing to force"
    return Report(f"{span(args, named)}: {what}", {**span_fields(named), "contributors": fewest})


def help_(controller: Controller, args: argparse.Namespace) -> Report:
    """Ask who is missing; the switch asks those in turn."""
    from iswitch.core.format.wire import Action

    with controller.membership() as joined:
        named = segments(args, joined)
        ack = controller.request(Action.HELP, named)
        whom, fields = missing(controller, named)
    if not fields["missing"]:
        whom = not_begun(named, ack) or f"nobody's contribution is missing{too_few(joined)}"
    else:
        whom = f"missing from {whom}"
    fields["current"] = ack.round
    return Report(f"{span(args, named)}: {whom}", {**span_fields(named), **fields})


def missing(controller: Controller, named: Segments) -> tuple[str, dict[str, Any]]:
    """Whose contributions to these segments are missing in the whole tree, in words and fields."""
    from worker_lib import environment, naming

    total, awaited = controller.for_whom(named)
    found = [member_fields(one) for one in awaited]
    fields = {"missing": total, "missing_ranks": naming.ranks(awaited), "missing_workers": found}
    return naming.workers(awaited, total, environment.hosts(os.environ)), fields


# Arguments, and words for what an Ack says


def number(what: str, most: int, least: int = 0) -> Callable[[str], int]:
    """An argparse type: a decimal number from `least` to `most`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: {what} is a number {least}..{most}")
        return int(text)

    return parse


def round_number(text: str) -> int | None:
    """An argparse type: a round; None: the current one."""
    return None if text == "current" else number("a round, if not `current`,", 0xFFFFFFFF)(text)


def segments(args: argparse.Namespace, joined: Ack) -> Segments:
    """The segments named on the command line; the Ack of the Join says which round is current."""
    from iswitch.core.format.wire import Segments

    round_ = joined.round if args.round is None else args.round
    return Segments(round_, args.start, args.count)


def span(args: argparse.Namespace, named: Segments) -> str:
    """The same in words."""
    last = named.index + named.count - 1
    which = f"segments {named.index}-{last}" if named.count > 1 else f"segment {named.index}"
    return f"job {args.job}, round {named.round}, {which}"


def span_fields(named: Segments) -> dict[str, int]:
    """The same for programs."""
    return {"round": named.round, "start": named.index, "count": named.count}


def not_begun(named: Segments, ack: Ack) -> str:
    """Where the job is, if it has not come to the round; else nothing."""
    from iswitch.core.format.wire import round_distance

    ahead = round_distance(named.round, ack.round) > 0
    return f"not begun; the job is at round {ack.round}" if ahead else ""


def state(ack: Ack) -> str:
    """What the Ack of a Join says of the job, in words."""
    return f"H = {ack.threshold}, round {ack.round}, {workers(ack.contributors)}"


def too_few(ack: Ack) -> str:
    """In words, that H is more than the workers that are there."""
    if ack.threshold <= ack.contributors or not ack.contributors:
        return ""
    return f"; nothing completes until {ack.threshold} workers are there"


def state_fields(ack: Ack) -> dict[str, int]:
    """The same for programs."""
    return {"threshold": ack.threshold, "round": ack.round, "workers": ack.contributors}


def _stay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stay",
        action="store_true",
        help="remain a member until `iswitch ctl leave`, or until the lease runs out: no "
        "heartbeats are sent",
    )


def _threshold(parser: argparse.ArgumentParser) -> None:
    what = "contributions that complete a segment; 0: every worker's"
    parser.add_argument("threshold", type=number("H", 0xFFFFFFFF), metavar="H", help=what)


def _segments(parser: argparse.ArgumentParser) -> None:
    index = number("a segment", 0xFFFFFFFF)
    which = "its number, or `current`"
    parser.add_argument("round", type=round_number, metavar="ROUND", help=which)
    parser.add_argument("start", type=index, metavar="START", help="first segment")
    parser.add_argument(
        "count",
        type=number("COUNT", 0xFFFFFFFF, 1),
        nargs="?",
        default=1,
        metavar="COUNT",
        help="how many segments (default: 1)",
    )


@dataclass(frozen=True)
class Command:
    """An action: what it does, what does it, what it takes."""

    help: str
    run: Callable[[Controller, argparse.Namespace], Report]
    configure: Callable[[argparse.ArgumentParser], None] = lambda _: None


COMMANDS = {
    "jobs": Command("list the jobs of a switch, and its memory", jobs),
    "status": Command("show H in force, round, workers, who they are, halted or not", status),
    "join": Command("try whether the job can be joined", join, _stay),
    "leave": Command("end a membership that `join --stay` left at --bind", leave),
    "seth": Command("set H, the contributions that complete a segment", seth, _threshold),
    "fbcast": Command("broadcast segments now, partial as they are", fbcast, _segments),
    "help": Command("show whose contributions segments wait for, and ask these", help_, _segments),
    "halt": Command("suspend the job on all workers", halt),
    "reset": Command("clear the job's buffers and end a halt", reset),
}
