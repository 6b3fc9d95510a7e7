"""`iswitch soak`: one history with its timeline, or many with a summary."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from iswitch.core.sums.buffers import AllOrNothing
from iswitch.lab.progress import Bar
from iswitch.sim.trace import Trace
from iswitch.system.files import check_writable, read_text, write
from iswitch.system.interrupts import STATUS

from . import many, shrink
from .generate import generate
from .report import as_json, failure, timeline
from .run import History, Result, outcome
from .scenario import Scenario

SHOWN = 5  # failing seeds that are shrunk and shown


def play_one(args: argparse.Namespace, scenario: Scenario) -> int:
    """Play one history, and print its timeline."""
    check_writable(args.pcapng, args.scenario)
    trace = Trace()
    history = History(scenario, trace, AllOrNothing())
    try:
        result = outcome(history)
    except KeyboardInterrupt:
        _say_stopped(f"in the history of seed {scenario.seed}")
        return STATUS
    if args.pcapng:
        write(args.pcapng, trace.pcapng(history.network.names()))
    if args.json:
        print(json.dumps(as_json(scenario, result), indent=1))
    else:
        for line in (*scenario.lines(), *timeline(history, trace)):
            print(line)
        print(
            result.message or f"all promises held: {result.rounds} sums, {result.packets} packets"
        )
    return 1 if result.violation else 0


def play_many(args: argparse.Namespace) -> int:
    """Play many seeds on all cores, and print a summary."""
    seeds = range(args.first, args.first + args.seeds)
    results: list[Result] = []
    stopped, broken = False, 0
    try:
        with Bar(len(seeds), "histories") as bar:
            for result in many.play(seeds, args.processes):
                results.append(result)
                broken += bool(result.violation)
                done = len(results)
                bar.show(done, f"histories {done}/{len(seeds)}, {broken} failed")
    except KeyboardInterrupt:
        stopped = True
        _say_stopped(f"after {len(results)} of {len(seeds)} histories")
    failed = sorted((one for one in results if one.violation), key=lambda one: one.seed)
    report: dict[str, Any] = {
        "seeds": len(results),
        "complete": len(results) == len(seeds),
        "first": args.first,
        "sums": sum(result.rounds for result in results),
        "packets": sum(result.packets for result in results),
        "violations": [],
    }
    shown: list[Result] = []
    for result in failed[: 0 if stopped else SHOWN]:
        scenario = generate(result.seed)
        try:
            shortest, its = shrink.shrink(scenario)
        except KeyboardInterrupt:  # it takes long
            stopped = True
            _say_stopped(f"while it made the schedule of seed {result.seed} shorter")
            break
        shown.append(result)
        report["violations"].append(
            {**as_json(scenario, result), "shortest": as_json(shortest, its)}
        )
        if not args.json:
            print(*failure(scenario, result, shortest, its), sep="\n", end="\n\n")
    report["failed"] = [result.seed for result in failed]
    if args.json:
        print(json.dumps(report, indent=1))
    elif results:
        count = f"{len(failed) or 'no'} violation{'s' * (len(failed) != 1)}"
        sums, packets = report["sums"], report["packets"]
        print(f"{len(results)} histories, {sums:,} sums, {packets:,} packets: {count}")
        if more := failed[len(shown) :]:
            print("failed, too:" if shown else "failed:", *(result.seed for result in more))
    if stopped:
        return STATUS
    return 1 if failed else 0


def _say_stopped(where: str) -> None:
    print(f"iswitch soak: stopped by SIGINT {where}", file=sys.stderr)


def scenario_of(text: str) -> Scenario:
    """Read a scenario from its JSON, or from a file named as FILE or @FILE.

    Raises:
        OutsideError: the file cannot be read, or describes no scenario.
    """
    if not text.lstrip().startswith("{"):
        text = read_text(text.removeprefix("@"))
    return Scenario.from_json(text)
