"""Repeats the comparisons of the paper (Li et al., ISCA 2019) on emulated hosts and links.

The paper trains on machines with links of 10 Gbit/s, around switches with NetFPGAs. Here four
workers are around one switch, and 6, 9 or 12 workers are in racks of three. The links are slow, so
that they are the limit, not the CPU that all processes share; `iswitch paper` has the paper's rate,
in virtual time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .plan import ASYNC, Plan, Setting, Size, Way
from .report import ms

if TYPE_CHECKING:
    from .result import Results, Series

CLAIMED = {"synchronous": 3.66, "asynchronous": 3.71}  # speedups over ps and ring, at most
CLAIMED_SHARE = 0.832  # of an iteration, spent on communication, at most
RATES = ("100Mbit", "1Gbit")
WORKERS = (4, 6, 9, 12)
SWITCH, RING, SERVER = Way("iswitch", "iswitch"), Way("ring", "ring"), Way("ps", "ps")
SWITCH_ASYNC, SERVER_ASYNC = Way("iswitch async", ASYNC), Way("ps async", "ps", {"tau": inf})
SYNCHRONOUS = (SWITCH, SERVER, RING)
ASYNCHRONOUS = (SWITCH_ASYNC, SERVER_ASYNC)  # of one switch
FREE = 7  # iterations without a common start, at a time; four intervals count
HEAD = (
    "gradient", "iswitch, ms", "ps, ms", "ring, ms", "over ps", "over ring", "communication",
    "iswitch async, ms", "ps async, ms", "over ps async",
)  # fmt: skip
NOTE = (
    "Times of an iteration (compute, aggregate, update), medians; of an asynchronous one: "
    "the time for as many gradients as there are workers. Speedups: medians of the ratios of one "
    "turn's. Communication: the largest share of an iteration that is neither computing nor "
    "updating, of ps and ring."
)
EMULATED = (
    "Emulated: the hosts and switches (network namespaces that share this machine's cores), the "
    "links (veth, their rate kept by tbf), and the computing of gradients (workers sleep for as "
    "long as it took on one core: {computing}). Real: every packet, every sum, every update. The "
    "parameter server has a host of its own. Switches add nothing for ps and ring: they are "
    "bridges of the kernel's. The paper's asynchronous speedup is of the time to a return, to "
    "which fresher gradients contribute; the one here is of iterations alone."
)


def settings(workers: Sequence[int], rates: Sequence[str]) -> list[Setting]:
    """Choose the networks: a star for up to five workers, else racks of three.

    Raises:
        ValueError: a number of workers above five is no multiple of three.
    """
    if wrong := [n for n in workers if n > 5 and n % 3]:
        raise ValueError(f"{wrong[0]} workers are not three in each rack; take 6, 9, 12 and so on")
    forms = [f"star:{n}" if n <= 5 else f"rack:{n // 3}x3" for n in workers]
    return [Setting(form, rate) for rate in rates for form in forms]


def plan(
    sizes: Sequence[Size], workers: Sequence[int], rates: Sequence[str], world: str, **more: float
) -> Plan:
    """Make the paper's plan; asynchronous strategies only where there is one switch.

    Args:
        sizes: the gradients.
        workers: the numbers of workers.
        rates: rates of the links, as text.
        world: world to measure in.
        more: other fields of the plan.
    """
    return Plan(
        sizes,
        settings(workers, rates),
        (*SYNCHRONOUS, *ASYNCHRONOUS),
        world,
        least=3,
        warmup=0,
        free=FREE,
        **more,  # type: ignore[arg-type]
    )


class Comparison(NamedTuple):
    """A gradient on a network: seconds of an iteration by strategy, and speedups of the switch."""

    size: Size
    setting: Setting
    workers: int
    seconds: dict[str, float]
    over: dict[str, float]  # ps, ring, ps async
    communication: float  # the largest share, of ps and ring

    def line(self) -> list[str]:
        """Make a line below HEAD."""
        shown = [self.size.label]
        shown += [ms(self.seconds[w.label]) if w.label in self.seconds else "" for w in SYNCHRONOUS]
        shown += [times(self.over.get(w.label)) for w in SYNCHRONOUS[1:]]
        shown.append(f"{100 * self.communication:.0f} %")
        shown += [
            ms(self.seconds[w.label]) if w.label in self.seconds else "" for w in ASYNCHRONOUS
        ]
        return [*shown, times(self.over.get(SERVER_ASYNC.label))]

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON, seconds and ratios by strategy."""
        return {
            "size": self.size.label,
            "topology": self.setting.form,
            "rate": self.setting.rate,
            "workers": self.workers,
            "iteration": self.seconds,
            "speedup_over": self.over,
            "communication": self.communication,
        }


def times(ratio: float | None) -> str:
    """Write a speedup as text."""
    return "" if ratio is None else f"{ratio:.2f}x"


def compare(results: Results) -> list[Comparison]:
    """Compare the switch with every strategy that was measured beside it."""
    found = []
    for cell in results.cells():
        by_label = {one.way.label: one for one in cell}
        over = {}
        for first, others in ((SWITCH, SYNCHRONOUS[1:]), (SWITCH_ASYNC, ASYNCHRONOUS[1:])):
            for other in others:
                if first.label in by_label and other.label in by_label:
                    pair = by_label[other.label], by_label[first.label]
                    over[other.label] = speedup(*pair)
        if over:
            one = cell[0]
            seconds = {label: median(its) for label, its in by_label.items()}
            shares = [communication(by_label[w.label]) for w in SYNCHRONOUS[1:] if w.label in over]
            share = max(shares, default=0.0)
            found.append(Comparison(one.size, one.setting, one.workers, seconds, over, share))
    return found


def median(one: Series) -> float:
    """Take the median seconds of an iteration."""
    return float(np.median([r.iteration for r in one.iterations]))


def speedup(slow: Series, fast: Series) -> float:
    """Compute the speedup: the median ratio of two iterations in one turn."""
    pairs = zip(slow.iterations, fast.iterations, strict=False)
    return float(np.median([a.iteration / b.iteration for a, b in pairs]))


def communication(one: Series) -> float:
    """Compute the share of aggregation in an iteration."""
    return float(np.median([r.aggregate / r.iteration for r in one.iterations]))


def conditions(plan: Plan) -> str:
    """Say what is emulated."""
    took = {size: size.compute if plan.compute is None else plan.compute for size in plan.sizes}
    shown = ", ".join(f"{size.label}: {ms(t or 0.0)} ms" for size, t in took.items())
    return EMULATED.format(computing=shown)


def as_json(plan: Plan, found: Sequence[Comparison]) -> dict[str, Any]:
    """Return the comparisons, the paper's headlines and the computing times, for JSON."""
    computing = {
        size.label: {"seconds": size.compute if plan.compute is None else plan.compute}
        for size in plan.sizes
    }
    claimed = {**CLAIMED, "communication": CLAIMED_SHARE}
    comparisons = [one.as_json() for one in found]
    return {"claimed": claimed, "computing": computing, "comparisons": comparisons}


def headlines(found: Sequence[Comparison]) -> list[str]:
    """Name the largest speedups at each rate, beside those of the paper."""
    lines = []
    for rate in dict.fromkeys(one.setting.rate for one in found):
        some = [one for one in found if one.setting.rate == rate]
        parts = []
        for label, kind in (("ps", "synchronous"), ("ring", "synchronous"),
                            ("ps async", "asynchronous")):  # fmt: skip
            ratios = [one.over[label] for one in some if label in one.over]
            if ratios:
                parts.append(f"{max(ratios):.2f}x over {label} (paper: up to {CLAIMED[kind]}x)")
        share = max(one.communication for one in some)
        parts.append(f"{share:.0%} communication (paper: {CLAIMED_SHARE:.0%})")
        lines.append(f"At {rate}/s, up to {', '.join(parts)}.".replace("%", " %"))
    return lines


def tables(found: Sequence[Comparison]) -> Iterator[tuple[str, list[list[str]]]]:
    """Make, for each network, its name and the lines below HEAD."""
    for setting in dict.fromkeys(one.setting for one in found):
        some = [one for one in found if one.setting == setting]
        yield f"{some[0].workers} workers, {setting.text}", [one.line() for one in some]
