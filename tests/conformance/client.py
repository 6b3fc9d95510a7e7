"""One participant of a job on its own UDP socket, and the failures it reports.

A `Peer` keeps what it received until somebody asks for it, so that a case waits for the packet
it is about and everything else (a late Ack, an aggregate meant for another check) stays out of
the way. Like any tolerant worker it Acks relayed control by itself, unless told not to.
"""

import itertools
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from tests.conformance import wire
from tests.conformance.packets import (
    SOL_UDP,
    UDP_GRO,
    UDP_SEGMENT,
    CaseFailure,
    Predicate,
    ancillary_numbers,
    expect_equal,
    expect_status,
    is_ack,
    is_data,
    is_relay,
    require_offload,
)
from tests.conformance.wire import Ack, Action, Data, MemberType, Packet, Relay, Shape, Status

TIMEOUT = 3.0  # seconds to wait for a packet that has to come; only a failure takes so long
NUMBERS_EACH = 400  # Requests a peer has for itself; none needs half of them

# On a path that loses packets (a fifth of them, say):
PAUSE = 0.04  # seconds after which a request, or Help for an aggregate, is sent again
PATIENCE = 5  # times as long as otherwise may pass until something has come
COPIES = 12  # of a contribution, which nobody acknowledges: 1 in 200 million is lost, 0.2 ** 12

MAX_SUPER_SEGMENTS = 64  # the kernel's limit on packets in one super-datagram
MAX_SUPER_BYTES = 65_000

# A port may come back in a later case, or run, and a repeated Request would then rightly be
# answered from memory: so every peer counts from a number no peer before it has reached.
_FIRST_NUMBERS = itertools.count(int(time.time() * 40_000) % (1 << 31), NUMBERS_EACH)

Address = tuple[str, int]


class Peer:
    """A socket that speaks to the switch as a worker, a controller or a stranger.

    On a `lossy` path it does what the page has a worker do about loss: a request is repeated, as it
    is, until its Ack comes, and an aggregate that does not come is asked for by Help. Contributions
    have no Ack; each packet of one is sent several times, one right after the other, so that what
    the cases say of the order of contributions holds.
    """

    def __init__(
        self,
        switch: Address,
        job: int,
        shape: Shape,
        *,
        gro: bool = False,
        key: bytes | None = None,
        lossy: bool = False,
    ) -> None:
        self.lossy = lossy
        self.known: set[Packet] = set()  # what has been waited for, and has come
        self.switch = switch
        self.key = key
        self.job = job
        self.shape = shape
        numbers = next(_FIRST_NUMBERS)
        self.incarnation = numbers + 1  # one smaller and one larger are left free for cases
        self.acks_relays = True
        self.joined: Ack | None = None
        self.violations: list[str] = []
        self.last_arrival = 0.0
        self._inbox: list[tuple[float, Packet]] = []
        self._relays_seen: set[tuple[int, int]] = set()
        self._requests = itertools.count(numbers + 3)
        self._join = b""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        if gro:
            require_offload(self._socket, UDP_GRO, 1)

    def close(self) -> None:
        """Close the socket without a word to the switch."""
        self._socket.close()

    def fileno(self) -> int:
        """The socket's descriptor, so that `select.poll` takes a Peer."""
        return self._socket.fileno()

    # -- sending

    def send(self, datagram: bytes, tos: int, segment_size: int = 0) -> None:
        """Send one datagram with this ToS, or a super-datagram cut into `segment_size` bytes.

        Control of a peer that has a key gets its MAC.
        """
        if self.key is not None and tos & wire.TOS_MASK == wire.TOS_CONTROL:
            datagram += wire.mac(self.key, datagram)
        self.send_raw(datagram, tos, segment_size)

    def send_raw(self, datagram: bytes, tos: int, segment_size: int = 0) -> None:
        """The same, just as it is."""
        ancillary = [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack("=i", tos))]
        if segment_size:
            ancillary.append((SOL_UDP, UDP_SEGMENT, struct.pack("=H", segment_size)))
        self._socket.sendmsg([datagram], ancillary, 0, self.switch)

    def contribute(
        self,
        round_: int,
        vector: np.ndarray,
        indexes: Iterable[int] | None = None,
        *,
        tos: int = wire.TOS_DATA,
    ) -> None:
        """Send these segments of the vector (all of them by default), in this order."""
        for index in range(self.shape.segments) if indexes is None else indexes:
            for _ in range(self._copies):
                self.send(wire.data(round_, index, self.shape.payload(vector, index)), tos)

    def contribute_super(self, packets: Sequence[bytes]) -> None:
        """Send data packets as super-datagrams; all but the last have one and the same length."""
        require_offload(self._socket, UDP_SEGMENT, 0)
        size = len(packets[0])
        step = min(MAX_SUPER_SEGMENTS, MAX_SUPER_BYTES // size)
        for start in range(0, len(packets), step):
            for _ in range(self._copies):
                self.send(b"".join(packets[start : start + step]), wire.TOS_DATA, size)

    def ack(self, relay: Relay) -> None:
        """Ack a relayed control packet."""
        self.send(wire.ack_of(relay), wire.TOS_CONTROL)

    # -- requests

    def new_request(self) -> int:
        """A Request number this peer has not used yet."""
        return next(self._requests)

    def request(
        self,
        action: int,
        value: bytes = b"",
        *,
        request: int | None = None,
        tos: int = wire.TOS_CONTROL,
    ) -> Ack:
        """Send a request and return its Ack, which must echo Job, Request and action."""
        number = self.new_request() if request is None else request
        packet = wire.control(action, self.job, number, value)
        if self.lossy:  # copies of an Ack to the same request, sent before, are no answer
            self.pump()
            while self.take(is_ack(number)):
                pass
        self.send(packet, tos)
        ack = self.wait(
            is_ack(number), f"Ack to action {action}", again=lambda: self.send(packet, tos)
        )
        assert isinstance(ack, Ack)
        expect_equal(ack.job, self.job, f"Job in the Ack to action {action}")
        expect_equal(ack.action, action, "action named in the Ack")
        return ack

    def command(self, action: Action, value: bytes = b"", want: Status = Status.OK) -> Ack:
        """Send a request that has to be answered with this status."""
        ack = self.request(action, value)
        expect_status(ack, want, f"{action.name} from {self.describe()}")
        return ack

    def set_threshold(self, threshold: int) -> Ack:
        """SetH, to be answered OK."""
        return self.command(Action.SET_H, wire.threshold_value(threshold))

    def help(self, round_: int, index: int = 0, count: int = 1, want: Status = Status.OK) -> Ack:
        """Help for these segments, to be answered with this status."""
        return self.command(Action.HELP, wire.range_value(round_, index, count), want)

    def join(
        self,
        *,
        expected: int = 0,
        round_: int | None = None,
        rank: int | None = None,
        new: bool = False,
        incarnation: int | None = None,
        want: Status = Status.OK,
        tos: int = wire.TOS_CONTROL,
    ) -> Ack:
        """Join with this incarnation (by default the one in force), to be answered so."""
        value = wire.join_value(self.shape, MemberType.WORKER, expected, round_, rank, new)
        return self.join_with(value, incarnation, want, tos)

    def join_as_controller(self) -> Ack:
        """Join as a controller, which names no shape."""
        value = wire.join_value(None, MemberType.CONTROLLER)
        return self.join_with(value, None, Status.OK, wire.TOS_CONTROL)

    def join_with(self, value: bytes, incarnation: int | None, want: Status, tos: int) -> Ack:
        """Join with this Value."""
        number = self.incarnation if incarnation is None else incarnation
        ack = self.request(Action.JOIN, value, request=number, tos=tos)
        expect_status(ack, want, f"Join from {self.describe()}")
        if want == Status.OK:
            self.incarnation, self._join, self.joined = number, value, ack
        return ack

    def send_join(self, *, incarnation: int | None = None, tos: int = wire.TOS_CONTROL) -> None:
        """Send a worker's Join and wait for nothing."""
        number = self.incarnation if incarnation is None else incarnation
        value = wire.join_value(self.shape, MemberType.WORKER)
        self.send(wire.control(Action.JOIN, self.job, number, value), tos)

    def heartbeat(self) -> Ack:
        """Repeat the Join byte by byte; the answer also shows that the switch has caught up."""
        ack = self.request(Action.JOIN, self._join, request=self.incarnation)
        expect_status(ack, Status.OK, f"repeated Join from {self.describe()}")
        return ack

    def leave(self) -> None:
        """Leave the job, to be answered OK."""
        self.command(Action.LEAVE)
        self.joined = None

    def send_leave(self) -> None:
        """Leave without waiting for the answer: a case's cleaning up."""
        packet = wire.control(Action.LEAVE, self.job, self.new_request())
        for _ in range(self._copies):
            self.send(packet, wire.TOS_CONTROL)

    # -- receiving

    def pump(self) -> None:
        """Take in everything that has arrived; never blocks."""
        while True:
            try:
                datagram, ancillary, _, source = self._socket.recvmsg(
                    65_535, 4 * socket.CMSG_SPACE(4), socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                return
            tos, size = ancillary_numbers(ancillary)
            if source != self.switch:
                self.violations.append(f"datagram from {source}, not from the switch's address")
            step = size or len(datagram) or 1
            for start in range(0, max(len(datagram), 1), step):
                self._take(datagram[start : start + step], tos)

    def take(self, predicate: Predicate) -> Packet | None:
        """Remove and return the first packet received that satisfies the predicate, if any.

        `last_arrival` then tells when it came.
        """
        for position, (arrival, packet) in enumerate(self._inbox):
            if predicate(packet):
                del self._inbox[position]
                self.last_arrival = arrival
                return packet
        return None

    def wait(
        self,
        predicate: Predicate,
        what: str,
        timeout: float = TIMEOUT,
        again: Callable[[], None] | None = None,
    ) -> Packet:
        """The first packet that satisfies the predicate; on a lossy path it is asked for `again`.

        Raises:
            CaseFailure: none came in time; the message lists what came instead.
        """
        now = time.monotonic()
        if self.lossy:
            timeout *= PATIENCE
        deadline = now + timeout
        ask = now + PAUSE if self.lossy and again is not None else deadline
        self.pump()
        while (packet := self.take(predicate)) is None:
            now = time.monotonic()
            if now >= ask and again is not None:
                again()
                ask = now + PAUSE
            remaining = deadline - now
            if remaining <= 0:
                got = [packet for _, packet in self._inbox]
                raise CaseFailure(
                    f"{what}: expected at {self.describe()} within {timeout} s, "
                    f"got {got or 'nothing'}; violations: {self.violations or 'none'}"
                )
            wait_readable([self], min(remaining, max(0.0, ask - now)))
            self.pump()
        self.known.add(packet)
        return packet

    def wait_relay(self, action: Action, what: str, timeout: float = TIMEOUT) -> Relay:
        """The next relayed control packet of this action."""
        packet = self.wait(is_relay(action), what, timeout)
        assert isinstance(packet, Relay)
        expect_equal(packet.job, self.job, f"Job in the relayed {action.name}")
        return packet

    def aggregate(self, round_: int, indexes: Iterable[int] | None = None) -> np.ndarray:
        """The elements of these segments of the round's aggregate (all of them by default)."""
        payloads = []
        left = list(range(self.shape.segments) if indexes is None else indexes)
        while left:
            packet = self.wait(
                is_data(round_, left[0]),
                f"aggregate {round_}:{left[0]}",
                again=lambda: self._ask_for(round_, left),
            )
            assert isinstance(packet, Data)
            payloads.append(packet.payload)
            left.pop(0)
        return np.frombuffer(b"".join(payloads), self.shape.numpy)

    def _ask_for(self, round_: int, indexes: Sequence[int]) -> None:
        """Help for those of these aggregates that have not come; its Ack is of no interest."""
        come = {
            packet.index
            for _, packet in self._inbox
            if isinstance(packet, Data) and packet.round == round_
        }
        missing = sorted(set(indexes) - come)
        runs = itertools.groupby(enumerate(missing), lambda pair: pair[1] - pair[0])
        for _, run in runs:
            (_, start), *more = run
            value = wire.range_value(round_, start, 1 + len(more))
            packet = wire.control(Action.HELP, self.job, self.new_request(), value)
            self.send(packet, wire.TOS_CONTROL)

    @property
    def _copies(self) -> int:
        return COPIES if self.lossy else 1

    @property
    def local(self) -> Address:
        """Host and port, as the switch sees them."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(self.switch)
            return probe.getsockname()[0], self._socket.getsockname()[1]

    def describe(self) -> str:
        """Who this is, for a message."""
        port = self._socket.getsockname()[1]
        rank = "stranger" if self.joined is None else f"rank {self.joined.rank}"
        return f"{rank} of job {self.job} (port {port})"

    def _take(self, datagram: bytes, tos: int) -> None:
        try:
            packet = self._parse(datagram, tos)
        except wire.ProtocolViolation as violation:
            self.violations.append(str(violation))
            return
        if isinstance(packet, Data) and not self._fits(packet):
            self.violations.append(f"aggregate of a wrong index or length: {packet}")
        if isinstance(packet, Relay) and self.acks_relays:
            self.ack(packet)
            key = (packet.action, packet.request)
            if key in self._relays_seen:  # a repeat that crossed our Ack
                return
            self._relays_seen.add(key)
        self._inbox.append((time.monotonic(), packet))

    def _parse(self, datagram: bytes, tos: int) -> Packet:
        if self.key is None or tos & wire.TOS_MASK != wire.TOS_CONTROL:
            return wire.parse(datagram, tos)
        whole, mac = datagram[: -wire.MAC_SIZE], datagram[-wire.MAC_SIZE :]
        if mac == wire.mac(self.key, whole):
            packet = wire.parse(whole, tos)
            return replace(packet, sealed=True) if isinstance(packet, Ack) else packet
        packet = wire.parse(datagram, tos)
        if not (isinstance(packet, Ack) and packet.status == Status.DENIED):
            raise wire.ProtocolViolation(f"without the right MAC in a keyed job: {packet}")
        return packet

    def _fits(self, packet: Data) -> bool:
        if packet.index >= self.shape.segments:
            return False
        return len(packet.payload) == self.shape.payload_size(packet.index)


def wait_readable(peers: Sequence[Peer], seconds: float) -> None:
    """Block until one of the peers has something to read, at most so long."""
    poller = select.poll()
    for peer in peers:
        poller.register(peer, select.POLLIN)
    poller.poll(max(0.0, seconds) * 1000)
