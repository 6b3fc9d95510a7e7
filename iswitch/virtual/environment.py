"""`os.environ` of each virtual process, where several are threads of one real process."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping

from .process import current


class Environment(MutableMapping[str, str]):
    """Shows a thread in virtual time the variables of its process, and others the real ones.

    Args:
        real: the real ones.
    """

    def __init__(self, real: MutableMapping[str, str]) -> None:
        self._real = real

    @property
    def _shown(self) -> MutableMapping[str, str]:
        task = current()
        own = None if task is None else task.process.environment
        return self._real if own is None else own

    def __getitem__(self, name: str) -> str:
        return self._shown[name]

    def __setitem__(self, name: str, value: str) -> None:
        self._shown[name] = value

    def __delitem__(self, name: str) -> None:
        del self._shown[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shown)

    def __len__(self) -> int:
        return len(self._shown)

    def copy(self) -> dict[str, str]:
        """Return the variables as a dictionary."""
        return dict(self._shown)


def install() -> None:
    """Put it in place of `os.environ`."""
    if not isinstance(os.environ, Environment):
        os.environ = Environment(os.environ)  # type: ignore[assignment]  # noqa: B003
