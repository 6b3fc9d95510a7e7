"""Plays rounds over rings by the compiled kernel, and by UDP while there are none."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from types import ModuleType

import numpy as np

from iswitch.fast import loading
from iswitch.fast.ring_table import LENT, NEAR, Its
from iswitch.ports.kernel.mmsg import address_of
from iswitch.ports.rings.channel import LocalPort
from iswitch.ports.rings.link import Link
from iswitch.ports.rings.memory import HEAD, LINE
from iswitch.ports.udp import UdpPort
from worker_lib.protocol.exchange import Packets
from worker_lib.protocol.express import Streak
from worker_lib.protocol.session import Session

from .errors import as_if_lost
from .kernel import NANO, Place, Words
from .owned_kernel import OwnedKernel

LENT_AT = 8 * Its.UP_WRITTEN  # bytes of the table


class RingRoundKernel(OwnedKernel):
    """Plays the rounds of one port.

    Args:
        port: the socket, and rings while a switch offers them.
        kernels: the module of kernels for the socket.
        over_rings: that of kernels for rings.
    """

    def __init__(
        self,
        port: LocalPort,
        kernels: ModuleType,
        over_rings: ModuleType,
    ) -> None:
        super().__init__(port, kernels)
        self._local = port
        self._over_rings: Callable[[Words, Words], int] = over_rings.play
        self._next_over_rings: Callable[..., int] = over_rings.play_next
        self._streak: Link | None = None  # the rings that rounds in a row go through
        self._rings: Words = np.zeros(Its.LENGTH, np.int64)
        self._rings[Its.ONE], self._rings[Its.NEAR] = 1, NEAR
        self._first_line = np.zeros(LINE, np.uint8)
        self._rings[Its.FIRST_LINE] = address_of(self._first_line)
        self._lent_memory = self._rings.data.cast("B")
        self._places: dict[Packets, Place] = {}  # of a session
        self._lent: object = None  # the link and the group whose places are in the table

    @property
    def apart(self) -> float | None:
        """Return the seconds that a store takes to the switch, as `RoundKernel` does."""
        return int(self._rings[Its.APART]) / NANO or None

    def _placed(self, session: Session, contribution: Packets, segments: int) -> Place | None:
        """Say where a contribution lies, as `RoundKernel` does."""
        if not self._local.has_rings:
            return super()._placed(session, contribution, segments)
        place = self._places.get(contribution)
        if place is None:
            rows, _ = contribution.rows(0, session.shape.segments)
            place = self._places[contribution] = Place(address_of(rows), 0, 1)
        return place

    def _lay_out(self, session: Session) -> None:
        """Make room for a session's rounds, as `RoundKernel` does."""
        super()._lay_out(session)
        self._places.clear()

    def _run(self) -> int:
        """Call a kernel; return its `End`."""
        link = self._local.link
        if link is None or link.down is None:
            return super()._run()
        self._lend(link)
        try:
            return self._over_rings(self._table, self._rings)
        finally:  # also if a signal's handler raises an error
            self._settle(link)

    def _repeated(self) -> Callable[[int, int, int], int]:
        link = self._local.link
        if link is None or link.down is None:
            self._streak = None
            return super()._repeated()
        self._lend(link)
        self._streak = link
        return partial(self._next_over_rings, self._table, self._rings)

    def streak(self, returned: bool = False) -> Streak:
        """Return what the rounds in a row have come to, and take up the ends of the rings."""
        if self._streak is not None:
            self._settle(self._streak)
        return super().streak(returned)

    def _lend(self, link: Link) -> None:
        """Write the ends of the rings into the table."""
        down, theirs, table = link.down, link.theirs, self._rings
        assert down is not None
        assert theirs is not None
        group = link.group or down
        if self._lent != (link, group):
            self._lent = link, group
            table[Its.UP], table[Its.UP_SIZE] = address_of(link.up.data) - HEAD, link.up.size
            table[Its.DOWN], table[Its.DOWN_SIZE] = address_of(down.data) - HEAD, down.size
            table[Its.GROUP], table[Its.GROUP_SIZE] = address_of(group.data) - HEAD, group.size
            table[Its.KICK], table[Its.BELL] = theirs.fd, link.bell
            table[Its.CONNECTION] = link.connection.fileno()
        LENT.pack_into(
            self._lent_memory,
            LENT_AT,
            link.up.written,
            down.taken,
            group.taken,
            link.number if link.group else -1,
            link.sleeper.sleeps,
            link.sleeper.number,
            theirs.rung,
        )

    def _settle(self, link: Link) -> None:
        """Take up what the kernel has done."""
        written, alone, taken, _, sleeps, number, rung = LENT.unpack_from(
            self._lent_memory, LENT_AT
        )
        down, group = link.down, link.group or link.down
        assert link.theirs is not None
        assert down is not None
        assert group is not None
        link.up.written, link.theirs.rung = written, rung
        link.sleeper.sleeps, link.sleeper.number = sleeps, number
        down.taken, group.taken = alone, taken  # in no group these are one

    def _hand_over(self, session: Session) -> None:
        """Let the session handle what has come in the Python way."""
        if not self._local.has_rings:
            super()._hand_over(session)
            return
        now = time.monotonic()
        with as_if_lost(session.stats):
            for burst in self._local.pull():
                session.receive(burst, now)
            self._local.push(session.transmissions(now))


def load(port: UdpPort) -> OwnedKernel | None:
    """Return a kernel for the rounds of a worker's port; None: they are played in Python.

    It may have to be compiled first, so call it before the worker joins.
    """
    if not loading.available() or type(port) not in (UdpPort, LocalPort):
        return None
    try:
        kernels = loading.load("worker_kernel")
        if isinstance(port, LocalPort):
            over_rings = loading.load("ring_worker_kernel")
            return RingRoundKernel(port, kernels, over_rings)
    except ImportError as error:
        loading.say(f"Numba cannot be used, so rounds are played in Python: {error}")
        return None
    return OwnedKernel(port, kernels)
