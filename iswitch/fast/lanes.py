"""Runs the switch's kernel at a port, and hands what is not plain to the Python way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.packets import Address, Outgoing, Rows
from iswitch.core.switch import Switch
from iswitch.ports.kernel.mmsg import IOVEC, MMSGHDR, address_of
from iswitch.ports.rings.serving import Ringed

from . import tables as t
from .lending import Lending
from .lent import Way
from .ring_lending import LentRings
from .ring_table import Rings
from .tables import READABLE, SECOND, Form
from .waking import at_sockets

LONGEST = 1.0  # seconds of one call; then the port counts what the kernel dropped
SUPERS = 4  # super-datagrams at once: 256 kB, which a core's cache holds
SEVERAL = 8  # flows to learn at once


class Layout(NamedTuple):
    """Bytes of what comes and goes with each datagram."""

    head: int = 0  # of a head that is received apart from the rest
    name: int = 0  # of its sender's address
    control: int = 0  # of control messages
    receiver: int = 0  # of a receiver's address


class Inbox:
    """Places for datagrams that come.

    Attributes:
        bodies: their payloads, (BATCH, STRIDE_BYTES) bytes.
        keys: what tells flows apart: heads, or addresses and control messages, (BATCH, any) bytes.
        status: control messages, (BATCH, any) bytes.
        lengths: bytes of each, with its head, (BATCH,).
        messages: the descriptions, (BATCH, 8).
    """

    def __init__(self, layout: Layout) -> None:
        size = layout.name + layout.control
        self.bodies: Rows = np.zeros((t.BATCH, t.STRIDE_BYTES), np.uint8)
        self.status: Rows = np.zeros((t.BATCH, size), np.uint8)
        self.keys: Rows = self.status
        if layout.head:
            self.keys = np.zeros((t.BATCH, t.HEAD_ROOM), np.uint8)
        steps = np.arange(t.BATCH, dtype="<u8")
        self._parts = parts = np.zeros((t.BATCH, 2), IOVEC)
        places = (self.keys, layout.head), (self.bodies, t.STRIDE_BYTES)
        for i, (array, length) in enumerate(places):
            parts["base"][:, i] = address_of(array) + steps * array.strides[0]
            parts["len"][:, i] = length
        described = np.zeros(t.BATCH, MMSGHDR)
        described["iov"] = address_of(parts) + steps * parts.strides[0]
        described["iovlen"] = 2
        described["name"] = address_of(self.status) + steps * size
        described["namelen"] = layout.name
        described["control"] = described["name"] + np.uint64(layout.name)
        described["controllen"] = layout.control
        self.lengths: npt.NDArray[np.uint32] = described["len"]
        self.messages: t.Table = described.view(np.int64).reshape(t.BATCH, -1)


def outbox(layout: Layout) -> tuple[t.Table, t.Table]:
    """Make places for messages to send, (MOST_OUT, 8), and for the two parts of each."""
    parts = np.zeros((t.MOST_OUT, 4), np.int64)
    described = np.zeros(t.MOST_OUT, MMSGHDR)
    steps = np.arange(t.MOST_OUT, dtype="<u8")
    described["iov"] = address_of(parts) + steps * parts.strides[0]
    described["iovlen"] = 2
    described["namelen"] = layout.receiver
    return described.view(np.int64).reshape(t.MOST_OUT, -1), parts


class Lane(ABC):
    """Serves plain datagrams of one port, and records of rings beside it, in compiled code.

    Args:
        switch: the switch at the port.
        kernels: the module of kernels.
        layout: bytes of what comes and goes.
        sockets: descriptors from which to receive.
        clock: returns monotonic seconds.
        ringed: the port with rings beside it; None: there are none.
    """

    send_flags = 0
    machine: Any  # handles what is not plain: the switch, or the chassis around it
    out: Any  # the port that sends what it gives

    def __init__(
        self,
        switch: Switch,
        kernels: ModuleType,
        layout: Layout,
        sockets: list[int],
        clock: Callable[[], float],
        ringed: Ringed[Any, Any] | None,
    ) -> None:
        self.switch = switch
        self.clock = clock
        self._serve: Callable[[t.Tables, Rings, t.Wires], int] = kernels.serve
        self.inbox = inbox = Inbox(layout)
        words = inbox.keys.shape[1] // 8
        self.lending = Lending(switch, words, self._way, lambda peers: self.rings.parts(peers))
        self.rings = LentRings(switch, self.lending, ringed.rings if ringed else None, clock)
        self.tables = self.lending.tables
        self._sockets = sockets
        self.wires = t.Wires(
            np.zeros(0, np.int64),
            inbox.messages,
            inbox.keys.view(np.int64),
            inbox.status,
            *outbox(layout),
            np.zeros((t.MOST_OUT, 4), np.int64),
            np.zeros((t.MOST_OUT, t.HEAD_ROOM), np.uint8),
            np.zeros(4, np.int64),
        )
        for column, value in {
            t.SOCKETS: len(sockets),
            t.SEND_FLAGS: self.send_flags,
            t.IS_ETHERNET: bool(layout.head),
            t.AT_ONCE: SUPERS,
            t.BODIES: address_of(inbox.bodies),
            t.STRIDE: t.STRIDE_BYTES,
            t.NAME_ROOM: layout.name,
            t.CONTROL_ROOM: layout.control,
            t.UNSENT: -1,
        }.items():
            self.tables.parameters[column] = value

    def ready(self) -> bool:
        """Lend the jobs; return whether one is plain."""
        if self.rings.differs:
            return False
        if self.has_changed():
            self.lending.forget()
            self.rings.lay_out()
        if not self.lending.prepare(self.clock()):
            return False
        self.rings.choose()
        return True

    def run(
        self, due: float | None, now: float, spin: float, wake: int, timer: float | None = None
    ) -> bool:
        """Serve until something is not plain, and handle that; return whether others have to look.

        They have to after a signal, when something can be read that no kernel reads, at `due`, and
        when much came that was not plain.

        Args:
            due: the time at which others have to look, in seconds; None: at any time.
            now: the time, in seconds.
            spin: seconds to poll before sleeping, at least.
            wake: descriptor that can be read when the call must return.
            timer: the time at which to return, though there is nothing to look at; None: never.
        """
        parameters = self.tables.parameters
        until = now + LONGEST if due is None else min(due, now + LONGEST)
        soonest = until if timer is None else min(until, timer)
        parameters[t.DEADLINE] = int(soonest * SECOND)
        parameters[t.SPIN] = max(int(spin * SECOND), self._looks())
        rings = self.rings.rings
        bells = [] if rings is None else [rings.bells.fileno()]
        descriptors = [*self._sockets, *bells, *self.others(), wake]
        parameters[t.BELLS] = len(self._sockets) if bells else -1
        parameters[t.DESCRIPTORS] = len(descriptors)
        polled = np.array(descriptors, np.int64) & 0xFFFFFFFF  # also if one is negative: no file
        wires = self.wires._replace(descriptors=polled)
        result = self._serve(self.tables, self.rings.lend(), wires)
        self.settle()
        self.rings.settle()
        for out, error in self.lending.unsent():
            self.send(out, error, now)
        for job in self.lending.landed:
            for out in self.switch.after(job, self.clock()):
                self.send(out, 0, now)
        if result == t.BROKEN:
            self.note_broken(int(parameters[t.ERROR]))
        start, stop = int(parameters[t.REST]), int(parameters[t.CAME])
        if start < stop:
            parameters[t.REST] = stop
            self.handle(int(parameters[t.SOCKET]), start, stop)
        if result == t.ODD:
            self._handle_record(int(parameters[t.RING]))
        if rings is not None and result == t.OTHERS:
            rings.admit()  # the kernel has heard of whoever asks
        # A batch as large as it could be may have more behind it: Python takes larger ones.
        if result in (t.INTERRUPTED, t.OTHERS) or stop - start >= SUPERS:
            return True
        if result == t.TIMER and self.clock() >= until:
            return True
        return bool((polled[len(self._sockets) :] >> READABLE).any())

    def _looks(self) -> int:
        """Return the nanoseconds for which to look at sockets before sleeping."""
        jobs = self.tables.jobs[: self.tables.parameters[t.JOBS]]
        longest = int((jobs[:, t.SEGMENTS] * jobs[:, t.SIZE]).max(initial=0))
        members = sum(len(job.contributors()) for job in self.switch.jobs.values())
        return at_sockets(longest, members)

    def _way(self, form: Form, peers: tuple[Address, ...]) -> Way | None:
        """Say how packets of a form reach their receivers; None: in no plain way."""
        if self.rings.serve(peers):
            return self.rings.way(peers)
        return self.way(form, peers)

    def learn(self, key: bytes, peer: Address, tos: int, columns: dict[int, int]) -> None:
        """Note a flow that a kernel may serve.

        Args:
            key: its head or control messages.
            peer: the sender.
            tos: the ToS byte.
            columns: what else is known of it.
        """
        kind = classify(tos)
        # Control beside the rings of a worker tells that there is another process.
        if kind is Traffic.DATA or (kind is Traffic.CONTROL and not self.rings.serve((peer,))):
            asks = {t.ASKS: kind is Traffic.CONTROL}
            self.lending.add_flow(key, peer, columns | asks)

    def _handle_record(self, i: int) -> None:
        """Handle what a worker has written next in the Python way."""
        now, lacked = self.clock(), False
        for burst in self.rings.come(i, now):
            try:
                self.out.push(self.machine.receive(burst, now))
            except MemoryError:  # handle the other packets that have come
                lacked = True
        if lacked:
            raise MemoryError

    @abstractmethod
    def has_changed(self) -> bool:
        """Return whether flows or ways that were lent may be wrong now."""

    @abstractmethod
    def way(self, form: Form, peers: tuple[Address, ...]) -> Way | None:
        """Say how packets of a form reach receivers without rings; None: in no plain way."""

    @abstractmethod
    def others(self) -> list[int]:
        """Return further descriptors, which the Python way reads."""

    def settle(self) -> list[tuple[Address, float]]:
        """Take up what the kernel has done; return who was heard, and when, in seconds."""
        return self.lending.settle()

    @abstractmethod
    def send(self, out: Outgoing, error: int, now: float) -> None:
        """Send what the kernel did not take.

        Args:
            out: packets, counted as sent already.
            error: why the system refused them; 0: it was not asked.
            now: the time, in seconds.
        """

    @abstractmethod
    def note_broken(self, error: int) -> None:
        """Take note of an error on receiving."""

    @abstractmethod
    def handle(self, socket: int, start: int, stop: int) -> None:
        """Handle datagrams start..stop-1 of the inbox in the Python way, and learn their flows."""
