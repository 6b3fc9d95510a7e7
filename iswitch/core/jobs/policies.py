"""The policies that an operator can choose, by name."""

from __future__ import annotations

from .lanes import Fair, Fifo, Pack, Srtf
from .policy import Policy, Static

POLICIES: dict[str, type[Policy]] = {kind.name: kind for kind in (Static, Fifo, Srtf, Pack, Fair)}
