"""Judges what a worker's session does at every packet; conduct.py says by which rules."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from iswitch.core.exchange.relayed import REMEMBERED
from iswitch.core.format.packets import Burst, Outgoing
from iswitch.core.format.wire import (
    TOS_DATA,
    Ack,
    Action,
    Control,
    Round,
    Segments,
    Status,
    round_distance,
)
from worker_lib.protocol.session import Session

from .blocks import owners_of
from .said import parsed
from .violation import Violation


class SessionConduct:
    """Judges what a worker's session does.

    Args:
        name: name of its node.
        session: the machine.
        opened: strips the MAC from a control packet.
    """

    def __init__(self, name: str, session: Session, opened: Callable[[bytes], bytes]) -> None:
        self.name = name
        self.machine = session
        self._opened = opened
        self._seen: deque[int] = deque(maxlen=REMEMBERED)
        self._rejoins = 0
        self._helped = 0
        self._was_member = False
        self._resets: deque[int] = deque(maxlen=REMEMBERED)  # rounds of Resets that it was told of
        self._doing: object = None  # the allreduce that no Reset may end that it was told of before
        # When it joined anew, and what it must send now: a round, and a segment or any (None).
        self._owes: tuple[float, int, int | None] | None = None

    def comes(self, burst: Burst | None, now: float) -> None:
        """Note the machine's state before it takes packets."""
        session = self.machine
        if self._owes is not None and now > self._owes[0]:
            owed, round_, first = self._owes
            self._owes = None
            same = session.transfer is not None and session.transfer.round == round_
            if same and not session.halted and session.member:
                raise Violation(
                    "not sent", f"{self.name} has joined anew at {owed:g} s and sends no {first}"
                )
        if session.stats["rejoins"] != self._rejoins:
            self._rejoins = session.stats["rejoins"]
            self._seen.clear()
            self._resets.clear()
        self._doing = None
        self._was_member = session.member or not session.stats["rejoins"]
        if burst is None or burst.tos == TOS_DATA:
            return
        known = set(self._resets)
        for row in burst.rows:
            if session.key is not None and session.key.opened(row.tobytes()) is None:
                continue
            packet = parsed(self._opened(row.tobytes()), None)
            self._note_reset(packet, known)
            relayed = packet is not None and packet.action in (
                Action.HELP,
                Action.HALT,
                Action.RESET,
            )
            if packet is None or not relayed or packet.job != session.job:
                continue
            if packet.request not in self._seen:
                self._seen.append(packet.request)
                value = packet.value
                tells = isinstance(value, Segments) and not value.count  # to ask for its slots
                self._helped += packet.action is Action.HELP and not tells

    def _note_reset(self, packet: Control | None, known: Collection[int]) -> None:
        """Note a Reset that the session heeds; a repeated one must not end the transfer."""
        session = self.machine
        if packet is None or packet.job != session.job:
            return
        value = packet.value
        if isinstance(value, Round):  # to the round where it stands: it may be a late copy
            heeds = session.partial or round_distance(value.round, session.round) > 0
        elif isinstance(value, Ack) and value.action == Action.RESET and packet.status == Status.OK:
            heeds = session.requests.answered_by(packet) is not None
        else:
            return
        if value.round in known:
            self._doing = session.transfer
        elif heeds:
            self._resets.append(value.round)

    def says(self, burst: Burst | None, sends: Sequence[Outgoing], now: float) -> None:
        """Judge the packets sent, and the effect of those received."""
        session = self.machine
        if session.stats["helped"] != self._helped:
            raise Violation(
                "executed again" if session.stats["helped"] > self._helped else "not helped",
                f"{self.name} has helped {session.stats['helped']} times, asked {self._helped} "
                "times",
            )
        transfer = session.transfer
        if burst is not None and self._doing not in (None, transfer):
            raise Violation("executed again", f"{self.name} is reset by a Reset that it knows")
        if burst is not None and session.member and not self._was_member:
            self._was_member = True
            if transfer is not None and not session.halted and transfer.missing():
                owed = None if owners_of(session.shape) else transfer.missing()[0][0]
                self._owes = now, transfer.round, owed
        elif burst is None and self._owes is not None:
            _, round_, index = self._owes
            wanted = round_.to_bytes(4, "big") + (
                b"" if index is None else index.to_bytes(4, "big")
            )
            for out in sends:
                if out.tos == TOS_DATA and out.rows[0, : len(wanted)].tobytes() == wanted:
                    self._owes = None
                    break
