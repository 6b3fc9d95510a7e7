"""The errors of workers; each message says what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import NO_RANK, Ack, Action, Awaited, Status, round_distance

from .naming import ranks
from .reasons import KEY_MEND, REASONS, dotted, why_not_joined


class WorkerError(Exception):
    """Any failure of a Worker that is not a misuse of its interface."""


class SwitchUnreachable(WorkerError):
    """No answer from the switch; `denied`: but one without the right MAC."""

    denied = False

    @classmethod
    def silent(
        cls,
        address: Address,
        seconds: str,
        refused: bool,
        assigned: str = "",
        denied: bool = False,
        key_mend: str = KEY_MEND,
        heard: bool = False,
    ) -> Self:
        """Make the error of an address that did not answer.

        Args:
            address: address of the switch.
            seconds: length of the silence in seconds, as text.
            refused: whether the address refused packets: no process listens there.
            assigned: the switch that `iswitch run` has for this process, "" outside of it.
            denied: whether an unauthenticated refusal came: perhaps the keys differ.
            key_mend: how to give another key.
            heard: whether packets came that answer nothing.
        """
        if denied:
            error = cls(
                f"no answer with the right MAC from the switch at {address} within {seconds} s, "
                "but one without: the job is keyed, and the key differs, or it is not keyed there; "
                + key_mend
            )
            error.denied = True
            return error
        what = "the connection was refused" if refused else "nothing was heard"
        if heard:
            what = "packets came that are no switch's answers: another program may have that port"
        mend = f"start one there with `iswitch switch --listen {address}`, or mend the address"
        if not refused:  # a switch lets nobody in before the one above it does
            mend += "; if one runs there with a --parent, look whether that runs"
        if assigned not in ("", str(address)):
            mend = f"`iswitch run` has started one at {assigned}: take Worker.from_env(numel)"
        return cls(f"no answer from a switch at {address} within {seconds} s ({what}); {mend}")


class BindError(WorkerError):
    """The requested local address is not available."""


class Refused(WorkerError):
    """The switch refused a request; `status` says why.

    `elsewhere` is (host, port) of the switch to which its operator sends this worker, or None.
    """

    def __init__(
        self,
        action: Action,
        status: Status,
        job: int,
        detail: str = "",
        ack: Ack | None = None,
        switch: str = "",
    ) -> None:
        self.action = action
        self.status = status
        told = Ack(action) if ack is None else ack
        self.taken = action is Action.JOIN and status is Status.FULL and told.contributors > 0
        self.elsewhere = (dotted(told.threshold), told.round) if self._is_sent(told) else None
        reason = (why_not_joined(status, told) if action is Action.JOIN else "") or REASONS[status]
        ended = status is Status.DRAINED and told.contributors > 0  # it had long been let in
        what = f"job {job} has ended" if ended else f"{action.name} refused in job {job}"
        if switch:  # else the commands would ask another one
            reason = re.sub("`iswitch ctl (jobs|queue)", rf"\g<0> --switch {switch}", reason)
        super().__init__(f"{what}: {reason}{detail}")

    def _is_sent(self, told: Ack) -> bool:
        """Return whether the operator has named a switch to go to."""
        return self.status is Status.DRAINED and told.round > 0


class TooFewWorkers(WorkerError):
    """Fewer workers joined than a Worker was told to wait for, or no rank became free."""

    @classmethod
    def without_rank(cls, job: int, timeout: float) -> Self:
        """Make the error of a worker that has joined, but has no rank after `timeout` seconds."""
        return cls(
            f"joined job {job}, but no rank was free within {timeout:g} s: a worker that died "
            "keeps its rank until its lease ends; try again after that, or with a longer timeout. "
            "If none died, this is one process too many, or another run uses this job number, too: "
            "give each run its own"
        )


class AllreduceTimeout(WorkerError):
    """A round was not done within its timeout.

    The round stays open. To wait on, make the same call again with an equal vector.

    Attributes:
        round: the round.
        missing: ranges (start, stop) of segments whose aggregate has not come.
        ranks: the ranks of the first 16 workers in the whole tree whose contributions are missing;
            None: the switch did not answer, or has given this worker's rank to another.
        awaited: these 16 workers, each with host, port, rank and switch. Rank NO_RANK (0xFFFF)
            stands for a switch that has not answered.
    """

    def __init__(
        self,
        message: str,
        round_: int,
        missing: Sequence[tuple[int, int]],
        ranks: Sequence[int] | None,
        awaited: Sequence[Awaited] = (),
    ) -> None:
        super().__init__(message)
        self.round = round_
        self.awaited = list(awaited)
        self.missing = list(missing)
        self.ranks = None if ranks is None else list(ranks)


class JobHalted(AllreduceTimeout):
    """The job is halted and was not resumed within the timeout."""


class MemberLost(WorkerError):
    """A member of the job has died or left, and the round waits for it (`on_member_lost="raise"`).

    The round stays open. To wait on, make the same call again with an equal vector; it raises this
    error again until another worker has taken the place.

    Attributes:
        round: the round.
        ranks: ranks, in the whole tree, of members whose leases have run out; not of members that
            left.
        left: ranks of members that left, if the switch can list all members.
        awaited: the first 16 lost workers, each with host, port, rank and switch. Rank NO_RANK
            (0xFFFF) stands for a switch that has not answered: workers behind it may be lost.
    """

    def __init__(
        self,
        round_: int,
        lost: Sequence[Awaited],
        who: str,
        there: int,
        num_workers: int,
        left: Sequence[int] = (),
        *,
        may_shrink: bool,
    ) -> None:
        self.round = round_
        self.awaited = list(lost)
        self.left = list(left)
        self.ranks = ranks(lost)
        several = len(lost) + len(left) > 1 or any(one.rank == NO_RANK for one in lost)
        where = "" if lost else f" ({'they have' if several else 'it has'} left)"
        super().__init__(
            f"{who or 'a worker'} {'are' if several else 'is'} lost{where}: {there} of "
            f"{num_workers} workers are there, and round {round_} waits; start "
            f"{'others in their places' if several else 'another in its place'} (with the same "
            "`bind`, if it had one)"
            + ", or go on with those who are left by set_threshold(n)"
            * may_shrink
        )


class JobReset(WorkerError):
    """Somebody reset the job: the call under way is void.

    Workers may have been one round apart, so the application decides what to send again. The next
    call of every worker begins with round `round`.
    """

    def __init__(self, round_: int) -> None:
        self.round = round_
        super().__init__(
            f"the job was reset and goes on from round {round_}: the call under way is void in all "
            "workers; agree where to resume (the last checkpoint, say), then call again in all"
        )


class RoundGone(WorkerError):
    """This worker fell too far behind: the switch no longer keeps the round it needs."""

    def __init__(
        self, round_: int, now_at: int, named: bool = False, done: int | None = None
    ) -> None:
        """Make the error.

        Args:
            round_: the round.
            now_at: the round of the switch, or the least that this worker can name.
            named: the program names rounds.
            done: the last round that this worker has done, if its program wants to go back.
        """
        self.round = round_
        self.now_at = now_at
        if done is not None and round_distance(done, round_) >= 0:
            back = "" if done == round_ else f", and cannot go back to round {round_}"
            super().__init__(
                f"this worker has already done round {done}{back}: name round {now_at} or a later "
                "one"
            )
            return
        go_on = (
            "take the weights from another worker and go on: the next allreduce is of round "
            f"{now_at}"
        )
        if named:
            go_on = (
                "name a later round (if an earlier run has left the job there, take another job "
                "number, or start when a lease, 30 s by default, has passed since its last worker "
                "left)"
            )
        super().__init__(
            f"round {round_} is no longer kept at the switch, which is at round {now_at}; {go_on}"
        )


class MembershipLost(WorkerError):
    """The switch had taken this worker out of the job, and the job went on without it."""

    def __init__(self, round_: int, now_at: int) -> None:
        self.round = round_
        self.now_at = now_at
        super().__init__(
            f"this worker was out of the job (silent for longer than its lease?) and round "
            f"{round_} went on without it; it is in again from round {now_at}: take the weights "
            "from another worker and go on"
        )


class SizesDiffer(WorkerError):
    """Ranks have passed other numbers of elements than others expect; the round is over.

    All ranks may begin the next call; nobody can use what this one has given.

    Attributes:
        round: the round.
    """

    def __init__(self, round_: int) -> None:
        self.round = round_
        super().__init__(
            f"the ranks do not agree on the sizes of what they exchange in round {round_}, and its "
            "results are void: call the same method in all ranks, with vectors of equal size, or "
            "with counts (and root) that are the others' sizes"
        )


class VersionTimeout(WorkerError):
    """A call of an `AsynchronousWorker` did not finish within its timeout."""


@contextmanager
def as_if_lost(counts: dict[str, int]) -> Iterator[None]:
    """Swallow and count a MemoryError in a `with` block, as if the network had lost the packets.

    The block may only handle packets that will be asked for or sent again.
    """
    try:
        yield
    except MemoryError:
        counts["no_memory"] += 1
