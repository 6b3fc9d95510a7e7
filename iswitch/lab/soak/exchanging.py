"""Plays the applications of workers of jobs whose segments have owners."""

from __future__ import annotations

from iswitch.core.format.wire import NO_RANK, Vector
from worker_lib.protocol.events import Disagreed, Event
from worker_lib.protocol.owned_session import OwnedSession

from .blocks import Blocks
from .lives import Life
from .violation import Violation


class Exchanging(Life):
    """A worker of a job whose segments have owners: one exchange of blocks after the other."""

    _got: list[Vector]

    @property
    def _may_begin(self) -> bool:
        return super()._may_begin and self.session.rank != NO_RANK

    def _contribute(self) -> None:
        """Begin the round of the session with the blocks of its rank."""
        session, oracle = self.session, self.oracle
        assert isinstance(session, OwnedSession)
        assert isinstance(oracle, Blocks)
        rank, round_ = session.rank, session.round
        gives = oracle.gives(self.identity, rank, round_)
        self._got = oracle.spaces(rank, round_)
        session.begin_blocks(gives, self._got, self.network.now, oracle.segments(round_))

    def _check(self) -> None:
        """Have the oracle judge the blocks that have come."""
        assert isinstance(self.oracle, Blocks)
        self.oracle.gets_blocks(self.who, self.identity, self.session.round, self._got)

    def _hears(self, event: Event) -> None:
        if isinstance(event, Disagreed):
            raise Violation("wrong sum", f"{self.who} has heard of too few or too many aggregates")
        super()._hears(event)
