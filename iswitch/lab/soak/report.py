"""Reports the findings of a soak for people and for programs."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Any

from iswitch.sim.trace import SENT, Trace

from .run import History, Result
from .scenario import Scenario


def timeline(history: History, trace: Trace) -> list[str]:
    """List the events of a history, a line each: packets delivered or lost, and faults.

    The sending of a packet is left out, since a later line says what became of it.
    """
    shown = Trace()
    shown.records = [record for record in trace.records if record.what != SENT]
    return shown.lines(history.network.names())


def replay(scenario: Scenario) -> str:
    """Write the command that plays a scenario again."""
    return f"iswitch soak --scenario {shlex.quote(scenario.to_json())}"


def failure(scenario: Scenario, result: Result, shortest: Scenario, its: Result) -> list[str]:
    """Describe a failing seed, and say how to see it fail.

    Args:
        scenario: scenario of the seed.
        result: result of that scenario.
        shortest: the shortest scenario that fails like it.
        its: the result of the shortest.
    """
    lines = [f"seed {scenario.seed} breaks a promise after {result.time * 1000:.1f} ms:"]
    lines += [f"  {result.message}", "the shortest schedule found that breaks it, too:"]
    lines += [f"  {line}" for line in shortest.lines()]
    lines += [f"  {its.message}", "play it again, with a timeline:", f"  {replay(shortest)}"]
    return [*lines, f"or as it was: iswitch soak --seed {scenario.seed}"]


def as_json(scenario: Scenario, result: Result) -> dict[str, Any]:
    """Describe one history for JSON."""
    return {
        "seed": scenario.seed,
        "violation": result.violation or None,
        "message": result.message,
        "time": result.time,
        "rounds": result.rounds,
        "packets": result.packets,
        "scenario": asdict(scenario),
    }
