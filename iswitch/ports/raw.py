"""Network interfaces as the ports of a switch: AF_PACKET sockets (packet(7)).

Each port has a socket that receives everything its interface hears, with its virtio_net_hdr
(PACKET_VNET_HDR), so that super-frames come and go whole. One more socket sends at all ports: a
broadcast to many ports takes one call, and only one frame where the kernel can copy it
(`Replicator`). A VLAN tag, which the kernel takes out of the frame, is put back (PACKET_AUXDATA).
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple, Protocol

from iswitch.core.format.counters import Counters
from iswitch.core.format.memo import Memo, Notes
from iswitch.ethernet.frame import (
    HEAD,
    Frames,
    RecurringFrames,
    Transmission,
)
from iswitch.ethernet.issuing import Jack
from iswitch.ethernet.sorting import apart
from iswitch.ports.kernel.mmsg import BATCH_SUPER, Block, Receiver
from iswitch.ports.kernel.replication import Replicator

from .frames import SOCKADDR_LL, FrameSender
from .interface import BUFFER, WITHOUT_VLAN, RawPort, packet_socket, tag
from .kernel import replication

CONTROL = 40  # one control message of 20 bytes
SEEN = 256  # kinds of batches that are remembered
LOOK_AT_DROPS = 1.0  # seconds between two looks at what the kernel dropped


class Recorder(Protocol):
    """Records all frames that come and go."""

    def received(self, frames: Frames) -> None:
        """Note frames that have come."""

    def sent(self, transmission: Transmission, refused: Collection[int]) -> None:
        """Note frames that were sent, except the refused ones."""

    def close(self) -> None:
        """End the record."""


class _Post(NamedTuple):
    """The descriptions of frames that the kernel copies, made once and used again."""

    version: int  # of the replicator
    copies: list[list[Transmission]]  # for several ports, differing only in receivers
    sender: FrameSender  # has the first of each
    fan: Block


class RawPorts:
    """Receives and sends at the interfaces of a switch.

    Args:
        ifnames: the interfaces, in the order of the ports' numbers.
        offload: send super-frames whole, for the kernel or the device to cut.
        buffer: bytes of each socket's buffer.
        counters: counts frames that are sent, and those that the kernel refuses or drops.
        recorder: records all frames; None: nothing is recorded.
        replicate: have the kernel copy broadcasts, if it can.

    Raises:
        RawPortError: see RawPort.
    """

    def __init__(
        self,
        ifnames: Sequence[str],
        offload: bool = True,
        buffer: int = BUFFER,
        counters: Counters | None = None,
        recorder: Recorder | None = None,
        replicate: bool = True,
    ) -> None:
        self.counters = Counters() if counters is None else counters
        self.recorder = recorder
        self.offload = offload
        self.ports: list[RawPort] = []
        self.replicator: Replicator | None = None
        self.out = packet_socket(buffer)
        self._epoll = select.epoll()
        try:
            for ifname in ifnames:
                self.ports.append(RawPort(ifname, buffer))
        except OSError:
            self.close()
            raise
        for port in self.ports:
            self._epoll.register(port.socket, select.EPOLLIN)
        self._numbers = {port.socket.fileno(): i for i, port in enumerate(self.ports)}
        self.names = [
            Block(SOCKADDR_LL.pack(socket.AF_PACKET, 0, port.index, 0, 0, 0, bytes(8)))
            for port in self.ports
        ]
        self._receiver = Receiver(head=HEAD, control=CONTROL)
        self._sender = FrameSender()
        self._marked = FrameSender(control=replication.CONTROL)
        self._seen: Memo[tuple[int, ...], Frames] = Memo(SEEN)
        self._posts: Notes[_Post] = Notes()  # about recurring frames
        self._looked = time.monotonic()
        if replicate and offload and len(self.ports) > 1:
            with suppress(OSError):  # an older kernel, or no CAP_BPF: each port by itself
                self.replicator = Replicator([port.index for port in self.ports])

    @property
    def replicates(self) -> bool:
        """Return whether the kernel copies broadcasts to all ports."""
        return self.replicator is not None

    @property
    def jacks(self) -> list[Jack]:
        """Describe the abilities of each port."""
        return [Jack(port.mtu, self.offload, port.most) for port in self.ports]

    def fileno(self) -> int:
        """Return a descriptor that is readable when a frame has come at some port."""
        return self._epoll.fileno()

    def deadline(self) -> None:
        """Return None: nothing here waits for a time."""

    def close(self) -> None:
        """Close all sockets."""
        if self.ports:
            self._count_dropped()
        for port in self.ports:
            port.socket.close()
        if self.replicator is not None:
            self.replicator.close()
        self.out.close()
        self._epoll.close()
        if self.recorder is not None:
            self.recorder.close()

    # Receiving

    def pull(self) -> Iterator[Frames]:
        """Yield frames that have come, without waiting; a port's next frames overwrite them."""
        for fd, _ in self._epoll.poll(0, len(self.ports)):
            number = self._numbers[fd]
            frames = self._receive(self.ports[number], number)
            if frames is None:
                continue
            if self.recorder is None:
                yield frames
                continue
            for part in apart(frames):  # so that answers are recorded behind their causes
                self.recorder.received(part)
                yield part
        now = time.monotonic()
        if now - self._looked >= LOOK_AT_DROPS:
            self._looked = now
            self._count_dropped()

    def _receive(self, port: RawPort, number: int) -> Frames | None:
        receiver = self._receiver
        spacing = port.spacing.value
        try:
            bodies, lengths = receiver.receive(port.socket.fileno(), spacing)
        except OSError as error:
            if error.errno == errno.EINVAL:  # a frame that no virtio_net_hdr can describe
                self.counters["rx_frames"] += 1
                self.counters["bad_frame"] += 1
            return None  # else the interface is down, or gone
        n = len(lengths)
        if not n:
            return None
        if n > BATCH_SUPER or max(lengths) > HEAD + spacing:
            frames = Frames(number, receiver.heads[:n], bodies, lengths)
        else:  # equally many frames of equal lengths lie in the same memory again
            key = (number, spacing, *lengths)
            known = self._seen.get(key)
            if known is None:
                made = Frames(number, receiver.heads[:n], bodies, lengths)
                known = self._seen.keep(key, made)
            frames = known
        port.expect(frames)
        if receiver.meta[:n, 16].tobytes().translate(None, WITHOUT_VLAN):
            return tag(frames, receiver.meta)
        return frames

    def _count_dropped(self) -> None:
        for port in self.ports:
            self.counters["rx_overflow"] += port.dropped()
        if self.replicator is not None:
            failed = self.replicator.failures()
            self.counters["tx_frames"] -= failed
            self.counters["tx_failed"] += failed

    # Sending

    def push(self, steps: Iterable[Sequence[Transmission]]) -> None:
        """Send frames, step by step; count those that the kernel refuses."""
        for whole in steps:
            if type(whole) is RecurringFrames and self._post(whole):
                continue
            step = self._broadcast(whole) if self.replicator and len(whole) > 1 else whole
            if not step:
                continue
            counts: list[int] = []
            begun: list[tuple[Transmission, int]] = []
            for transmission in at_most(step, self._sender.most):
                if len(counts) + len(transmission.counts) > self._sender.most:
                    self._flush(counts, begun)
                    counts, begun = [], []
                begun.append((transmission, len(counts)))
                counts += transmission.counts
                self._add(self._sender, transmission)
            self._flush(counts, begun)

    def _broadcast(self, step: Sequence[Transmission]) -> list[Transmission]:
        """Send the frames that the kernel can copy for several ports; return the others."""
        assert self.replicator is not None
        left: list[Transmission] = []
        at = 0
        while at < len(step):
            first, stop = step[at], at + 1
            while stop < len(step) and step[stop].bodies is first.bodies:
                stop += 1
            copies, at = step[at:stop], stop
            fan = None
            if len(copies) > 1 and len(first.lengths) <= self._sender.most:
                fan = self.replicator.fan(copies)
            if fan is None:
                left += copies
                continue
            self._add(self._marked, first)
            left += self.account(copies, self._marked.send(self.out.fileno(), fan))
        return left

    def _add(self, sender: FrameSender, one: Transmission) -> None:
        port, heads, bodies, lengths, _ = one
        sender.add(self.names[port].address, heads, bodies, lengths)

    def account(
        self, copies: Sequence[Transmission], failures: Sequence[tuple[int, int]]
    ) -> list[Transmission]:
        """Count the frames that the kernel has copied; return those still to be sent."""
        counts = copies[0].counts
        refused = dict(failures)
        full = {i for i, error in refused.items() if error == errno.ENOBUFS}
        before = sorted(refused.keys() - full)  # the port is down, say: nothing was copied
        sent = sum(counts) - sum(counts[i] for i in before)
        lost = sum(counts[i] for i in full)  # by the first port's queue, after the copying
        self.counters["tx_frames"] += sent * len(copies) - lost
        self.counters["tx_failed"] += lost
        if self.recorder is not None:
            self.recorder.sent(copies[0], refused.keys())
            for copy in copies[1:]:
                self.recorder.sent(copy, before)
        return [only(copy, before) for copy in copies if before]

    def _post(self, whole: RecurringFrames) -> bool:
        """Send recurring frames that the kernel copies; return False if it cannot."""
        replicator = self.replicator
        if replicator is None:
            return False
        post = self._posts.get(whole)
        if post is None or post.version != replicator.version:
            post = self._describe(whole, replicator)
            if post is None:
                return False
            self._posts.keep(whole, post)
        refused = post.sender.send(self.out.fileno(), post.fan, keep=True)
        at = 0
        for copies in post.copies:
            stop = at + len(copies[0].lengths)
            left = self.account(copies, [(i - at, e) for i, e in refused if at <= i < stop])
            at = stop
            if left:
                self.push([left])
        return True

    def _describe(self, whole: RecurringFrames, replicator: Replicator) -> _Post | None:
        copies = [list(same) for _, same in groupby(whole, lambda one: id(one.bodies))]
        (fan, *others) = {id(fan): fan for fan in map(replicator.ready, copies)}.values()
        if fan is None or others or any(len(same) < 2 for same in copies):
            return None
        sender = FrameSender(sum(len(same[0].lengths) for same in copies), replication.CONTROL)
        for same in copies:
            self._add(sender, same[0])
        return _Post(replicator.version, copies, sender, fan)

    def _flush(self, counts: list[int], begun: list[tuple[Transmission, int]]) -> None:
        self.counters["tx_frames"] += sum(counts)
        refused = self._sender.send(self.out.fileno())
        for i, error in refused:
            reason = "too_large" if error == errno.EMSGSIZE else "tx_failed"
            self.counters["tx_frames"] -= counts[i]
            self.counters[reason] += counts[i]
        if self.recorder is not None:
            which = {i for i, _ in refused}
            for transmission, start in begun:
                self.recorder.sent(transmission, {i - start for i in which})


def only(whole: Transmission, which: Sequence[int]) -> Transmission:
    """Return some frames of a transmission."""
    heads = None if whole.heads is None else whole.heads[which]
    lengths, counts = ([of[i] for i in which] for of in (whole.lengths, whole.counts))
    return Transmission(whole.port, heads, whole.bodies[which], lengths, counts)


def at_most(step: Iterable[Transmission], most: int) -> Iterator[Transmission]:
    """Cut transmissions so that none has more than `most` frames."""
    for whole in step:
        if len(whole.lengths) <= most:
            yield whole
            continue
        for start in range(0, len(whole.lengths), most):
            part = slice(start, start + most)
            heads = None if whole.heads is None else whole.heads[part]
            lengths, counts = whole.lengths[part], whole.counts[part]
            yield Transmission(whole.port, heads, whole.bodies[part], lengths, counts)
