"""A member of a federation: gets models, and contributes weights to the rounds it is picked for."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from iswitch.core.format.wire import ROUND_MASK, Vector, round_distance
from worker_lib import arguments
from worker_lib.closing import Closing
from worker_lib.errors import (
    AllreduceTimeout,
    JobReset,
    MembershipLost,
    Refused,
    RoundGone,
    SwitchUnreachable,
    WorkerError,
)

from .layout import Layout, Word
from .membership import ELEMENTS, SILENCE, VOID, Membership, flat
from .rounds import Said

FIRST_LOOK = 4.0  # seconds for a sum before the first look whether the round is over; they double
LEAST = 0.001  # seconds


class Task:
    """A round for which this member was picked.

    Attributes:
        round: the round's number.
        model: the model to begin with, float32 [numel]; the member's own copy.
        picked: ranks of all members that were picked, ascending.
        before: number of the round before, and the ranks in its sum; None: this is the first.
    """

    def __init__(self, worker: FederatedWorker, word: Word, model: Vector) -> None:
        self._worker = worker
        self._bids = word.bids
        self._said: Said | None = None
        self._rejoins = worker._rejoins
        self.round = word.round
        self.model = model
        self.picked = word.picked
        self.before = None if word.before is None else (word.before, word.ranks)

    def contribute(self, weights: Vector, n: float) -> Said:
        """Contribute n * weights and n to the round's sum; wait until it is closed.

        A member that has nothing to contribute just takes the next task.

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
        if self._said is not None:
            raise ValueError(f"round {self.round} has this member's contribution already")
        if not (math.isfinite(n) and n > 0):
            raise ValueError(f"n = {n}: pass a positive weight, such as the number of samples")
        array = flat("weights", weights, self.model.size)
        said = self._worker._contribute(self._bids, self.round, array, n)
        if said is Said.IN and self._worker._rejoins != self._rejoins:
            said = Said.UNTOLD  # a restarted switch may have made a sum of what is long over
        self._said = said
        return said


class FederatedWorker(Closing):
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
        timeout: float = arguments.TIMEOUT,
        elements_per_segment: int = ELEMENTS,
        bind: tuple[str, int] = ("0.0.0.0", 0),
        key: bytes | None = None,
    ) -> None:
        hint = f"pass 0 to num_workers - 1 ({num_workers - 1})"
        self.rank = arguments.whole("rank", rank, 0, num_workers - 1, hint)
        self.silence = arguments.seconds("silence", silence)
        self.model: Vector | None = None  # the last that came, float32 [numel]
        self._task: tuple[int, int] | None = None  # the last one's round, and that of the sums' job
        self._layout = Layout(numel, num_workers, elements_per_segment)
        self._members = Membership(
            switch, job, self._layout, rank,
            reproducible=reproducible, timeout=timeout, bind=bind, key=key,
        )  # fmt: skip

    def rounds(self) -> Iterator[Task]:
        """Yield the rounds for which this member is picked, until the coordinator ends; leave then.

        A member that is not picked waits here, and takes every model all the same: `model` is the
        last one. A round that is over before this member has its model is left out. If a job
        is reset, a round is played again, and is yielded again.

        Raises:
            WorkerError: no model came for `silence` seconds, or the switch does not answer.
        """
        while True:
            word, model = self._next()
            self.model = model
            if not word.goes_on:
                self.close()
                return
            task = word.round, word.bids
            if self.rank in word.picked and task != self._task:  # else its model came twice
                self._task = task
                yield Task(self, word, model.copy())

    def _next(self) -> tuple[Word, Vector]:
        """Return the next model, or the newest if several have come since, and the word with it."""
        models = self._members.models
        vector = np.empty(models.shape.numel, np.float32)
        round_ = models.round
        while True:
            try:
                models.receive(vector, round_, timeout=self.silence)
            except VOID:
                round_ = max(models.round, models.newest_round())
                continue
            except AllreduceTimeout as error:
                raise WorkerError(
                    f"no model came within {self.silence:g} s: does the coordinator run? A larger "
                    "`silence` waits longer"
                ) from error
            numel = self._layout.numel
            return Word.parse(vector[numel:]), vector[:numel]

    def _contribute(self, bids: int, number: int, weights: Vector, n: float) -> Said:
        """Say that this member is ready; contribute if the sum is to be of it, and look who is in.

        Args:
            bids: the round of the sums' job in which it says so.
            number: the round's number.
            weights, n: as for `Task.contribute`.
        """
        layout = self._layout
        ready = layout.ready(self.rank, number)
        vector = layout.contribution(self.rank, weights, n)
        while True:
            try:
                said = self._allreduce(ready, bids)
            except JobReset:  # perhaps of before this round
                continue
            except (RoundGone, MembershipLost):
                return Said.LATE
            ranks = layout.ranks(said)
            ahead = layout.tag(said) - layout.tag(ready)
            if self.rank not in ranks or ahead > 0:
                return Said.LATE
            if ahead < 0:  # one of them is late, and hears of it now
                bids = (bids + 2) & ROUND_MASK
                continue
            try:
                total = self._allreduce(vector, (bids + 1) & ROUND_MASK)
            except VOID:
                return Said.UNTOLD
            if layout.is_of(total, ranks):
                return Said.IN
            bids = (bids + 2) & ROUND_MASK

    def _allreduce(self, vector: Vector, round_: int) -> Vector:
        """Contribute to a sum; look now and then whether the next model is out, without it.

        A switch of a rack that was restarted does not know what is over.

        Raises:
            RoundGone: it is.
        """
        models, sums = self._members.models, self._members.sums
        limit, pause = time.monotonic() + self.silence, FIRST_LOOK
        while True:
            left = limit - time.monotonic()
            try:
                return sums.allreduce(vector, timeout=max(min(pause, left), LEAST), round_=round_)
            except AllreduceTimeout:
                if left <= pause:
                    raise
            pause *= 2
            with suppress(SwitchUnreachable, Refused):
                if round_distance(models.newest_round(), models.round) >= 0:
                    raise RoundGone(round_, sums.round, named=True)

    @property
    def _rejoins(self) -> int:
        return int(self._members.sums.stats()["rejoins"])

    def close(self) -> None:
        """Leave the jobs."""
        self._members.leave()
