"""The coordinator of federated rounds: gives out models, takes weighted means."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf

import numpy as np

from iswitch.core.format.wire import HEARTBEAT, ROUND_MASK, Status, Vector
from worker_lib import arguments
from worker_lib.closing import Closing
from worker_lib.errors import (
    AllreduceTimeout,
    JobReset,
    MembershipLost,
    Refused,
    RoundGone,
    WorkerError,
)
from worker_lib.worker import Worker

from .firing import Firing, Racks
from .layout import Layout, Word
from .membership import ELEMENTS, SILENCE, VOID, Membership, flat
from .numbers import mean, picks
from .rounds import Outcome

PATIENCE = 10.0  # seconds for the vectors of members that have said they are ready
AGAIN = 0.2  # of that, for the members to say so again after one has failed
SLICE = 2.0  # seconds of waiting between two looks whether the switch was restarted
CLOSING = 0.05  # seconds between the first two FBcasts
STUCK = 5.0  # seconds of them, or the patience, after which to reset the job
LEAVING = 2.5 * HEARTBEAT  # seconds for members to hear of the end, and to leave
REPEATING = HEARTBEAT / 2  # seconds between two times that they are told
FIRST_LOOK, LAST_LOOK = 0.005, 0.5  # seconds between two looks whether they have left


def closed(worker: Worker, stop: int | None, round_: int) -> int:
    """Close the segments of a round up to `stop`; return as `Worker.force_broadcast` does.

    Raises:
        RoundGone: the switch does not keep that round.
    """
    try:
        return worker.force_broadcast(0, stop, round_)
    except Refused as refused:
        if refused.status is not Status.GONE:
            raise
        raise RoundGone(round_, worker.round, named=True) from None


class FederatedCoordinator(Closing):
    """Picks members of a federation, gives them the model, and takes the mean of their weights.

    It takes two jobs at the switch, `job` and `job` + 1, and makes `num_workers` + 1 members with
    the `FederatedWorker`s, all of which must be there before the constructor returns.

    Args:
        switch: (host, port) of the switch.
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
        silence: seconds to wait for H without a deadline.
        timeout: seconds that joining and a request may take.
        elements_per_segment: elements of a packet, equal in all members.
        bind: local (host, port), of which `port` + 1 is taken, too, if it is not 0.
        key: key of keyed jobs, 1 to 64 bytes.
        racks: in a two-level tree, the members' ranks by the (host, port) of their switch; `switch`
            is the root then. H is divided among the racks in proportion to who is picked.

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
        silence: float = SILENCE,
        timeout: float = arguments.TIMEOUT,
        elements_per_segment: int = ELEMENTS,
        bind: tuple[str, int] = ("0.0.0.0", 0),
        key: bytes | None = None,
        racks: Racks | None = None,
    ) -> None:
        self.num_workers = arguments.num_workers(num_workers)
        hint = f"pass 1 to num_workers ({num_workers}) members, or None for all"
        some = num_workers if per_round is None else per_round
        self.per_round = arguments.whole("per_round", some, 1, num_workers, hint)
        self.needed = self._needed(needed, self.per_round)
        self.deadline = None if deadline is None else arguments.seconds("deadline", deadline)
        self.patience = arguments.seconds("patience", patience)
        self.silence = arguments.seconds("silence", silence)
        self.seed = seed
        self._word = Word(0, 0)
        self._last: Vector = np.zeros(numel, np.float32)
        self._members = Membership(
            switch, job, Layout(numel, num_workers, elements_per_segment), num_workers,
            reproducible=reproducible, timeout=timeout, bind=bind, key=key,
        )  # fmt: skip
        self._rejoins = 0
        self._restarted = -inf  # when a restart was noticed last
        self._after = 0  # the round of the models' job after that of the last model
        try:
            self._firing = Firing(self._members.sums, racks, num_workers, key)
            self._members.models.set_threshold(1)
        except BaseException:
            self._members.leave()
            raise

    @staticmethod
    def _needed(needed: int | None, picked: int) -> int:
        hint = f"pass 1 to {picked}, the members that are picked, or None for all of them"
        return arguments.whole("needed", picked if needed is None else needed, 1, picked, hint)

    @property
    def _layout(self) -> Layout:
        return self._members.layout

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
            the outcome; its model is a new array of `model`'s shape. `Task.contribute` tells every
            member whether it is in it.

        Raises:
            TypeError, ValueError: wrong dtype, size, ranks or H.
            AllreduceTimeout: without a deadline, fewer than H were ready within `silence`.
            WorkerError: the switch does not answer.
        """
        arguments.whole("number", number, 0, ROUND_MASK, "number the rounds from 0 on")
        array = flat("model", model, self._layout.numel)
        chosen = self._chosen(number, picked)
        if needed is None:
            needed = min(self.needed, len(chosen))
        needed = self._needed(needed, len(chosen))
        while True:
            try:
                outcome = self._play(number, array, chosen, needed)
            except (RoundGone, MembershipLost):
                self._members.sums.reset()  # what members have sent is void, wherever they are
                continue
            return replace(outcome, model=outcome.model.reshape(model.shape))

    def _play(self, number: int, array: Vector, chosen: tuple[int, ...], needed: int) -> Outcome:
        """Play a round once.

        Raises:
            RoundGone: a job was reset meanwhile; play it again.
        """
        self._firing.expect(chosen, needed)
        bids = self._members.sums.round
        self._tell(Word(number, bids, chosen, self._word.before, self._word.ranks), array)
        ranks, total, attempts = self._gather(number, bids, self.deadline)
        self._word = Word(number, bids, (), number, ranks)
        if total is None:
            result, n = array.copy(), 0.0
        else:
            summed, n = self._layout.total(total)
            result = mean(summed, n)
        self._last = result
        in_time = len(ranks) >= needed
        return Outcome(number, result, n, ranks, chosen, in_time, attempts)

    def picked(self, number: int) -> tuple[int, ...]:
        """Return the ranks that are drawn for a round, ascending."""
        return picks(self.seed, number, self.num_workers, self.per_round)

    def _chosen(self, number: int, picked: Sequence[int] | None) -> tuple[int, ...]:
        if picked is None:
            return self.picked(number)
        chosen = tuple(sorted({int(rank) for rank in picked}))
        if not chosen or chosen[0] < 0 or chosen[-1] >= self.num_workers:
            raise ValueError(f"picked = {picked}: pass ranks of 0 to {self.num_workers - 1}")
        return chosen

    def close(self) -> None:
        """End the federation: `FederatedWorker.rounds` ends in all members; leave the jobs.

        It waits until all members have left, or for 7.5 seconds if some of them are dead.
        """
        if self._members.left:
            return
        with suppress(WorkerError):  # nobody is there to be told
            self._tell_end()
        try:
            self._members.leave()
        finally:
            self._firing.close()

    def _tell_end(self) -> None:
        """Tell all members the end until they have left.

        A switch that was restarted does not know who is to come back to it: they get some time.
        """
        word = self._word
        end = Word(word.round, 0, (), word.before, word.ranks, goes_on=False)
        self._tell(end, self._last)
        ended = told = time.monotonic()
        pause = FIRST_LOOK
        while (now := time.monotonic()) < max(ended, self._restarted) + LEAVING:
            if now >= told + REPEATING:
                told = now
                self._tell(end, self._last)
            others = len(self._members.models.members()) - 1
            self._look_for_restart()
            if not others and self._restarted < ended - LEAVING:
                return
            time.sleep(pause)
            pause = min(2 * pause, LAST_LOOK)

    # The model's way to the members

    def _tell(self, word: Word, model: Vector) -> None:
        """Give all members a word and a model, by a sum that this is the only contribution to."""
        models = self._members.models
        vector = np.concatenate([model, word.build(self.num_workers)])
        self._look_for_restart()
        limit, pause = time.monotonic() + models.timeout, SLICE
        while True:
            left = limit - time.monotonic()
            try:
                models.allreduce(
                    vector, timeout=max(min(pause, left), CLOSING), round_=models.round
                )
            except VOID:  # or an earlier federation of this number
                continue
            except AllreduceTimeout:
                if left <= pause:
                    raise
            else:
                self._after = models.round
                return
            # A switch that was restarted without all members here waits for them, but not with an
            # FBcast; it takes no model that is far ahead of the rounds that its members name.
            self._look_for_restart()
            with suppress(*VOID):
                if not closed(models, None, models.round) and pause > SLICE:
                    models.reset()
            pause *= 2

    # The sums

    def _gather(
        self, number: int, bids: int, deadline: float | None
    ) -> tuple[tuple[int, ...], Vector | None, int]:
        """Return the ranks in the sum, and the sum; None: there is none; and the attempts."""
        layout, attempts, patience = self._layout, 0, self.patience
        ready = layout.ready(self.num_workers, number)
        nothing = layout.stamped(self.num_workers, layout.segments)
        while True:
            attempts += 1
            said = self._wait(bids, ready, deadline)
            ranks = layout.ranks(said)
            if not ranks:
                return (), None, attempts
            are_all = layout.tag(said) == layout.tag(ready)  # of this round
            if are_all:
                self._firing.expect(ranks)
            vector = self._wait((bids + 1) & ROUND_MASK, nothing, patience if are_all else 0.0)
            if are_all and layout.is_of(vector, ranks):
                return ranks, vector, attempts
            self._firing.expect(ranks)
            bids, deadline = (bids + 2) & ROUND_MASK, max(1.0, AGAIN * patience)
            patience *= 2

    def _wait(self, round_: int, nothing: Vector, patience: float | None) -> Vector:
        """Return the sum of a round; after some time close it by FBcast, and by `nothing`.

        Args:
            round_: the round of the sums' job.
            nothing: this coordinator's contribution where nobody else's has come.
            patience: seconds; None: do not close it.

        Raises:
            AllreduceTimeout: with no patience, the sum did not come within `silence`.
            RoundGone: a job was reset.
        """
        sums, out = self._members.sums, np.empty_like(nothing)
        seconds = self.silence if patience is None else patience
        limit = time.monotonic() + seconds
        while (left := limit - time.monotonic()) > 0:
            try:
                # A sum of several segments would begin anew with each slice.
                slice_ = left if nothing.size > self._layout.elements else min(left, SLICE)
                return sums.receive(out, round_, timeout=max(slice_, 0.001))
            except JobReset:
                continue
            except AllreduceTimeout:
                self._look_for_restart()
                self._look_for_reset(round_)
        if patience is None:
            raise AllreduceTimeout(
                f"fewer members than needed contributed within {seconds:g} s: do they run? A "
                "deadline closes a round with the contributions that have come, and a smaller "
                "`needed` waits for fewer",
                round_, [(0, 1)], None,
            )  # fmt: skip
        self._firing.hold()  # else members that see it closed could play on among themselves
        segments = nothing.size // self._layout.elements
        if segments == 1:  # of a sum of vectors all racks must have all, or nobody counts
            self._firing.flush()
        limit, pause = time.monotonic() + max(STUCK, self.patience), CLOSING
        while True:
            if time.monotonic() >= limit:  # it takes nothing, as its members name older rounds
                raise RoundGone(round_, sums.round, named=True)
            try:
                closed(sums, segments, round_)
                return sums.allreduce(nothing, out, timeout=pause, round_=round_)
            except JobReset:
                continue
            except AllreduceTimeout:
                pause *= 2
                self._look_for_restart()

    def _look_for_restart(self) -> None:
        """Set both H again if a switch was restarted, which forgets them."""
        members = self._members
        rejoins = members.models.stats()["rejoins"] + members.sums.stats()["rejoins"]
        if rejoins != self._rejoins:
            self._rejoins = rejoins
            self._restarted = time.monotonic()
            members.models.set_threshold(1)
            self._firing.again()

    def _look_for_reset(self, round_: int) -> None:
        """Raise RoundGone if the job of models was reset, so that a member may lack its model."""
        models = self._members.models
        if models.round != self._after:
            raise RoundGone(round_, models.round, named=True)
