"""Try random histories of faults in a simulated network; sums must be exact in all of them.

Every seed is a network, jobs, and what happens to them. With --seed or --scenario one history is
played and its timeline printed. Ctrl-C ends it with what was found so far. Exit status: 0 all
promises held, 1 one was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from iswitch.lab.options import check_writable
from iswitch.outside import UsageError
from iswitch.system.files import read_text, write
from iswitch.system.interrupts import STATUS

if TYPE_CHECKING:
    from iswitch.lab.soak.run import Result
    from iswitch.lab.soak.scenario import Scenario

DIGITS = 12  # of a number, at most
SHOWN = 5  # failing seeds that are shrunk and shown


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", type=_count, default=200, metavar="N", help="seeds 0..N-1 (200)")
    which.add_argument("--seed", type=_number, metavar="N", help="one seed, with its timeline")
    which.add_argument(
        "--scenario",
        metavar="JSON|FILE",
        help="one history as a failure prints it, or a file with it, with its timeline",
    )
    parser.add_argument(
        "--first", type=_number, default=0, metavar="N", help="the first of the seeds (0)"
    )
    parser.add_argument(
        "--processes", type=_count, default=os.cpu_count() or 1, metavar="N", help="all cores"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--pcapng", metavar="FILE", help="write what one history sent, to be opened in Wireshark"
    )


def run(args: argparse.Namespace) -> int:
    """Play and report."""
    from iswitch.lab.soak.generate import generate
    from iswitch.lab.soak.scenario import Scenario

    if args.seed is not None:
        return play_one(args, generate(args.seed))
    if args.scenario is not None:
        return play_one(args, Scenario.from_json(_text(args.scenario)))
    if args.pcapng:
        raise UsageError("--pcapng holds one history; name it with --seed or --scenario")
    return play_many(args)


def play_one(args: argparse.Namespace, scenario: Scenario) -> int:
    """One history, with its timeline."""
    from iswitch.core.sums.buffers import AllOrNothing
    from iswitch.lab.soak.report import as_json, timeline
    from iswitch.lab.soak.run import History, outcome
    from iswitch.sim.trace import Trace

    check_writable(args.pcapng, args.scenario)
    trace = Trace()
    history = History(scenario, trace, AllOrNothing())
    try:
        result = outcome(history)
    except KeyboardInterrupt:
        _say_stopped(f"in the history of seed {scenario.seed}")
        raise
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
    """Many seeds, on all cores."""
    from iswitch.lab.soak.generate import generate
    from iswitch.lab.soak.many import play
    from iswitch.lab.soak.report import as_json, failure
    from iswitch.lab.soak.shrink import shrink

    seeds = range(args.first, args.first + args.seeds)
    results: list[Result] = []
    stopped = False
    try:
        with Ticker(len(seeds)) as tick:
            for result in play(seeds, args.processes):
                results.append(result)
                tick(bool(result.violation))
    except KeyboardInterrupt:
        stopped = True
        _say_stopped(f"after {len(results)} of {len(seeds)} histories")
    failed = sorted((r for r in results if r.violation), key=lambda result: result.seed)
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
            shortest, its = shrink(scenario)
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


class Ticker:
    """A progress bar on a terminal; each call is one history done."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("histories"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]} failed"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._bar.add_task("", total=total, failed=0)
        self._failed = 0

    def __enter__(self) -> Ticker:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, failed: bool) -> None:
        """One more is done."""
        self._failed += failed
        self._bar.update(self._task, advance=1, failed=self._failed)


def _text(scenario: str) -> str:
    """The text of a scenario, or of the file (@FILE does as well) that holds it.

    Raises:
        OutsideError: it cannot be read.
    """
    if scenario.lstrip().startswith("{"):
        return scenario
    return read_text(scenario.removeprefix("@"))


def _number(text: str) -> int:
    return _whole(text, 0)


def _count(text: str) -> int:
    return _whole(text, 1)


def _whole(text: str, least: int) -> int:
    if not text.isdecimal() or len(text) > DIGITS or int(text) < least:
        limits = f"{least} or more, of {DIGITS} digits at most"
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {limits}")
    return int(text)
