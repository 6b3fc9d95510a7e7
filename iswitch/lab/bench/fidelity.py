"""Measures how fast links may be before real time shows the processors instead of the network.

Rounds of the switch's workers in network namespaces are compared with the wire's bound, at one rate
after the other, until a round takes over a tenth longer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

from iswitch.faults.units import RATE, count
from iswitch.lab.launch.switches import SwitchFailed
from iswitch.lab.progress import Bar
from iswitch.system.interrupts import Signals, Stopped

from . import machine
from .group import BenchFailed
from .measure import measure
from .network import Build, opened
from .plan import PAPER, Plan, Setting, Size, Way
from .result import Results, wire_bound

FORMS = ("star:4", "rack:2x3")
LADDER = ("20Mbit", "50Mbit", "100Mbit", "200Mbit", "300Mbit", "500Mbit", "700Mbit", "1Gbit",
          "1500Mbit", "2Gbit", "3Gbit", "5Gbit", "7Gbit", "10Gbit")  # fmt: skip
FIRST = LADDER.index("100Mbit")
WITHIN = 1.10
SIZE = PAPER["dqn"]
SECONDS, LEAST, IN_A_ROW = 2.0, 10, 5

Look = Callable[[str, str], float]  # the median seconds of a round on a form of network at a rate


@dataclass(frozen=True)
class Rung:
    """A rate at which rounds were measured, in seconds."""

    rate: str
    median: float
    wire: float

    @property
    def ratio(self) -> float:
        """Return how many times as long as the wire's bound a round takes."""
        return self.median / self.wire


@dataclass
class Climb:
    """The rates that were tried on one form of network, in the order of rates."""

    form: str
    rungs: list[Rung]

    @property
    def highest(self) -> str | None:
        """Return the highest rate below those at which rounds take too long, if there is one."""
        found = None
        for rung in self.rungs:
            if rung.ratio > WITHIN:
                break
            found = rung.rate
        return found


def climb(form: str, look: Look) -> Climb:
    """Try rates upwards until one is too high; downwards from the first one if that is."""
    rungs: list[Rung] = []

    def fits(rate: str) -> bool:
        rungs.append(Rung(rate, look(form, rate), wire_bound(SIZE, float(RATE.parse(rate)))))
        return rungs[-1].ratio <= WITHIN

    if fits(LADDER[FIRST]):
        for rate in LADDER[FIRST + 1 :]:
            if not fits(rate):
                break
    else:
        for rate in reversed(LADDER[:FIRST]):
            if fits(rate):
                break
    rungs.sort(key=lambda rung: -rung.wire)
    return Climb(form, rungs)


def rounds(form: str, rate: str, size: Size, seconds: float = SECONDS) -> list[float]:
    """Measure rounds of the switch's workers in namespaces, in a row; return their seconds.

    Raises:
        UsageError: the network cannot be built.
        SwitchFailed, BenchFailed: a process does not start, or dies.
    """
    setting = Setting(form, rate)
    plan = Plan(
        [size], [setting], [Way("iswitch", "iswitch")], "netns",
        in_a_row=IN_A_ROW, seconds=seconds, least=LEAST,
    )  # fmt: skip
    results = Results()
    with opened(plan, setting, Build()) as groups:
        measure(plan, setting, groups, results, lambda *_: None)
    (series,) = results.series
    return series.seconds


def fidelity(as_json: bool) -> int:
    """Measure the highest rates, print them, and return the exit status."""
    where = machine.describe()
    climbs: list[Climb] = []
    status = 0
    with Signals() as signals, Bar(len(FORMS) * len(LADDER[FIRST:]), "starting") as bar:
        done = 0

        def look(form: str, rate: str) -> float:
            nonlocal done
            bar.show(done, f"{form} at {rate}/s")
            done += 1
            return median(rounds(form, rate, SIZE))

        try:
            climbs += (climb(form, look) for form in FORMS)
        except (BenchFailed, SwitchFailed) as error:
            print(f"iswitch doctor: {error}", file=sys.stderr)
            status = error.status if isinstance(error, SwitchFailed) else 1
        except Stopped as stopped:
            print(f"stopped by {stopped.name}", file=sys.stderr)
            status = 128 + stopped.signum
        signals.hold()
    print(json.dumps(as_object(climbs, where), indent=1) if as_json else as_text(climbs, where))
    return status


def as_object(climbs: list[Climb], where: dict[str, str]) -> dict[str, object]:
    """Return what was measured, for JSON: rates in bit/s, times in seconds."""
    found = [
        {
            "topology": one.form,
            "highest": None if one.highest is None else float(RATE.parse(one.highest)),
            "rates": [
                {**asdict(rung), "rate": float(RATE.parse(rung.rate)), "ratio": rung.ratio}
                for rung in one.rungs
            ],
        }
        for one in climbs
    ]
    return {"within": WITHIN, "bytes": SIZE.bytes, "machine": where, "fidelity": found}


def as_text(climbs: list[Climb], where: dict[str, str]) -> str:
    """Return what was measured as lines to read."""
    lines = [", ".join(f"{name} {what}" for name, what in where.items()), ""]
    lines.append(f"{'topology':10}{'rate':>10}{'round, ms':>12}{'wire, ms':>12}{'ratio':>8}")
    for one in climbs:
        lines += [
            f"{one.form:10}{rung.rate:>10}{rung.median * 1e3:12.2f}{rung.wire * 1e3:12.2f}"
            f"{rung.ratio:8.2f}"
            for rung in one.rungs
        ]
    lines.append("")
    for one in climbs:
        if one.highest is None:
            told = f"not even at {one.rungs[0].rate}/s"
        else:
            told = f"up to {one.highest}/s"
        lines.append(f"{one.form}: real time is within 10 % of the wire {told}.")
    lines.append(
        f"Medians of rounds of {SIZE.label} ({count(SIZE.numel, 'element')}) in network "
        "namespaces. Faster links: --world sim."
    )
    return "\n".join(lines)
