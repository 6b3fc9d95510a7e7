"""Puts other things in place of Python's own, for threads in virtual time, and takes them back.

Each of them decides by the calling thread: what a thread in real time makes, and calls, is real.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .process import current

_ABSENT = object()


class Patches:
    """Attributes of modules and classes that have other values until they are taken back."""

    def __init__(self) -> None:
        self._put: list[tuple[Any, str, Any, Any]] = []  # owner, name, before, now

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Give an attribute of a module or class another value."""
        self._put.append((owner, name, vars(owner).get(name, _ABSENT), value))
        setattr(owner, name, value)

    def take_back(self) -> None:
        """Give back what was there before, unless somebody else has put something there since."""
        while self._put:
            owner, name, before, now = self._put.pop()
            if vars(owner).get(name) is not now:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def chosen(real: Callable[..., Any], virtual: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that makes one of two objects, by the calling thread."""

    def make(*args: Any, **kwargs: Any) -> Any:
        return (real if current() is None else virtual)(*args, **kwargs)

    return make


class _Either(type):
    """The type of a class that `either` makes."""

    real: type
    virtual: type

    @property
    def _is_plain(cls) -> bool:
        """Return whether this is no class that a program has derived."""
        return "virtual" in vars(cls)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not cls._is_plain:
            return super().__call__(*args, **kwargs)
        return (cls.real if current() is None else cls.virtual)(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.real, name)

    def __instancecheck__(cls, thing: object) -> bool:
        return cls.__subclasscheck__(type(thing))

    def __subclasscheck__(cls, other: type) -> bool:
        if cls._is_plain and issubclass(other, (cls.real, cls.virtual)):
            return True
        return super().__subclasscheck__(other)


def either(real: type, virtual: type, bases: tuple[type, ...] = ()) -> type:
    """Make a class that stands for two: it makes one of them, by the calling thread.

    Args:
        real: what it makes in real time.
        virtual: what it makes in virtual time.
        bases: `(real,)` if programs may derive from `real`: theirs are real, then.
    """
    return _Either(real.__name__, bases, {"real": real, "virtual": virtual, "__slots__": ()})
