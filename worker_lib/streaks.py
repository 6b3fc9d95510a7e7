"""Plays rounds in a row by a kernel's calls, between which the session knows nothing of them."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable

from iswitch.core.format.wire import Vector

from .driving import Driver


class Streaks(Driver):
    """Drives a session whose rounds may be played in a row."""

    _went_express = False  # the last round, played by the kernel

    @abstractmethod
    def _sum(
        self,
        vector: Vector,
        out: Vector,
        began: float,
        timeout: float,
        own: bool,
        end: int | None = None,
    ) -> None:
        """Play the current round.

        Args:
            vector, out, timeout, own: as for `Membership.allreduce`.
            began: when the call began, in seconds.
            end: the `End` of the kernel that has begun the round; None: none has.
        """

    def begin_streak(self, numel: int) -> Callable[[int, int, int], int] | None:
        """Return what plays rounds like the last one, `RoundKernel.next_rounds`; None: nothing.

        Until `end_streak` nothing else may use the session and the socket.

        Args:
            numel: elements of the last round's vector.
        """
        session, kernel = self.session, self.kernel
        alike = self._went_express and self._is_plain and numel == session.shape.numel
        news = session.has_events or self._notice is not None
        if not alike or news or kernel is None or not session.may_express(session.shape.segments):
            return None
        return kernel.next_rounds(session)

    def end_streak(self, returned: bool) -> list[float]:
        """Have the session know of rounds in a row; return how long each took, in seconds.

        Args:
            returned: count only rounds whose results the program has.
        """
        assert self.kernel is not None
        streak = self.kernel.streak(returned)
        self.session.played_streak(streak)
        took: list[float] = streak.took.tolist()
        return took

    def go_on(self, vector: Vector, out: Vector, end: int, timeout: float, own: bool) -> float:
        """Finish the last round of a streak, which the kernel has not; return its seconds.

        Args:
            vector, out, timeout, own: as for `allreduce`, but in any shape.
            end: why the kernel has not.

        Raises:
            WorkerError: the sum could not be had in that time.
        """
        assert self.kernel is not None
        began = self.kernel.began_at
        self._sum(vector.reshape(-1), out.reshape(-1), began, timeout, own, end)
        return time.monotonic() - began

    def stop(self, vector: Vector, out: Vector, own: bool) -> None:
        """Give up the round of a streak, if there is one, from which the program got an error.

        Args:
            vector, out, own: as for `go_on`.
        """
        session, kernel = self.session, self.kernel
        assert kernel is not None
        if not kernel.is_amid:
            return
        session.begin_express(vector.reshape(-1), out.reshape(-1), kernel.began_at, own, True)
        kernel.stop(session)
        session.abandon()
