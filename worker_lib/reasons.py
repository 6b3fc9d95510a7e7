"""Why a switch refuses a request, in words; each says what to do."""

from __future__ import annotations

from iswitch.core.format.wire import Ack, Status

KEY_MEND = (
    "give it the switch's key for this job: key=..., or ISWITCH_KEY or ISWITCH_KEY_FILE in the "
    "environment (Worker.from_env and `iswitch ctl` read them)"
)

REASONS: dict[Status, str] = {
    Status.NOT_MEMBER: "this worker is not a member of the job (its lease ran out, or the "
    "switch was restarted); make a new Worker",
    Status.MISMATCH: "the job exists with other terms: dtype, op, mode, elements per "
    "segment, number of elements, reproducible and partial must be the same in all workers; "
    "mend the odd one, or use another job number",
    Status.FULL: "the switch cannot carry another job, or it is a P4 program without room for "
    "this many segments; end a job (`iswitch ctl jobs` lists them), or use smaller vectors or "
    "another switch",
    Status.BAD_REQUEST: "the switch could not make sense of the request (do the switch and "
    "this library speak the same protocol version?), or it is a P4 program, which knows no "
    "asynchronous jobs, no sums in rank order, and no packets of more than 1464 bytes of "
    "elements: leave that out",
    Status.DENIED: "the job is keyed: "
    + KEY_MEND
    + "; or this address and port contribute to another job, which is keyed: use another "
    "Worker for that (what a dead process left there ends with its lease)",
    Status.HALTED: "the job is halted; reset() resumes it",
    Status.GONE: "the switch no longer keeps that round; catch up (take weights from a peer)",
    Status.SLOTS: "this vector has more segments than the switch has slots for a job (its "
    "--slots), and only sums that wait for all workers can share slots: pass num_workers, and "
    "leave out partial and on_member_lost='continue'; or use smaller vectors, or another "
    "switch (in a tree, give all switches the same --slots; if this one was restarted with "
    "fewer, make a new Worker)",
    Status.WAITING: "it still waits for memory of the switch (`iswitch ctl queue` shows who "
    "has it): give this worker a longer timeout, end another job, or start the switch with a "
    "larger --memory",
    Status.DRAINED: "the operator of the switch takes no new jobs there; use another switch",
    Status.QUOTA: "its quota of the switch's memory is used up; end another job of this user, "
    "use smaller vectors, or ask the operator for more",
    Status.RANK_TAKEN: "another worker has that rank; give every worker one of its own "
    "(rank=..., or RANK in the environment, which Worker.from_env reads), or none at all: then "
    "the switch numbers them",
}

CROWDED = (
    "it has {members} members already, and a switch takes no more in a job; use fewer workers, "
    "or switches above switches (docs/hierarchy.md)"
)


def why_not_joined(status: Status, told: Ack) -> str:
    """Return why a Join was refused, if the switch has told more than the status; else ""."""
    if status is Status.DENIED and told.round:
        return (
            "a process that began later has joined from this address and port, which are its "
            "own now; end this one"
        )
    if status is Status.DENIED and told.contributors:
        return (
            f"job {told.contributors - 1} has the UDP port towards the switch above that this "
            "job would use; take another job number (a P4 switch has one port for all jobs: "
            "wait until that one has ended)"
        )
    if status is Status.WAITING:
        place = f"it still waits at place {told.threshold} of {told.round} for memory"
        return REASONS[Status.WAITING].replace("it still waits for memory", place)
    if status is Status.DRAINED:
        return _sent_away(told)
    if status is Status.QUOTA and told.threshold:
        whose = "this user's jobs may have" if told.rank else "this job may have"
        return (
            f"it needs {_memory(told.threshold)} of the switch's memory, and of the "
            f"{_memory(told.contributors)} that {whose} (the switch's --quota) "
            f"{_memory(told.round)} are free; use smaller vectors, end another job of the "
            "user, or ask the operator for more"
        )
    if status is not Status.FULL:
        return ""
    if told.contributors:
        return (
            f"it has its {told.contributors} workers already; the places of workers that were "
            "killed are free when their leases have run out (the switch's --lease, 30 s by "
            "default): try again then, or use another number"
        )
    if told.rank:
        return CROWDED.format(members=told.rank)
    if told.threshold > told.round:
        return (
            f"it needs {_memory(told.threshold)} more of the switch's memory, and "
            f"{_memory(told.round)} of its --memory are free; use smaller vectors, end another "
            "job (`iswitch ctl jobs` lists them), or start the switch with a larger --memory"
        )
    if told.threshold:
        return (
            f"it needs {_memory(told.threshold)} more memory than the switch's machine has "
            "free (the switch says so on stderr); use smaller vectors, or a machine with more"
        )
    return ""


def _sent_away(told: Ack) -> str:
    """Return why the operator's switch does not take this worker."""
    at = f"{dotted(told.threshold)}:{told.round}"
    named = f" at {at} (ISWITCH_SWITCH={at}, if the environment names it)"
    there = named if told.round else ""
    if not told.contributors:
        return (
            "the operator drains this switch (`iswitch ctl drain`), so it takes no new jobs; "
            + (f"use the switch{there}" if there else "use another switch")
        )
    return (
        "the operator has ended this job here (`iswitch ctl evict`); start its workers again "
        "from their last checkpoint" + (f", at the switch{there}" if there else "")
    )


def dotted(packed: int) -> str:
    """Write a packed IPv4 address for people."""
    return ".".join(map(str, packed.to_bytes(4, "big")))


def _memory(kib: int) -> str:
    """Write a number of KiB for people."""
    return f"{kib / 1024:,.1f} MiB" if kib >= 1024 else f"{kib} KiB"
