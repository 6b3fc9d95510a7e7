"""`os.environ` of each virtual process, where several are threads of one real process."""

from __future__ import annotations

import os
from collections.abc import Iterator

from .patches import Patches
from .process import current


class Environment(os._Environ[str]):
    """Shows a thread in virtual time the variables of its process, and others the real ones.

    Args:
        real: the real ones.
    """

    def __init__(self, real: os._Environ[str]) -> None:
        self.__dict__.update(vars(real))

    def __getitem__(self, name: str) -> str:
        own = _own()
        return super().__getitem__(name) if own is None else own[name]

    def __setitem__(self, name: str, value: str) -> None:
        own = _own()
        if own is None:
            super().__setitem__(name, value)
        else:
            own[name] = value

    def __delitem__(self, name: str) -> None:
        own = _own()
        if own is None:
            super().__delitem__(name)
        else:
            del own[name]

    def __iter__(self) -> Iterator[str]:
        own = _own()
        return super().__iter__() if own is None else iter(own)

    def __len__(self) -> int:
        own = _own()
        return super().__len__() if own is None else len(own)

    def __repr__(self) -> str:
        return f"environ({dict(self)!r})"


def _own() -> dict[str, str] | None:
    """Return the variables of the caller's process; None: they are the real ones."""
    task = current()
    return None if task is None else task.process.environment


def install(patches: Patches) -> None:
    """Put it in place of `os.environ`."""
    patches.put(os, "environ", Environment(os.environ))
