"""The policies that an operator can choose, by name."""

from __future__ import annotations

from .fallback import BestEffort, Preempt
from .policy import Policy, Static
from .schedulers import Fair, Fifo, Pack, Srtf
from .shares import Pool

KINDS = Static, Fifo, Srtf, Pack, Fair, Pool, BestEffort, Preempt
POLICIES: dict[str, type[Policy]] = {kind.name: kind for kind in KINDS}
