"""Gives an operator's orders to switches, and prints what they answered."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from ipaddress import AddressValueError, IPv4Address
from typing import Any

from iswitch.outside import UsageError
from iswitch.watch.places import titled
from iswitch.watch.reader import Observer, Snapshot


def order(args: argparse.Namespace) -> int:
    """Drain switches, or end a job there; return the exit status.

    Raises:
        OutsideError: options exclude each other, or there is no such switch.
    """
    given = asked(args)
    with closing(Observer(args.place)) as observer:
        if others := observer.others():
            named = ", ".join(map(titled, [observer.place, *others]))
            raise UsageError(
                f"{len(others) + 1} networks of yours run here; name the one that {args.action} is "
                f"for: {named}"
            )
        refuse_own(args, observer)
        answers = observer.order(given, args.name)
        if not answers:
            raise UsageError(f"no switch can be watched in {observer.place}; name its socket")
        failed = {name: told for name, told in answers.items() if told is None or "error" in told}
        done = {name: told for name, told in answers.items() if told and name not in failed}
        nobody = args.action == "evict" and not any(told["ending"] for told in done.values())
        read = observer.read() if nobody else {}
        above = observer.network().parents.get(args.name) if args.name else None
    said = {
        name: words(args, told, has(read.get(name), args), above) for name, told in done.items()
    }
    for name, told in failed.items():
        why = "does not answer; is it up?" if told is None else told["error"]
        print(f"iswitch ctl: switch {name}: {why}", file=sys.stderr)
    if args.json:
        for name, line in said.items() if nobody else ():
            print(f"iswitch ctl: switch {name}: {line}", file=sys.stderr)
        print(json.dumps({"action": args.action, "switches": done}))
    else:
        for name, line in said.items():
            print(f"{name}: {line}")
    return 1 if failed or nobody else 0


def refuse_own(args: argparse.Namespace, observer: Observer) -> None:
    """Refuse to send workers to the switch that sends them away.

    Raises:
        UsageError: `--move-to` is the address of a switch that gets the order.
    """
    if args.move_to is None:
        return
    there = "{}:{}".format(*args.move_to)
    for name, snapshot in observer.read().items():
        if snapshot and args.name in (None, name) and snapshot["listening"] == there:
            raise UsageError(f"--move-to {there} is switch {name} itself; name another one")


def asked(args: argparse.Namespace) -> dict[str, Any]:
    """Make the order that the options describe.

    Raises:
        UsageError: options exclude each other.
    """
    to = args.move_to
    if to is not None:
        try:
            IPv4Address(to[0])
        except AddressValueError:
            raise UsageError(
                f"--move-to {to[0]}: members are told an address, not a name; write IP:PORT"
            ) from None
        if not to[1]:
            raise UsageError("--move-to needs the port at which the switch listens")
    if args.action == "evict":
        return {"drain": None, "jobs": [args.job], "to": to, "grace": args.grace}
    if args.end and (args.evict or to is not None):
        raise UsageError("--end takes jobs again; leave --evict and --move-to out")
    every = None if args.evict else ()
    return {"drain": not args.end, "jobs": every, "to": to, "grace": args.grace}


def has(snapshot: Snapshot | None, args: argparse.Namespace) -> bool:
    """Return whether a switch knows the job that is meant; without a snapshot: no."""
    return any(job["job"] == args.job for job in snapshot["jobs"]) if snapshot else False


def words(
    args: argparse.Namespace, told: dict[str, Any], dormant: bool = False, above: str | None = None
) -> str:
    """Say what a switch does now.

    Args:
        args: the order.
        told: the switch's answer.
        dormant: whether it knows a job that has nobody to be told.
        above: the switch above it, which got no order; None: none is, or it got the order, too.
    """
    ending = f"ends {_jobs(told['ending'])}" if told["ending"] else ""
    if ending and above:
        ending += (
            f", of which only members below {args.name} are told (leave --name out to tell all)"
        )
    sent_to = "workers are sent to {}:{}".format(*args.move_to) if args.move_to else ""
    if args.action == "evict":
        if told["waiting"]:
            return f"job {args.job} only waits for memory; nothing of it is here to end"
        if dormant and not ending:
            return f"job {args.job} has no workers any more; the switch forgets it by itself"
        if not ending:
            return f"has no job {args.job} with workers"
        return "; ".join(filter(None, [ending, sent_to]))
    if args.end:
        return "takes new jobs"
    wait = "waits" if len(told["waiting"]) == 1 else "wait"
    sent = f"{_jobs(told['waiting'])} no longer {wait}" if told["waiting"] else ""
    return "; ".join(filter(None, ["takes no new jobs", sent, ending, sent_to]))


def _jobs(numbers: list[int]) -> str:
    return f"job{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers))}"
