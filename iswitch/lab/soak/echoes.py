"""Decides which packets the network keeps and delivers once more."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random

from iswitch.core.format.packets import Address, Burst
from iswitch.sim.node import is_uniform

from .strangers import OUTSIDE

ECHO = 0.001, 0.06  # seconds after which packets come once more


class Echoes:
    """Decides which packets come again, and when.

    Args:
        seed: seed of the history.
        home: returns the node that has an address.
    """

    def __init__(self, seed: int, home: Callable[[Address], Address]) -> None:
        self._home = home
        self.near: Counter[Address] = Counter()  # echoes under way at each node
        self.held: dict[Address, float] = {}  # by sender: seconds for which its packets are held
        self._kept: dict[tuple[Address, Address], deque[Burst]] = {}  # the last ones, by direction
        self._rng = Random(f"echo {seed}")

    def after(self, peer: Address, burst: Burst) -> float | None:
        """Draw the seconds after which packets come again; None: they do not."""
        sender = self._home(burst.peer)
        if sender in self.held:
            return self.held[sender]
        near = self._is_near(peer, burst)
        if not near or burst.peer == OUTSIDE or self._rng.random() < 0.5:
            return None
        return float(ECHO[0] * (ECHO[1] / ECHO[0]) ** self._rng.random())

    def _is_near(self, peer: Address, burst: Burst) -> bool:
        """Return whether the sender or the receiver of packets has echoes."""
        return any(self.near[self._home(each)] for each in (peer, burst.peer))

    def older(self, peer: Address, burst: Burst) -> Burst | None:
        """Choose packets of two rounds ago to send again before the new packets of a burst."""
        if not is_uniform(burst) or burst.peer == OUTSIDE:
            return None
        kept = self._kept.setdefault((burst.peer, peer), deque(maxlen=4))
        size, now_at = burst.rows.shape[1], round_of(burst)
        older = [b for b in kept if b.rows.shape[1] == size and now_at - round_of(b) == 2]
        kept.append(burst)
        near = self._is_near(peer, burst)
        return older[-1] if near and older and self._rng.random() < 0.5 else None


def round_of(burst: Burst) -> int:
    """Read the round (or number) of a burst's first packet."""
    return int.from_bytes(burst.rows[0, :4].tobytes(), "big")
