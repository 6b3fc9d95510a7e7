"""Errors of commands to a job: nobody is in it, it is not there, or the switch refuses."""

from __future__ import annotations

from typing import ClassVar

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import Ack, Action, Status

from .errors import Refused, WorkerError
from .reasons import CROWDED, REASONS

KEY_MEND = "give it with --key-file FILE, ISWITCH_KEY or ISWITCH_KEY_FILE"
KEYED = f"the job is keyed; only those who have its key may command it: {KEY_MEND}"
NO_SEGMENTS = "the job has no such segments: no worker is in it, or they are fewer; see its status"
NONE_LEFT_OUT = (
    "none may be left out of a job with few slots, in turns, with a fallback, or of owned segments"
)


class NoWorkers(WorkerError):
    """A setting was asked for in a job without workers; `job` is its number."""

    def __init__(self, job: int) -> None:
        self.job = job
        super().__init__(
            f"nothing was changed in job {job}: it has no workers, and changes end with a job's "
            "last member; start the workers first"
        )


class NoSuchJob(WorkerError):
    """The switch knows no job with the number `job`."""

    def __init__(self, job: int, switch: Address, keyed: bool) -> None:
        self.job = job
        listed = "` lists those that are"
        if keyed:
            listed = f" --job {job}` with this key lists those that have it"
        asks = f"`iswitch ctl jobs --switch {switch}{listed}"
        super().__init__(f"there is no job {job} at the switch at {switch}; {asks}")


class JobWaits(NoSuchJob):
    """The job is not there yet: it waits for memory of the switch; `place` is its place."""

    def __init__(self, job: int, switch: Address, keyed: bool, ack: Ack) -> None:
        super().__init__(job, switch, keyed)
        self.place = ack.round
        which = f" --job {job}` with this key" * keyed or "`"
        self.args = (
            f"job {job} waits for memory of the switch at {switch}, at place {ack.round} of "
            f"{ack.contributors}; `iswitch ctl queue --switch {switch}{which} shows who has it",
        )


class CommandRefused(Refused):
    """The switch refused a controller's request; `ack` is its answer."""

    REASONS: ClassVar[dict[Status, str]] = {
        **REASONS,
        Status.NOT_MEMBER: "this address and port are not a member of the job (they never joined "
        "it, the lease ran out, or the switch was restarted); join, and ask again",
        Status.FULL: "the switch has no room: 64 members a job at most, and a limited number of "
        "jobs; let a member leave, or try again when a job without members has been forgotten",
        Status.DENIED: KEYED,
        Status.HALTED: "the job is halted; a reset resumes it",
        Status.GONE: "the switch no longer keeps that round; name the current one",
    }
    BY_ACTION: ClassVar[dict[tuple[Action, Status], str]] = {
        (Action.JOIN, Status.MISMATCH): "a member that is no controller has this address; bind "
        "another port",
        (
            Action.SHOW,
            Status.DENIED,
        ): f"{KEYED}; `iswitch ctl jobs --job N` lists jobs with N's key",
        (Action.LEAVE, Status.NOT_MEMBER): "this address and port are not a member of the job; "
        "nothing is left to do",
        (Action.SETH, Status.BAD_REQUEST): f"H counts all workers: {NONE_LEFT_OUT}",
        (Action.FBCAST, Status.BAD_REQUEST): f"{NO_SEGMENTS}; or {NONE_LEFT_OUT}",
        (Action.HELP, Status.BAD_REQUEST): NO_SEGMENTS,
    }

    def __init__(self, action: Action, status: Status, job: int, ack: Ack) -> None:
        super().__init__(action, status, job)
        self.ack = ack
        reason = self.BY_ACTION.get((action, status), self.REASONS[status])
        if action is Action.JOIN and status is Status.FULL and ack.rank:
            reason = CROWDED.format(members=ack.rank)
        if status is Status.GONE:
            reason += f" (the job is at round {ack.round})"
        self.args = (f"{action.name} refused in job {job}: {reason}",)
