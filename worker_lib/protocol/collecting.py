"""Assembles versions from segments: which are wanted, which are complete, what they lack."""

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
    """A version that is being assembled."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, np.empty(shape.numel, shape.dtype.numpy))
        self.asked = np.full(shape.segments, -inf)  # when each segment was asked for last
        self.told = False

    def begin(self) -> None:
        """Start over for another version, with all segments missing."""
        super().begin()
        self.asked[:] = -inf
        self.told = False


class Collecting(Member[Behind | Told | WasReset]):
    """A member of an asynchronous job that assembles versions.

    Args:
        terms: terms of the membership.
        incarnation: the Request number of the Join.
    """

    terms: VersionTerms

    def __init__(self, terms: VersionTerms, incarnation: int) -> None:
        super().__init__(terms, incarnation)
        self.version = 0  # the last version that was given out
        self.newest = 0  # the newest version known to exist for any segment
        self.behind = True
        self._floor = 0  # while behind, versions up to this one are ignored
        self._since = 0  # while behind, only watched elements of versions up to this are wanted
        self._versions: dict[int, _Version] = {}
        self._spare: list[_Version] = []
        self._given: _Version | None = None

    def next_made(self) -> tuple[int, Vector] | None:
        """Return the next version and its aggregate, [numel]; None: it is not complete yet.

        The aggregate is valid until the next call. Versions are returned in order, each once,
        starting after the version passed to `resume_at`.
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
        """Return the number of consecutive complete versions that wait for `next_made`."""
        count = 0
        while not self.behind:
            held = self._versions.get((self.version + count + 1) & ROUND_MASK)
            if held is None or held.remaining:
                break
            count += 1
        return count

    def _begin_at(self, version: int) -> None:
        """Become behind at a version: this one and earlier ones will not be completed."""
        self.newest = self._since = version
        self._floor = (version - VERSIONS_AHEAD) & ROUND_MASK
        self.behind = True
        for old in list(self._versions):
            self._drop(old)

    def _note(self, version: int) -> None:
        """Note that a version exists for some segment."""
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
        """Return the assembly of a version, begun if needed; None: the version is not wanted."""
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
        """Return the versions to complete, up to `last`, oldest first."""
        count = min(self._ahead(last), VERSIONS_KEPT)
        if self.behind:
            count = min(count, round_distance(last, self._since))
        else:
            last = self.version + count
        return [(last - back) & ROUND_MASK for back in reversed(range(count))]

    def _ask_for(
        self, lacking: list[tuple[int, _Version, Flags]], now: float, before: float
    ) -> bool:
        """Ask for missing segments, unless asked for lately; return whether any are missing.

        Args:
            lacking: versions with their assemblies, and flags of the segments, bool [segments],
                that are believed to exist at the switch.
            now: the time, in seconds.
            before: segments asked for later than this are not asked for again.
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
