"""TCP sockets in virtual time, for programs and libraries that use Python's `socket`.

`install` makes `socket.socket` a `VirtualSocket` for threads in virtual time. It has a descriptor,
of a real socket that is never used; by that `select` and `selectors` know it. A connection is a
stream of the world: `iswitch.sim.streams` says what it costs, `words.py` how to speak of it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from . import words
from .patches import Patches
from .process import Process, current
from .sockets import REFUSAL, NotVirtual
from .words import CONNECTING, DATA, ENDED, ENDING, LOST, REFUSED, RESET, arrival
from .world import ANY, LOCALHOST, Place

if TYPE_CHECKING:
    from collections import deque

    from iswitch.core.format.packets import Burst

MOST = 8 << 20  # bytes that are handed over at a time
TIMEVAL = struct.Struct("@ll")  # of SO_RCVTIMEO: seconds and microseconds

_real_new = socket.socket.__new__


class VirtualSocket(socket.socket):
    """An IPv4 socket of a thread in virtual time.

    Datagrams are refused; such a socket can be connected only, to learn its own address. Sending
    never waits: what is under way lies in the memory of the world.

    Attributes:
        virtual: the number of its port or stream in the process; None: it has none yet.
    """

    virtual: int | None

    def __init__(
        self,
        family: int = socket.AF_INET,
        type: int = socket.SOCK_STREAM,
        proto: int = 0,
        fileno: int | None = None,
    ) -> None:
        super().__init__(socket.AF_INET if family == -1 else family, type, proto, fileno)
        task = current()
        assert task is not None
        self._process: Process = task.process
        self._process.sockets[self.fileno()] = self
        self._own, self._peer = Place(ANY, 0), Place(ANY, 0)
        self._patience: float | None = None  # seconds, by SO_RCVTIMEO
        self._at = 0  # bytes of the first burst that are read
        self._hears: bool | None = None  # whether it listens; None: it does neither
        self._ended = 0  # ENDED or RESET, once it was told
        self._target: Place | None = None  # to which it connects without waiting
        self._error = 0  # of that, for SO_ERROR
        self.virtual = None

    # Opening

    def bind(self, address: Any) -> None:
        """Name the socket's own address."""
        self._own = self._process.home.place(address)

    def listen(self, backlog: int = 0) -> None:  # noqa: ARG002
        """Let connections come."""
        self.virtual, self._own = self._process.listen(*self._own)
        self._hears = True

    def accept(self) -> tuple[socket.socket, Any]:
        """Wait for a connection; return it, and the address of the other side."""
        if not self._hears:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        burst = self._wait(self.gettimeout())
        self._inbox.popleft()
        number, *peer = arrival(burst)
        made = VirtualSocket()
        made.virtual, made._own, made._peer, made._hears = number, self._own, Place(*peer), False
        return made, tuple(peer)

    def connect(self, address: Any) -> None:
        """Connect to a listening socket; a datagram's only learns its own address."""
        peer = self._process.home.place(address)
        if peer.host == ANY:
            peer = peer._replace(host=LOCALHOST)
        if self.type & 0xF == socket.SOCK_DGRAM:
            self._own, self._peer = Place(self._process.home.address, 0), peer
            return
        if self._target is not None:
            raise BlockingIOError(errno.EALREADY, os.strerror(errno.EALREADY))
        self.virtual, self._own = self._process.connect(*self._own, peer)
        self._put(CONNECTING)
        if self.gettimeout() == 0:
            self._target = peer
            raise BlockingIOError(errno.EINPROGRESS, os.strerror(errno.EINPROGRESS))
        what = self._wait(self.gettimeout()).tos
        if what == REFUSED:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._fail_if_lost()
        self._inbox.popleft()
        self._peer, self._hears = peer, False

    def _settle(self) -> None:
        """Look whether it is connected by now, or has failed to."""
        if self._target is None or not self._inbox:
            return
        match self._inbox[0].tos:
            case words.REFUSED:
                self._error = errno.ECONNREFUSED
            case words.LOST:
                self._error = errno.ETIMEDOUT
            case _:
                self._inbox.popleft()
                self._peer, self._hears = self._target, False
        self._target = None

    def connect_ex(self, address: Any) -> int:
        """Connect; return the number of an error, or 0."""
        try:
            self.connect(address)
        except OSError as error:
            if isinstance(error, NotVirtual):
                raise
            return error.errno or errno.EAGAIN
        return 0

    # Sending

    def send(self, data: Any, flags: int = 0) -> int:  # noqa: ARG002
        """Send bytes; return how many: all."""
        view = memoryview(data).cast("B")
        self._check()
        for at in range(0, len(view), MOST):
            self._put(DATA, view[at : at + MOST])
        return len(view)

    def sendall(self, data: Any, flags: int = 0) -> None:  # noqa: ARG002
        """Send bytes."""
        self.send(data)

    def sendmsg(
        self,
        buffers: Iterable[Any],
        ancdata: Iterable[Any] = (),
        flags: int = 0,  # noqa: ARG002
        address: Any = None,
    ) -> int:
        """Send the bytes of several buffers; return how many: all."""
        if address is not None or list(ancdata):
            self._refuse("a socket that sends more than bytes")
        views = [memoryview(each).cast("B") for each in buffers]
        return self.send(views[0] if len(views) == 1 else b"".join(views))

    # Receiving

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """Receive bytes, `bufsize` at most; none: there will be no more."""
        held = bytearray(min(bufsize, self._readable(flags, bufsize)))
        self._take(memoryview(held), flags)
        return bytes(held)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive bytes into a buffer; return how many, 0: there will be no more."""
        view = memoryview(buffer).cast("B")
        view = view[:nbytes] if nbytes else view
        self._readable(flags, len(view))
        return self._take(view, flags)

    def _readable(self, flags: int, wanted: int) -> int:
        """Wait for bytes, for all that are wanted if MSG_WAITALL says so; return their number.

        0: there will be no more.
        """
        self._check(reads=True)
        seconds = 0.0 if flags & socket.MSG_DONTWAIT else self.gettimeout()
        whole = flags & socket.MSG_WAITALL and seconds != 0
        while True:
            found = sum(len(self._bytes(burst)) for burst in self._inbox) - self._at
            last = self._inbox[-1].tos if self._inbox else self._ended
            if found >= (wanted if whole else min(wanted, 1)) or last in (ENDED, RESET, LOST):
                break
            self._wait(seconds, len(self._inbox), wanted - found if whole else 1)
        if not found and wanted:
            self._fail_if_lost()
            self._ended = self._inbox.popleft().tos if self._inbox else self._ended
            if self._ended == RESET:
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        return found

    def _take(self, view: memoryview, flags: int) -> int:
        """Copy bytes that have come; return how many."""
        done, at = 0, self._at
        for burst in list(self._inbox):
            if burst.tos != DATA:
                break
            part = self._bytes(burst)[at : at + len(view) - done]
            view[done : done + len(part)] = part
            done, at = done + len(part), at + len(part)
            if flags & socket.MSG_PEEK:
                at = 0
                continue
            self._at = at
            if at < burst.rows.size:
                break
            self._inbox.popleft()
            self._at = at = 0
        return done

    @staticmethod
    def _bytes(burst: Burst) -> Any:
        return burst.rows[0].data if burst.tos == DATA else b""

    # Names, options, end

    def getsockname(self) -> Any:
        """Return the own address."""
        return tuple(self._own)

    def getpeername(self) -> Any:
        """Return the other side's address."""
        if not self._peer.port:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return tuple(self._peer)

    def setsockopt(self, level: int, name: int, value: Any, *length: Any) -> None:
        """Set an option; of those, SO_RCVTIMEO has an effect here."""
        super().setsockopt(level, name, value, *length)
        if (level, name) == (socket.SOL_SOCKET, socket.SO_RCVTIMEO):
            seconds, micros = TIMEVAL.unpack(value)
            self._patience = seconds + micros / 1e6 or None

    def getsockopt(self, level: int, name: int, *size: Any) -> Any:
        """Return an option; SO_ERROR tells once why it is not connected."""
        if (level, name) != (socket.SOL_SOCKET, socket.SO_ERROR):
            return super().getsockopt(level, name, *size)
        self._settle()
        error, self._error = self._error, 0
        return error

    def shutdown(self, how: int) -> None:
        """Send no more bytes."""
        if self._hears is False and how != socket.SHUT_RD:
            self._put(ENDING)

    def _real_close(self, *args: Any) -> None:
        self._process.sockets.pop(self.fileno(), None)
        if self.virtual is not None and current() is not None:
            if self._hears:
                for burst in self._inbox:  # connections that nobody has accepted
                    self._process.inbox.pop(number := arrival(burst)[0])
                    self._put(RESET, at=number)
            self._process.close(self.virtual)
        super()._real_close(*args)  # type: ignore[misc]

    def detach(self) -> NoReturn:
        """Refuse: a descriptor says nothing of the virtual connection."""
        self._refuse("the descriptor of a socket")

    def dup(self) -> NoReturn:
        """Refuse: a descriptor says nothing of the virtual connection."""
        self._refuse("the descriptor of a socket")

    def sendto(self, *_: Any) -> NoReturn:
        """Refuse: there are no datagrams."""
        self._refuse("a socket of datagrams")

    recvfrom = recvfrom_into = recvmsg = recvmsg_into = sendto  # type: ignore[assignment]

    # Inside

    @property
    def awaits(self) -> bool:
        """Return whether it is connecting without waiting."""
        return self._target is not None

    @property
    def can_read(self) -> bool:
        """Return whether something is to be read, or the end is reached."""
        self._settle()
        return bool(self.virtual is not None and (self._inbox or self._ended))

    @property
    def can_write(self) -> bool:
        """Return whether bytes can be sent, as they always can over a connection.

        Also whether connecting has failed: SO_ERROR tells why.
        """
        self._settle()
        return self._hears is False or bool(self._error)

    @property
    def _inbox(self) -> deque[Burst]:
        assert self.virtual is not None
        return self._process.inbox[self.virtual]

    def _check(self, reads: bool = False) -> None:
        if self.type & 0xF == socket.SOCK_DGRAM:
            self._refuse("a socket of datagrams")
        self._settle()
        if self._hears is not False:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        if not reads:
            self._fail_if_lost()
        if not reads and RESET in (self._ended, *(burst.tos for burst in self._inbox)):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def _wait(self, seconds: float | None, more_than: int = 0, least: int = 1) -> Burst:
        """Wait until more bursts are there than a number; return the first.

        Args:
            seconds: how long to wait; None: as long as the socket's option says.
            more_than: the number.
            least: bytes before which the wait need not end.
        """
        process, patience = self._process, seconds
        if seconds is None:
            patience = self._patience
        limit = None if patience is None else process.now + patience
        assert self.virtual is not None
        while len(self._inbox) <= more_than:
            if limit is not None and process.now >= limit:
                if seconds:
                    raise TimeoutError("timed out")
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            process.wait(limit, {self.virtual: least})
        return self._inbox[0]

    def _put(self, what: int, data: Any = b"", at: int | None = None) -> None:
        """Tell the world of a stream, of this socket's own unless `at` names another."""
        import numpy as np

        from iswitch.core.format.packets import Outgoing

        rows = np.frombuffer(data, np.uint8).reshape(1, -1) if len(data) else np.empty((1, 0), "B")
        number = self.virtual if at is None else at
        assert number is not None
        self._process.world.put(number, Outgoing((), what, rows, len(data)))

    def _fail_if_lost(self) -> None:
        """Say which link no longer carries the connection, whenever it is used."""
        for burst in self._inbox:
            if burst.tos == LOST:
                raise TimeoutError(errno.ETIMEDOUT, burst.rows.tobytes().decode())

    def _refuse(self, what: str) -> NoReturn:
        raise NotVirtual(errno.EOPNOTSUPP, REFUSAL.format(what))


def _new(cls: type[socket.socket], *args: Any, **kwargs: Any) -> socket.socket:
    """Make a socket: in virtual time, one of IPv4 is virtual."""
    family = args[0] if args else kwargs.get("family", -1)
    fileno = args[3] if len(args) > 3 else kwargs.get("fileno")
    is_plain = cls is socket.socket and fileno is None and family in (-1, socket.AF_INET)
    kind = (args[1] if len(args) > 1 else kwargs.get("type", -1)) & 0xF
    if is_plain and kind in (0xF, socket.SOCK_STREAM, socket.SOCK_DGRAM) and current() is not None:
        cls = VirtualSocket
    return _real_new(cls)


def install(patches: Patches) -> None:
    """Make sockets of threads in virtual time virtual."""
    patches.put(socket.socket, "__new__", staticmethod(_new))
