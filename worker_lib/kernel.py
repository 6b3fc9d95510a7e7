"""Plays rounds by the compiled kernel, and hands over to a `Session` what is not plain."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from math import inf
from types import ModuleType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.wire import ROUND_MASK, TOS_DATA
from iswitch.fast.waking import at_sockets
from iswitch.fast.worker_table import (
    KIND,
    KINDS,
    LARGE,
    LONGEST,
    LOOK_PAUSE,
    META,
    MOST_REPEATED,
    PLAYED_STRUCT,
    ROUND_STRUCT,
    SLOTS,
    STEP,
    STREAK_STRUCT,
    At,
    End,
)
from iswitch.ports.kernel.lobby import CONTROL
from iswitch.ports.kernel.mmsg import SOCKADDR_SIZE, address_of, described
from iswitch.ports.udp import UdpPort
from worker_lib.protocol.exchange import Packets
from worker_lib.protocol.express import Express, Play, Streak
from worker_lib.protocol.session import Session
from worker_lib.protocol.transfer import Progress

from .errors import as_if_lost

LONGEST_STREAK = 0.25  # seconds after which the session has to know of all rounds
LATEST = 1e9  # seconds: a time so far ahead is never
AT_ONCE = 4  # super-datagrams received in one system call: 260 kB, which a core's cache holds
NANO = 1e9
ROUND_AT, STREAK_AT, PLAYED_AT = 8 * At.SEGMENTS, 8 * At.OTHER_ROWS, 8 * At.WINDOW  # bytes
DONE, NOT_BEGUN = End.DONE.value, End.NOT_BEGUN.value

Words = npt.NDArray[np.int64]


class Place(NamedTuple):
    """Where a contribution lies, and the datagrams that it is sent in.

    Attributes:
        rows: address of its packets.
        headers: address of the datagrams' headers.
        packets: packets of each datagram but the last.
    """

    rows: int
    headers: int
    packets: int


class RoundKernel:
    """Plays the rounds of one socket.

    Args:
        port: the socket.
        kernels: the module of kernels.
    """

    def __init__(self, port: UdpPort, kernels: ModuleType) -> None:
        assert META == SOCKADDR_SIZE + CONTROL
        self._port = port
        self._play: Callable[[Words], int] = kernels.play
        self._play_next: Callable[..., int] = kernels.play_next
        self._table: Words = np.zeros(At.LENGTH, np.int64)
        self._memory = self._table.data.cast("B")
        self._bodies = np.empty((SLOTS, LONGEST), np.uint8)
        self._metas = np.zeros((SLOTS, META), np.uint8)
        self._iovecs, self._headers = described(SLOTS)
        slots = np.arange(SLOTS, dtype="<u8")
        self._iovecs["base"] = address_of(self._bodies) + slots * LONGEST
        self._iovecs["len"] = LONGEST
        self._headers["name"] = address_of(self._metas) + slots * META
        self._headers["control"] = self._headers["name"] + np.uint64(SOCKADDR_SIZE)
        self._headers["controllen"] = CONTROL
        self._known: Words = np.zeros((KINDS, KIND), np.int64)
        self._kinds = 0
        self._session: Session | None = None
        self._sent_at: Words = np.empty(0, np.int64)
        self._steps: Words = np.empty((0, STEP), np.int64)
        self._took: Words = np.zeros(MOST_REPEATED, np.int64)
        self._first = 0  # of the rounds in a row
        self._set(
            FD=port.socket.fileno(),
            SLOT_HEADERS=address_of(self._headers),
            BODIES=address_of(self._bodies),
            METAS=address_of(self._metas),
            KNOWN=address_of(self._known),
            SUPER=AT_ONCE,
            LARGE=LARGE,
        )

    def play(self, session: Session, limit: float, end: int | None = None) -> bool:
        """Play the express round of a session; False: it continues as a transfer, or is over.

        Args:
            session: the session, which has begun it.
            limit: time of CLOCK_MONOTONIC, in seconds, to return at.
            end: the `End` of the kernel that has begun this round; None: none has.
        """
        express = session.express
        assert express is not None
        self._prepare(session)
        while True:
            if end is None:
                place = self._placed(session, express.contribution, express.shape.segments)
                now = time.monotonic()
                due = session.deadline()
                until = limit if due is None or limit < due else due
                if place is None or until <= now:
                    break
                self._write(session, express, place, min(limit, now + LOOK_PAUSE / NANO), until)
                try:
                    end = self._run()
                except BaseException:  # of a signal's handler
                    self.stop(session)
                    raise
            session.played(self._played(end == DONE))
            if end == DONE:
                return True
            if end == End.UNUSUAL:
                self._hand_over(session)
                if session.express is not express or express.done:
                    return session.express is express
            elif end != End.PAUSED:
                if end == End.NOT_RECEIVED:
                    self._fail()
                break
            end = None
        return False

    def stop(self, session: Session) -> None:
        """Have the session note how far a round has come that an error has ended."""
        session.played(self._played(False))

    # Rounds in a row

    def next_rounds(self, session: Session) -> Callable[[int, int, int], int] | None:
        """Return what plays the next rounds of whole vectors; None: there is no such thing.

        It takes the addresses of a vector and of its result, and nanoseconds to give up after, and
        returns an `End`. Until `streak` nothing else may use the session and the port.
        """
        round_trip, longest = session.round_trip, time.monotonic() + LONGEST_STREAK
        due = session.deadline() or inf
        segments = session.shape.segments
        places = [self._placed(session, one, segments) for one in session.contributions()]
        last, following = places[0], places[-1]
        if last is None or following is None or self._kinds != self._port.reader.kinds:
            return None
        window, shape, self._first = session.window, session.shape, session.round
        ROUND_STRUCT.pack_into(
            self._memory,
            ROUND_AT,
            segments,
            shape.last_size,
            shape.numel * shape.dtype.itemsize,
            (session.round - 1) & ROUND_MASK,
            last.rows,
            0,
            0,
            last.headers,
            last.packets,
            session.burst,
            window.burst,
            window.ceiling,
            segments,
            segments,
            segments,
            segments,
            0,
            0,
            0,
            window.threshold,
            window.size,
        )
        self._set(CAME_AT=int(session.heard * NANO))
        STREAK_STRUCT.pack_into(
            self._memory,
            STREAK_AT,
            following.rows,
            following.headers,
            int(min(longest, due) * NANO),
            int(min(due, longest + LATEST) * NANO),
            address_of(self._took),
            0,
            0,
            0,
            round_trip.smoothed,
            round_trip.deviation,
            round_trip.floor,
            round_trip.ceiling,
        )
        return self._repeated()

    @property
    def apart(self) -> float | None:
        """Return the seconds that a store takes to the switch; None: none was made."""
        return None

    @property
    def ahead(self) -> int:
        """Return how many rounds in a row are done."""
        return int(self._table[At.COMPLETED])

    @property
    def until(self) -> int:
        """Return the round behind those in a row that are done."""
        return (self._first + self.ahead) & ROUND_MASK

    def streak(self, returned: bool = False) -> Streak:
        """Return what the rounds in a row have come to.

        Args:
            returned: count only those whose results the program has.
        """
        table, floats = self._table, self._table.view(np.float64)
        rounds = int(table[At.RETURNED]) if returned else self.ahead
        table[At.RETURNED] = rounds
        return Streak(
            rounds,
            (self._first + rounds) & ROUND_MASK,
            int(table[At.CAME_AT]) / NANO,
            float(floats[At.SMOOTHED]),
            float(floats[At.DEVIATION]),
            float(floats[At.WINDOW]),
            self._took[:rounds] / NANO,
        )

    @property
    def is_amid(self) -> bool:
        """Return whether the last of the rounds in a row has neither come back nor been counted."""
        return bool(self._table[At.REPEATED] > self._table[At.RETURNED])

    @property
    def began_at(self) -> float:
        """Return when the last of the rounds in a row began, in seconds."""
        return int(self._table[At.BEGAN_AT]) / NANO

    def _repeated(self) -> Callable[[int, int, int], int]:
        return partial(self._play_next, self._table)

    # Inside

    def _prepare(self, session: Session) -> None:
        """Have a table for this session's rounds."""
        if session is not self._session:
            self._lay_out(session)
        if self._kinds != self._port.reader.kinds:
            self._learn(session)

    def _placed(self, session: Session, contribution: Packets, segments: int) -> Place | None:
        """Say where a contribution lies; None: it does not go in bursts.

        Args:
            session: the session.
            contribution: its memory.
            segments: its packets, which may be those of a shorter vector.
        """
        packets = contribution.first(segments, session.switch)
        post = self._port.described(packets)
        if post is None or post.packets not in (1, session.burst):
            return None
        return Place(post.place, post.address, post.packets)

    def _fail(self) -> None:
        """Note that the kernel could not receive, or raise the error."""
        code = int(self._table[At.ERRNO])
        self._port.failed(OSError(code, os.strerror(code)))

    def _run(self) -> int:
        """Call the kernel; return its `End`."""
        return self._play(self._table)

    def _set(self, **values: int) -> None:
        for name, value in values.items():
            self._table[At[name]] = value

    def _write(
        self, session: Session, express: Express, place: Place, until: float, silent_at: float
    ) -> None:
        """Write a round into the table.

        Args:
            session: the session.
            express: its round.
            place: of the contribution.
            until: when to return, in seconds.
            silent_at: when nothing has come for too long, if nothing comes, in seconds.
        """
        window = session.window
        ROUND_STRUCT.pack_into(
            self._memory,
            ROUND_AT,
            express.shape.segments,
            express.contribution.shape.tail(express.shape.segments),
            express.vector.nbytes,
            session.round,
            place.rows,
            address_of(express.vector),
            address_of(express.out),
            place.headers,
            place.packets,
            session.burst,
            window.burst,
            window.ceiling,
            express.contribution.filled,
            express.sent,
            express.came,
            express.came,
            express.shape.segments - express.came,
            int(until * NANO),
            int(silent_at * NANO),
            window.threshold,
            window.size,
        )

    def _lay_out(self, session: Session) -> None:
        """Make room for the steps of a session's rounds, and write the size of its packets."""
        shape = session.shape
        self._session = session
        self._sent_at = np.zeros(shape.segments + 1, np.int64)
        self._steps = np.zeros((2 * shape.segments + 2, STEP), np.int64)
        self._set(
            SIZE=shape.packet_size,
            LOOKS=at_sockets(shape.numel * shape.dtype.itemsize, session.joined),
            SENT_AT=address_of(self._sent_at),
            STEPS=address_of(self._steps),
            MOST_STEPS=len(self._steps),
        )

    def _learn(self, session: Session) -> None:
        """Tell the kernel which kinds of datagrams bring aggregates, the last KINDS of them."""
        reader = self._port.reader
        self._kinds = reader.kinds
        found = reader.signatures(session.switch, TOS_DATA)[-KINDS:]
        for i, (signature, size) in enumerate(found):
            self._known[i] = (*np.frombuffer(signature, np.int64), size)
        self._table[At.KINDS_KNOWN] = len(found)

    def _played(self, done: bool) -> Play:
        """Return what the kernel did; of a round that is done only the last step matters."""
        window, stop, round_trip = PLAYED_STRUCT.unpack_from(self._memory, PLAYED_AT)
        steps = self._steps[stop - 1 if done else 0 : stop].tolist()
        progress = [Progress(sent, came, at / NANO) for sent, came, at in steps]
        return Play(progress, round_trip / NANO, window)

    def _hand_over(self, session: Session) -> None:
        """Let the session handle the datagrams that the kernel left."""
        table = self._table
        left = slice(int(table[At.NEXT]), int(table[At.GOT]))
        lengths = self._headers["len"][left].tolist()
        now = time.monotonic()
        with as_if_lost(session.stats):
            for burst in self._port.handed(self._bodies[left], lengths, self._metas[left]):
                session.receive(burst, now)
            self._port.push(session.transmissions(now))
        self._learn(session)
