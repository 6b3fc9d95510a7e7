"""Check what every kind of worker is given to join a job, and open its socket."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import Ack, Action, Shape, Status
from iswitch.ports.udp import UdpPort
from worker_lib.protocol.member import Member
from worker_lib.protocol.window import CEILING, TOGETHER

from . import arguments, environment, naming
from .closing import Closing
from .errors import Refused, SwitchUnreachable

REFUSED_PATIENCE = 5.0  # seconds to wait where no process listens; the switch may be starting


class Joining(Closing):
    """Makes a worker from the environment, and closes it at the end of a `with` statement.

    Attributes:
        OWN: the fields of an `Assignment` that callers' keywords override.
    """

    OWN: ClassVar[tuple[str, ...]] = ("bind", "key", "rank")

    @classmethod
    def from_env(cls, numel: int, **kwargs: Any) -> Self:
        """Make the worker for which `iswitch run` started this process.

        The environment variables ISWITCH_SWITCH, ISWITCH_JOB and WORLD_SIZE name the switch, the
        job and the number of workers, RANK the rank; mpirun and srun set number and rank, too
        (docs/worker.md, "Ranks"). `bind` is ISWITCH_BIND: with it a process that is started again
        (`--max-restarts`) takes the place of the one that failed. The key, if there is one, is
        ISWITCH_KEY, or in the file ISWITCH_KEY_FILE. A `Worker` has its `rounds` from
        ISWITCH_ROUNDS and its `priority` from ISWITCH_PRIORITY, if these are set.

        Args:
            numel: elements of every vector.
            kwargs: all else that the constructor takes; `bind`, `rank`, `key`, `rounds`
                and `priority` override the variables. A process that makes several workers in one
                job gives each another rank, or None.

        Raises:
            ValueError: a variable is missing or wrong; the message names it.
        """
        given = environment.read(os.environ)
        make: Any = cls
        named = {"switch": given.switch, "job": given.job, "numel": numel}
        named |= {name: getattr(given, name) for name in cls.OWN}
        made: Self = make(num_workers=given.num_workers, **named | kwargs)
        return made


@dataclass
class Opening:
    """The arguments that all kinds of workers have in common, checked.

    Attributes are those of the workers; `elements` is their `elements_per_segment`.

    Raises:
        ValueError: an argument is out of its range.
    """

    switch: tuple[str, int]
    job: int
    num_workers: int | None
    rank: int | None
    timeout: float
    bind: tuple[str, int]
    key: bytes | None
    elements: int | None
    offload: bool

    def __post_init__(self) -> None:
        self.switch = arguments.address("switch", self.switch, least_port=1)
        self.bind = arguments.address("bind", self.bind)
        self.job = arguments.job_number(self.job)
        if self.num_workers is not None:
            self.num_workers = arguments.num_workers(self.num_workers)
        self.wanted_rank = arguments.rank(self.rank, self.num_workers)
        self.timeout = arguments.seconds("timeout", self.timeout)
        arguments.key(self.key)

    def open(
        self, shape: Shape, resized: Callable[[int], Shape] | None = None
    ) -> tuple[UdpPort, dict[str, Any]]:
        """Open the socket.

        Args:
            shape: layout of the vectors.
            resized: returns that layout with other elements per segment; None: as for any vector.

        Returns:
            the socket, and arguments for `Terms` of any kind, by name; the packets of the shape
            among them fit the route to the switch.

        Raises:
            SwitchUnreachable, BindError: there can be no such socket.
        """
        port = arguments.port(self.switch, self.bind, self.offload)
        if self.elements is None:
            shape = arguments.fitted(shape, port, resized or arguments.resizing(shape))
        terms = {
            "switch": Address(*port.socket.getpeername()),  # `self.switch` may be a name
            "job": self.job,
            "shape": shape,
            "expected": self.num_workers or 0,
            "rank": self.wanted_rank,
            "key": self.key,
            "ceiling": min(CEILING, port.buffer),
            # As far as the switch tells nothing else. (Each worker has rings of its own.)
            "room": TOGETHER if port.way == "shm" else min(TOGETHER, port.buffer),
            "most": port.most,
        }
        return port, terms


def refused(
    session: Member[Any], action: Action, status: Status, ack: Ack, hosts: dict[str, str]
) -> Refused:
    """Make the error of a request that the switch refused.

    Args:
        session: session that asked.
        action: action that it asked for.
        status: why it was refused.
        ack: the switch's answer.
        hosts: names of hosts by address.
    """
    detail = ""
    if status is Status.MISMATCH:
        shape, terms = session.shape, session.terms
        ways = ("reproducible", "partial")
        asked = "".join(f", {name}" for name in ways if getattr(terms, name, False))
        ranks = f" of {shape.owners} workers" * (shape.owners > 0)
        detail = (
            f" (this worker's: {shape.numel} elements of {shape.dtype.label}, "
            f"{shape.op.name.lower()}, {shape.mode.name.lower()}{ranks}, E = {shape.elements}"
            f"{asked}; the job's: `iswitch ctl snapshot`, where `iswitch run` or `iswitch switch "
            "--watch` has started the switch)"
        )
    expected, there = session.terms.expected, ack.contributors
    if status is Status.FULL and there and expected not in (0, there):
        detail = (
            f". This worker's num_workers (WORLD_SIZE) is {expected}, theirs {there}, so it has no "
            "place as long as they run; give all the same number, or this one another job"
        )
    if status is Status.RANK_TAKEN:
        detail = naming.owner(ack, hosts) + environment.overridden(os.environ, session.terms.rank)
    return Refused(action, status, session.job, detail, ack, str(session.switch))


def no_answer(session: Member[Any], port: UdpPort, seconds: float) -> SwitchUnreachable | Refused:
    """Make the error of a request that was not answered within `seconds`."""
    if session.taken is not None:
        hosts = environment.hosts(os.environ)
        return refused(session, Action.JOIN, Status.RANK_TAKEN, session.taken, hosts)
    if session.waits is not None:
        return refused(session, Action.JOIN, Status.WAITING, session.waits, {})
    assigned = os.environ.get("ISWITCH_SWITCH", "")
    heard = session.heard > time.monotonic() - seconds
    known = session.told > float("-inf")  # it has let this worker in
    if heard and known and not (port.refused or session.denied):
        return SwitchUnreachable(
            f"no answer from the switch at {session.switch} within {seconds:.1f} s, though other "
            "packets came from it; if it has a --parent, look whether that runs"
        )
    return SwitchUnreachable.silent(
        session.switch, f"{seconds:.1f}", port.refused, assigned, session.denied, heard=heard
    )
