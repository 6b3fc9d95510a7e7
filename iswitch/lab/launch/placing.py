"""`iswitch place`: reads what there is to place, places it, and tells where and how fast."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from importlib.util import find_spec
from itertools import groupby
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from iswitch.faults.units import count
from iswitch.lab.options import check_picture
from iswitch.lab.placement.jobs import Job, loads
from iswitch.lab.placement.policies import amount, check, one_by_one, pack, spread
from iswitch.lab.placement.prediction import Places, Prediction, predict, total
from iswitch.lab.placement.tree import MEMORY, Tree
from iswitch.lab.progress import Bar
from iswitch.lab.reports.page import check_drawing
from iswitch.outside import UsageError, extra
from iswitch.system.files import check_writable, read_text, whole
from iswitch.tables import Table, width
from topologies import Topology

from .worlds import read_topology

if TYPE_CHECKING:
    from iswitch.lab.placement.optimum import Best

POLICIES = {
    "pack": "each job in as few racks as possible",
    "spread": "each job over as many racks as possible",
    "fastest": "the least predicted time of all jobs, by a mixed-integer program; needs SciPy",
}
SECONDS = 5.0  # to search
LOOK_PAUSE = 0.1  # seconds between two looks at the search


class Placement(NamedTuple):
    """Jobs and their places in a network.

    Attributes:
        gap: by how much of its time a better placement could be faster, as far as `fastest` knows;
            None: the policy does not tell.
    """

    tree: Tree
    jobs: tuple[Job, ...]
    places: Places
    policy: str
    gap: float | None

    @property
    def topology(self) -> Topology:
        """Return the network."""
        return self.tree.topology


def placed(
    topology: Topology,
    file: str,
    policy: str,
    *,
    memory: int = MEMORY,
    slots: int = 0,
    seconds: float = SECONDS,
) -> Placement:
    """Read the jobs of a file, and place them in a network.

    Args:
        topology: the network.
        file: path of the file.
        policy: one of POLICIES.
        memory: bytes that each switch has for sums.
        slots: as `iswitch switch --slots`.
        seconds: how long `fastest` may search.

    Raises:
        OutsideError: they cannot be read or placed; the message names the mend.
    """
    tree = Tree(topology, memory, slots)
    jobs = tree.fitted(loads(read_text(file, UsageError), file))
    check(tree, jobs)
    if policy != "fastest":
        choose = {"pack": pack, "spread": spread}[policy]
        return Placement(tree, jobs, one_by_one(tree, jobs, choose, policy), policy, None)
    if find_spec("scipy") is None:
        raise UsageError(f"--policy fastest needs SciPy: {extra('tree')}")
    best = _searched(tree, jobs, seconds)
    return Placement(tree, jobs, best.places, policy, best.gap)


def _searched(tree: Tree, jobs: tuple[Job, ...], seconds: float) -> Best:
    """Search in a thread, which shows how far that is, and ends with this process on Ctrl-C."""
    from iswitch.lab.placement.optimum import fastest

    found: Future[Best] = Future()

    def search() -> None:
        try:
            found.set_result(fastest(tree, jobs, seconds))
        except BaseException as error:
            found.set_exception(error)

    Thread(target=search, daemon=True).start()
    began = time.monotonic()
    with Bar(seconds, "searching") as bar:
        while not wait([found], LOOK_PAUSE).done:
            bar.show(time.monotonic() - began, "searching")
    return found.result()


def place(args: argparse.Namespace) -> int:
    """Place jobs and tell where they are; return the exit status of `iswitch place`.

    Raises:
        OutsideError: they cannot be read or placed, or the picture cannot be written.
    """
    if args.plot is not None:
        check_picture(args.plot)
        check_drawing("--plot")
        check_writable(args.plot, args.topology, args.jobs)
    found = placed(
        read_topology(args.topology),
        args.jobs,
        args.policy,
        memory=int(args.memory * 2**20),
        slots=args.slots,
        seconds=args.seconds,
    )
    predicted = predict(found.tree, found.jobs, found.places)
    if args.json:
        print(json.dumps(_report(found, predicted), indent=1))
    else:
        _show(found, predicted)
    if args.plot is not None:
        from iswitch.lab.placement.picture import draw

        title = f"{found.topology.name}, {found.policy}"
        with whole(args.plot):
            draw(found.tree, found.jobs, found.places, predicted, title).savefig(args.plot, dpi=120)
    return 0


def _report(found: Placement, predicted: dict[str, Prediction]) -> dict[str, Any]:
    """Tell all there is to tell, for machines."""
    tree = found.tree
    jobs = []
    for job in found.jobs:
        hosts, said = found.places[job.name], predicted[job.name]
        jobs.append(
            {
                "name": job.name,
                "job": job.number,
                "hosts": list(hosts),
                "switches": {name: tree.need(job, name) for name in tree.switches_of(hosts)},
                "seconds": said.seconds,
                "alone": said.alone,
                "slowest": [said.slowest, tree.up[said.slowest]] if said.slowest else None,
                "sharing": said.sharing,
                "window": tree.window(job).ceiling if said.waits else None,
            }
        )
    return {
        "topology": found.topology.name,
        "policy": found.policy,
        "total": total(tree, found.jobs, found.places),
        "gap": found.gap,
        "jobs": jobs,
    }


def _show(found: Placement, predicted: dict[str, Prediction]) -> None:
    """Print the places and the times of rounds as a table."""
    from rich.console import Console

    tree = found.tree
    rows = []
    for job in found.jobs:
        hosts, said = found.places[job.name], predicted[job.name]
        jobs = f", {count(said.sharing, 'job')}"
        slowest = f"{said.slowest}-{tree.up[said.slowest]}{jobs}" if said.slowest else "none"
        if said.waits:
            slowest = f"none; window of {count(tree.window(job).ceiling, 'segment')}"
        switches = " ".join(tree.switches_of(hosts))
        times = f"{1e3 * said.seconds:,.3f}", f"{1e3 * said.alone:,.3f}"
        rows.append((job.name, str(job.workers), ranges(hosts), switches, *times, slowest))
    columns = ("job", "workers", "hosts", "switches", "round, ms", "alone, ms", "slowest link")
    console = Console(highlight=False, markup=False, width=width())
    console.print(Table(columns, rows))
    weighed = " (times their priorities)" if {job.priority for job in found.jobs} != {1.0} else ""
    summed = 1e3 * total(tree, found.jobs, found.places)
    console.print(f"{found.policy}: the rounds of all jobs{weighed} add up to {summed:,.3f} ms")
    memory = sum(tree.need(job, tree.root) for job in found.jobs)
    console.print(f"{tree.root} needs {amount(memory)} of {amount(tree.memory)}")
    if not any(said.slowest or said.waits for said in predicted.values()):
        console.print("links take no time here; say how fast they are, as star:4,rate=10Gbit does")
    if found.gap:
        console.print(f"a better placement would be at most {found.gap:.1%} faster; try --seconds")


def ranges(hosts: Sequence[str]) -> str:
    """Write names that only differ by consecutive numbers as h1-h4."""

    def key(item: tuple[int, str]) -> tuple[str, int]:
        at, name = item
        letters = name.rstrip("0123456789")
        number = name[len(letters) :]
        return letters, int(number or "0") - at

    parts = []
    for _, group in groupby(enumerate(hosts), key):
        names = [name for _, name in group]
        parts.append(names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}")
    return " ".join(parts)
