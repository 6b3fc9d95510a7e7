"""Checks ranks: workers have those that they ask for, and no two workers have one."""

from __future__ import annotations

from collections.abc import Iterable

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import NO_RANK, RANKS
from topologies.simulated import Simulation

from .contributing import Contributing
from .lives import Life
from .scenario import Job
from .violation import Violation


def check_ranks(simulation: Simulation, job: Job, lives: Iterable[Life | Contributing]) -> None:
    """Check that every rank is one worker's, as far as all switches up to the root agree.

    Args:
        simulation: has the switches.
        job: the job.
        lives: its running processes.

    Raises:
        Violation: two workers have one rank, or one has another rank than it asked for.
    """
    found: dict[int, Life | Contributing] = {}
    for life in lives:
        session = life.session
        wanted, rank = session.terms.rank, session.rank
        if rank < RANKS and wanted not in (NO_RANK, rank):
            raise Violation("another rank", f"{life.state()}: {rank} instead of {wanted}")
        if not (session.member and rank < RANKS and _is_known(simulation, job, life)):
            continue
        other = found.setdefault(rank, life)
        if other is not life:
            raise Violation("two of a rank", f"{rank}: {other.state()}; {life.state()}")


def _is_known(simulation: Simulation, job: Job, life: Life | Contributing) -> bool:
    """Tell whether a process has its rank at its switch, and at the switches above."""
    topology, rank = simulation.topology, life.session.rank
    name: str | None = topology.switch_of(life.host)
    address: Address = life.address
    while name is not None:
        switch = simulation.switch(name)
        known = switch.jobs.get(job.number) if switch else None
        members = known.members.by_address if known else {}
        member = next((m for a, m in members.items() if a[:2] == address[:2]), None)
        if member is None or not member.ranks >> rank & 1:
            return False
        if address is life.address and member.incarnation != life.session.incarnation:
            return False
        address, name = simulation.address(name), topology.parents[name]
    return True
