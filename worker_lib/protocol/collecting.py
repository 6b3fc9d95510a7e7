"""Put versions together: which are wanted, which are whole, and which segments they lack."""

from __future__ import annotations

from math import inf

import numpy as np
import numpy.typing as npt

from iswitch.core.format.wire import (
    ROUND_MASK,
    VERSIONS_AHEAD,
    VERSIONS_KEPT,
    Segments,
    Shape,
    Vector,
    round_distance,
)

from .aggregates import Aggregates
from .events import Behind, Told, WasReset
from .member import RANGES_PER_HELP, Member
from .ranges import bridged, ranges
from .terms import VersionTerms

Flags = npt.NDArray[np.bool_]  # one of every segment


class _Version(Aggregates):
    """A version that is put together."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, np.empty(shape.numel, shape.dtype.numpy))
        self.asked = np.full(shape.segments, -inf)  # when each segment was asked for last
        self.told = False

    def begin(self) -> None:
        """Be another version, of which nothing has come."""
        super().begin()
        self.asked[:] = -inf
        self.told = False


class Collecting(Member[Behind | Told | WasReset]):
    """A member of an asynchronous job that puts versions together.

    Args:
        terms: of the membership.
        incarnation: Request of the Join.
    """

    terms: VersionTerms

    def __init__(self, terms: VersionTerms, incarnation: int) -> None:
        super().__init__(terms, incarnation)
        self.version = 0  # the last that was given out
        self.newest = 0  # that is known to be made of any segment
        self.behind = True
        self._floor = 0  # while behind, of versions up to this nothing is wanted
        self._since = 0  # and of those up to this no more than what is watched
        self._versions: dict[int, _Version] = {}
        self._spare: list[_Version] = []
        self._given: _Version | None = None

    def next_made(self) -> tuple[int, Vector] | None:
        """The next version, and the aggregate, (numel,), valid until the next call; None: not yet.

        Versions come in order, each once, from the one after that of `resume_at` on.
        """
        if self._given is not None:
            self._spare.append(self._given)
            self._given = None
        following = (self.version + 1) & ROUND_MASK
        whole = self._versions.get(following)
        if self.behind or whole is None or whole.remaining:
            return None
        self.version = following
        self._given = self._versions.pop(following)
        return following, self._given.out

    @property
    def backlog(self) -> int:
        """Whole versions in a row that wait for `next_made`."""
        count = 0
        while not self.behind:
            held = self._versions.get((self.version + count + 1) & ROUND_MASK)
            if held is None or held.remaining:
                break
            count += 1
        return count

    def _begin_at(self, version: int) -> None:
        """Nothing of this version, nor of one before, makes a vector whole."""
        self.newest = self._since = version
        self._floor = (version - VERSIONS_AHEAD) & ROUND_MASK
        self.behind = True
        for old in list(self._versions):
            self._drop(old)

    def _note(self, version: int) -> None:
        """This version is made of some segment."""
        if round_distance(version, self.newest) > 0:
            self.newest = version
            if self.behind:  # the newest are put together, whatever becomes of older ones
                for old in [v for v in self._versions if self._is_old(v)]:
                    self._drop(old)

    def _is_old(self, version: int) -> bool:
        return round_distance(self.newest, version) >= VERSIONS_KEPT

    def _drop(self, version: int) -> None:
        self._spare.append(self._versions.pop(version))

    def _open(self, version: int) -> _Version | None:
        """A version that is wanted; None: it is not."""
        held = self._versions.get(version)
        if held is not None:
            return held
        ahead = self._ahead(version)
        if ahead <= 0 or (self._is_old(version) if self.behind else ahead > VERSIONS_KEPT):
            return None
        held = self._spare.pop() if self._spare else _Version(self.shape)
        held.begin()
        self._versions[version] = held
        return held

    def _ahead(self, version: int) -> int:
        return round_distance(version, self._floor if self.behind else self.version)

    def _wanted_versions(self, last: int) -> list[int]:
        """Those that are to be whole, up to one, oldest first."""
        count = min(self._ahead(last), VERSIONS_KEPT)
        if self.behind:
            count = min(count, round_distance(last, self._since))
        else:
            last = self.version + count
        return [(last - back) & ROUND_MASK for back in reversed(range(count))]

    def _ask_for(
        self, lacking: list[tuple[int, _Version, Flags]], now: float, before: float
    ) -> bool:
        """Ask for segments that lack and were not asked for since; whether any lack.

        Args:
            lacking: versions, and for each segment whether it is believed to have been made.
            now: the time.
            before: what was asked for later than this, is not asked for again.
        """
        room, any_lack = RANGES_PER_HELP, False
        for version, held, made in lacking:
            if not held.remaining:
                continue
            lack = made & (held.has == 0)
            any_lack |= bool(lack.any())
            due = np.flatnonzero(lack & (held.asked <= before))
            if not len(due) or not room:
                continue
            for start, stop in bridged(ranges(due), room):
                held.asked[start:stop] = now
                self._help(Segments(version, start, stop - start), now)
                self.stats["helps"] += 1
                room -= 1
        return any_lack
