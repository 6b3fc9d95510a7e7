"""A member of a federation: gets models, and contributes weights to the rounds it is picked for."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from iswitch.core.format.wire import Vector

from .rounds import Said

SILENCE = 600.0  # seconds for which a member waits for a model


class Task:
    """A round for which this member was picked.

    Attributes:
        round: the round's number.
        model: the model to begin with, float32 [numel]; the member's own copy.
        picked: ranks of all members that were picked, ascending.
    """

    round: int
    model: Vector
    picked: tuple[int, ...]

    def contribute(self, weights: Vector, n: float) -> Said:
        """Contribute n * weights and n to the round's sum; wait until it is closed.

        A member that has nothing to contribute just goes on to the next round.

        Args:
            weights: float32 [numel], in any shape.
            n: this member's weight, usually its number of samples; whole numbers that sum up to
                2^24 at most over the members are added exactly.

        Returns:
            whether the contribution is in the sum, or was late and counts for nothing.

        Raises:
            TypeError, ValueError: wrong dtype, size, or n.
            WorkerError: the switch does not answer, or the round is not closed in time.
        """
        raise NotImplementedError


class FederatedWorker:
    """A member of a federation whose rounds a `FederatedCoordinator` plays.

    Args:
        switch: (host, port) of this member's switch.
        job: the first job's number, equal in all members; `job` + 1 is taken, too.
        numel: elements of the model, float32.
        num_workers: N, the number of `FederatedWorker`s.
        rank: this member's number, 0..num_workers-1.
        reproducible: as for the coordinator.
        silence: seconds for which `rounds` waits for a model, and `contribute` for the end of a
            round.
        timeout: seconds that joining and a request may take.
        elements_per_segment: as for the coordinator.
        bind: local (host, port), of which `port` + 1 is taken, too, if it is not 0.
        key: key of keyed jobs, 1 to 64 bytes.

    Raises:
        SwitchUnreachable, BindError, Refused, TooFewWorkers: as for `Worker`.
        ValueError: an argument out of its range.
    """

    def __init__(  # noqa: PLR0913 (options that users set by name)
        self,
        switch: tuple[str, int],
        job: int,
        numel: int,
        num_workers: int,
        rank: int,
        *,
        reproducible: bool = True,
        silence: float = SILENCE,
        timeout: float = 60.0,
        elements_per_segment: int = 366,
        bind: tuple[str, int] = ("0.0.0.0", 0),
        key: bytes | None = None,
    ) -> None:
        raise NotImplementedError

    def rounds(self) -> Iterator[Task]:
        """Yield the rounds for which this member is picked, until the coordinator ends.

        A member that is not picked waits here, and takes every model all the same: `model` is the
        last one. A round that is over before this member has its model is left out.

        Raises:
            WorkerError: no model came for `silence` seconds, or the switch does not answer.
        """
        raise NotImplementedError

    @property
    def model(self) -> Vector | None:
        """Return the last model that came, float32 [numel]; None: none has."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave the jobs."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
