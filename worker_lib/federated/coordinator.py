"""The coordinator of federated rounds: gives out models, takes weighted means."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from iswitch.core.format.wire import Vector

from .rounds import Outcome

PATIENCE = 10.0  # seconds for the vectors of members that have said they are ready


class FederatedCoordinator:
    """Picks members of a federation, gives them the model, and takes the mean of their weights.

    It takes two jobs at the switch, `job` and `job` + 1, and makes `num_workers` + 1 members with
    the `FederatedWorker`s, all of which must be there before the constructor returns.

    Args:
        switch: (host, port) of the switch; in a tree that of the root.
        job: the first job's number, equal in all members.
        numel: elements of the model, float32.
        num_workers: N, the number of `FederatedWorker`s.
        per_round: K, the members picked for a round; None: all.
        needed: H, the contributions at which a sum fires; None: those of all that are picked.
        deadline: seconds after which a round is closed with the contributions that have come; None:
            it waits for H.
        seed: of the picks, see `picks`.
        reproducible: sum in rank order, so that a run can be repeated bit for bit.
        patience: seconds for the vectors of the members that were ready in time. When one of them
            fails meanwhile, the others are asked again, and this time doubles.
        timeout: seconds that joining and a request may take.
        elements_per_segment: elements of a packet, equal in all members.
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
        *,
        per_round: int | None = None,
        needed: int | None = None,
        deadline: float | None = None,
        seed: int = 0,
        reproducible: bool = True,
        patience: float = PATIENCE,
        timeout: float = 60.0,
        elements_per_segment: int = 366,
        key: bytes | None = None,
    ) -> None:
        raise NotImplementedError

    def round(
        self,
        number: int,
        model: Vector,
        *,
        picked: Sequence[int] | None = None,
        needed: int | None = None,
    ) -> Outcome:
        """Play a round: give out the model, and return the weighted mean of what comes back.

        Args:
            number: the round of the program, 0 or more.
            model: float32 [numel], in any shape.
            picked: the ranks that take part; None: K of N are drawn by `picks`.
            needed: H of this round; None: the coordinator's, but no more than are picked.

        Returns:
            the outcome; its model is a new array of `model`'s shape. `FederatedWorker.contribute`
            tells every member whether it is in it.

        Raises:
            TypeError, ValueError: wrong dtype, size, ranks or H.
            WorkerError: the switch does not answer.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End the federation: `FederatedWorker.rounds` ends in all members; leave the jobs."""
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
