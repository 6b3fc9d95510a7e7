"""The events that a session tells its owner."""

from __future__ import annotations

from dataclasses import dataclass

from iswitch.core.format.wire import Ack, Action, Status, Vector


@dataclass(frozen=True)
class Answered:
    """The switch answered a request."""

    request: int
    action: Action
    status: Status
    ack: Ack


@dataclass(frozen=True)
class Halted:
    """The job is suspended until it is reset."""


@dataclass(frozen=True)
class WasReset:
    """The job was reset and continues from `round`; an allreduce under way is void."""

    round: int


@dataclass(frozen=True)
class Gone:
    """The switch no longer keeps the round under way; it is at `now_at`."""

    round: int
    now_at: int


@dataclass(frozen=True)
class Dropped:
    """The job went on without this worker; it takes part again from `now_at`."""

    round: int
    now_at: int


@dataclass(frozen=True)
class Disagreed:
    """The ranks do not agree on the sizes of what they exchange; the round is over."""

    round: int


@dataclass(frozen=True)
class Behind:
    """The switch no longer keeps the version after `version`; it is at `now_at`."""

    version: int
    now_at: int


@dataclass(frozen=True)
class Told:
    """The elements of a version from the session's `watch` on; the version may lack others."""

    version: int
    elements: Vector


Event = Answered | Halted | WasReset | Gone | Dropped | Disagreed
