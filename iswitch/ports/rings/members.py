"""The switch's ends of the rings of one worker, and of a group of workers."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from weakref import ref

from iswitch.core.format.packets import Address, Rows

from . import meeting
from .link import SIZE
from .memory import attach, create
from .pacing import HeldWriter, Inlet, Lanes
from .ring import (
    GROUP,
    GROUP_SHIFT,
    PIECE,
    TAKEN,
    Bell,
    Packets,
    Reader,
    Sleeper,
    check_bell,
    group_taken,
)


class Guest:
    """A worker at the switch's UNIX socket; it has rings once it has said hello."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def close(self) -> None:
        """Close the descriptors."""
        self.connection.close()


class Group:
    """Members that get one copy of what goes to all of them.

    Args:
        members: the members.
        size: bytes of their ring; None: as usual.

    Raises:
        OSError: there is no memory for it.
    """

    def __init__(self, members: tuple[Member, ...], size: int | None = None) -> None:
        self.members = members
        self.peers = tuple(member.address for member in members)
        self.piece = members[0].piece
        self.is_left = False  # nothing more is written for it: a member is in another, or lags
        self.heirs = members  # who get a group once this one is left, and its packets have come
        fd, memory = create(size or SIZE)
        try:
            self.down = HeldWriter(memory)
            for member in members:
                member.invite(self, fd)
        finally:
            os.close(fd)

    def put(self, packets: Packets, due: float | None = None) -> bool:
        """Write packets for all members; False: one has not taken enough before.

        Args:
            packets: the packets.
            due: when they count; None: at once.
        """
        taken = min([member.taken_of(self.down.written) for member in self.members])
        if due is None:
            return self.down.put(packets, taken)
        return self.down.hold(packets, taken, due)

    def wake(self) -> None:
        """Wake all members up that sleep."""
        for member in self.members:
            member.wake()

    def leave(self, heirs: tuple[Member, ...] = ()) -> None:
        """Write nothing more; what is under way comes when it is due.

        Args:
            heirs: members that get a group of their own then.
        """
        self.is_left, self.heirs = True, heirs

    def end(self) -> None:
        """Write nothing more; the members that have taken least lag until they have taken all."""
        self.leave()
        taken = [member.taken_of(self.down.written) for member in self.members]
        for member, at in zip(self.members, taken, strict=True):
            if at == min(taken):
                member.lags, member.behind = True, self.down.written


class Member(Guest):
    """A worker with rings.

    Args:
        guest: its connection.
        address: of its UDP socket.
        memory: descriptor of the memory that it writes; it is closed here.
        bell: its eventfd; it is closed here unless the member is made.
        lanes: the link to its host, if that has a rate.
        size: bytes of the ring to it; None: as usual.

    Raises:
        BrokenRing: its memory or bell cannot be used.
        OSError: there is no memory for it, or it is gone.
    """

    def __init__(
        self,
        guest: Guest,
        address: Address,
        memory: int,
        bell: int,
        lanes: Lanes | None = None,
        size: int | None = None,
    ) -> None:
        super().__init__(guest.connection)
        self.address = address
        self.peers = (address,)
        opened = [bell]
        try:
            self.up = Reader(attach(memory))
            self.bell = Bell(self.up.words, bell)
            check_bell(bell)
            self.kick = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            opened.append(self.kick)
            fd, mapped = create(size or SIZE)
            try:
                meeting.say(self.connection, meeting.HELLO, [self.kick, fd])
            finally:
                os.close(fd)
        except BaseException:
            meeting.close_all(opened)
            raise
        self.down = HeldWriter(mapped)
        self.sleeper = Sleeper(self.down.words)
        self.lanes = lanes
        self.inlet = None if lanes is None else Inlet(self.up, lanes.inward)
        self.more = False  # its ring may have more than the last `read` has looked at
        self.is_gone = False
        self.lags = False  # it does not take what is sent to its group
        self.behind = 0  # bytes of its group's ring that it has to take before the next
        self.group: Callable[[], Group | None] = lambda: None  # the last one, while it lives
        self.number = 0
        self.group_taken = 0

    def close(self) -> None:
        """Close the descriptors."""
        self.is_gone = True
        super().close()
        os.close(self.kick)
        os.close(self.bell.fd)

    def invite(self, group: Group, fd: int) -> None:
        """Hand over a group's ring, which takes the place of one that was left.

        No packet is under way in that one: the worker reads it no more after this.

        Raises:
            OSError: the worker is gone, or does not read.
        """
        meeting.say(self.connection, str(self.number + 1).encode(), [fd])
        self.group = ref(group)
        self.number += 1
        self.group_taken = self.behind = 0

    def taken_of(self, written: int) -> int:
        """Return how many bytes it has taken of those that were written into its group's ring."""
        word = self.up.words[GROUP]
        if word >> GROUP_SHIFT == self.number:
            self.group_taken = group_taken(word, self.group_taken, written)
        return self.group_taken

    def wake(self) -> None:
        """Wake the worker up if it sleeps, after something was written for it, and a `fence`."""
        if not self.is_gone:
            self.bell.ring()

    def piece(self, rows: Rows) -> int:
        """Return the bytes of a record for these packets."""
        return PIECE if self.lanes is None else self.lanes.outward.piece(rows)

    def put(self, packets: Packets, due: float | None = None) -> bool:
        """Write packets for this member alone; False: there is no room for them.

        Args:
            packets: the packets.
            due: when they count; None: at once.
        """
        if due is None:
            return self.down.put(packets, self.up.words[TAKEN])
        return self.down.hold(packets, self.up.words[TAKEN], due)

    def catches_up(self) -> bool:
        """Return whether it has taken all that was written for it, alone and with its group."""
        return (
            self.up.words[TAKEN] == self.down.written and self.taken_of(self.behind) >= self.behind
        )

    def read(self, now: float) -> Iterator[Packets]:
        """Yield packets that have come; they are given up when the next are asked for.

        Of a ring without a link these are one record's.

        Args:
            now: the time, in seconds, of which only links know.

        Raises:
            BrokenRing: the worker does not keep to the layout.
        """
        if self.inlet is not None:
            self.more = self.inlet.look(now)
            try:
                yield from self.inlet.read(now)
            finally:
                self.down.words[TAKEN] = self.inlet.taken
            return
        packets = self.up.next()
        self.more = packets is not None
        if packets is not None:
            try:
                yield packets
            finally:  # if they could not be handled, they are lost
                self.up.take()
                self.down.words[TAKEN] = self.up.taken
