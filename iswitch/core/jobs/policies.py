"""The policies that an operator can choose, by name."""

from __future__ import annotations

from .policy import Policy, Static
from .schedulers import Fair, Fifo, Pack, Srtf

POLICIES: dict[str, type[Policy]] = {kind.name: kind for kind in (Static, Fifo, Srtf, Pack, Fair)}
