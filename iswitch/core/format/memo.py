"""Memory for results that would be worked out again: bounded, or as long-lived as their objects."""

from __future__ import annotations

from typing import Any, Generic, TypeVar
from weakref import ref

K = TypeVar("K")
V = TypeVar("V")


class Memo(dict[K, V]):
    """A dictionary that forgets everything when it is full.

    So a flood of ever new keys costs little time, and no further memory. A lookup costs as much as
    a dictionary's.

    Args:
        most: entries that it holds.
    """

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def keep(self, key: K, value: V) -> V:
        """Remember a value, and return it."""
        if len(self) >= self.most and key not in self:
            self.clear()
        self[key] = value
        return value


class Notes(Generic[V]):
    """Remembers values about objects of others, each for as long as its object lives."""

    __slots__ = ("_notes",)

    def __init__(self) -> None:
        self._notes: dict[int, tuple[ref[Any], V]] = {}

    def get(self, about: object) -> V | None:
        """Return the note about an object (compared by identity); None: there is no note."""
        found = self._notes.get(id(about))
        return None if found is None else found[1]

    def keep(self, about: Any, note: V) -> V:
        """Remember a note about an object (by identity) while the object lives; return the note."""
        key, notes = id(about), self._notes
        notes[key] = ref(about, lambda _: notes.pop(key, None)), note
        return note
