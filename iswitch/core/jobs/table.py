"""The jobs of a switch, by number and in a sorted list."""

from __future__ import annotations

from bisect import bisect_left, insort

from iswitch.core.format.keys import Key, Keys

from .job import Job


class Jobs(dict[int, Job]):
    """Maps job numbers to jobs.

    The numbers of jobs that share a key (or have none) are also kept in a sorted list, so that
    requests that list jobs one by one need no sorting.

    Args:
        keys: keys of the keyed jobs.
    """

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self._keys = keys
        self._in_order: dict[Key | None, list[int]] = {}

    def __setitem__(self, number: int, job: Job) -> None:
        if number not in self:
            insort(self._like(number), number)
        super().__setitem__(number, job)

    def __delitem__(self, number: int) -> None:
        super().__delitem__(number)
        self._like(number).remove(number)

    def next(self, named: int, first: int) -> int | None:
        """Return the lowest number from `first` on of a job that shares the key of job `named`."""
        numbers = self._like(named)
        at = bisect_left(numbers, first)
        return numbers[at] if at < len(numbers) else None

    def many(self, named: int) -> int:
        """Return the number of jobs that share the key of job `named`."""
        return len(self._like(named))

    def _like(self, number: int) -> list[int]:
        return self._in_order.setdefault(self._keys.of(number), [])
