"""Room for sums in the data plane: allocates ranges of slots to jobs."""

from __future__ import annotations


class Room:
    """Hands out ranges of a given number of slots, first fit.

    Args:
        slots: number of slots.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._taken: dict[int, int] = {}  # slots from a first one on

    def fits(self, slots: int) -> bool:
        """Return whether `slots` consecutive slots are free."""
        return self._find(slots) is not None

    def take(self, slots: int) -> int:
        """Take `slots` consecutive slots, which `fits` has found free; return the first."""
        base = self._find(slots)
        assert base is not None
        self._taken[base] = slots
        return base

    def give_back(self, base: int) -> None:
        """Free the slots from `base` on."""
        del self._taken[base]

    def _find(self, slots: int) -> int | None:
        start = 0
        for base, length in sorted(self._taken.items()):
            if base - start >= slots:
                return start
            start = base + length
        return start if self.slots - start >= slots else None
