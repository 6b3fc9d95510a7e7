"""Sends a broadcast as one frame, which the kernel copies for the other ports.

A broadcast goes out as one frame that carries a mark. A program at the egress of every port calls,
for a marked frame, the program of the mark: for each receiver it writes the addresses into the
headers and sends a clone to its port (bpf_clone_redirect), which shares the memory of the payload.
So n receivers cost one copy of the payload rather than n.

The kernel checks the programs, and removes them with their descriptors, even if this process is
killed. They need Linux 6.6, CAP_BPF and CAP_NET_ADMIN.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from iswitch.core.format.memo import Memo
from iswitch.ethernet.frame import ETH, HEAD, HEADERS, IP, MAC_SIZE, NEEDS_CSUM, UDP, Transmission

from . import bpf
from .bpf import step
from .mmsg import Block

SO_MARK = 36
CONTROL = 24  # bytes of a control message with a mark
FIRST_MARK = 0x69530000  # the mark of program 0
LENGTH, MARK, GSO_SIZE = 0, 8, 176  # in struct __sk_buff (linux/bpf.h)
NEXT = -1  # TCX_NEXT: the frame goes on
PSEUDO_HEADER = 0x10  # BPF_F_PSEUDO_HDR: what changes is part of it

# On the wire: where headers for different receivers differ.
MAC_AT, IP_CSUM_AT, IP_AT, PORT_AT, UDP_CSUM_AT = 0, 24, 30, 36, 40
_DIFFERENT = (
    slice(ETH, ETH + MAC_SIZE),
    slice(IP + 10, IP + 12),
    slice(IP + 16, UDP),
    slice(UDP + 2, UDP + 4),
    slice(UDP + 6, HEAD),
)

MOST = 64  # programs; one more replaces all of them
SEEN = 1024  # kinds of broadcasts that are remembered
WORTH = 8  # broadcasts to the same receivers before they get a program


class Target(NamedTuple):
    """The receiver of a frame: its port's number, the interface, and the addresses in headers."""

    port: int
    interface: int
    mac: bytes
    ip: bytes
    udp: bytes


class Replicator:
    """Copies frames by programs at the egress of all ports.

    Args:
        interfaces: the ports, by their numbers in this thread's network namespace.

    Raises:
        OSError: the kernel refuses the programs.
    """

    def __init__(self, interfaces: Sequence[int]) -> None:
        self._interfaces = list(interfaces)
        self._fans: dict[tuple[Target, ...], Block] = {}
        self._times: Memo[tuple[Target, ...], int] = Memo(SEEN)
        self._known: Memo[tuple[int, ...], tuple[list[object], tuple[Target, ...]]] = Memo(SEEN)
        self._descriptors: list[int] = []
        self._is_refused = False
        self.version = 0  # grows when earlier control messages lose their meaning
        self._failed = [0] * len(interfaces)
        try:
            self._programs = self._keep(bpf.create_map(bpf.PROG_ARRAY, 4, MOST))
            self._failures = self._keep(bpf.create_map(bpf.ARRAY, 8, len(interfaces)))
            program = self._keep(bpf.load(dispatch(self._programs)))
            for interface in interfaces:
                self._keep(bpf.attach(program, interface))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Remove the programs."""
        for descriptor in reversed(self._descriptors):
            os.close(descriptor)
        self._descriptors.clear()

    def fan(self, copies: Sequence[Transmission]) -> Block | None:
        """Return the control message with which the first copy reaches the receivers of all copies.

        None: the copies differ in more than the receiver, or such a broadcast is still too rare.

        Args:
            copies: the transmissions of a broadcast, with equal bodies.
        """
        receivers = self._receivers_of(copies)
        if not receivers:
            return None
        return self._fans.get(receivers) or self._consider(receivers)

    def ready(self, copies: Sequence[Transmission]) -> Block | None:
        """Return the control message of `fan` if its program is loaded already."""
        return self._fans.get(self._receivers_of(copies))

    def _receivers_of(self, copies: Sequence[Transmission]) -> tuple[Target, ...]:
        ids = tuple(id(copy.heads) for copy in copies)
        known = self._known.get(ids)
        if known is None:
            heads: list[object] = [copy.heads for copy in copies]  # kept, so that ids stay valid
            known = self._known.keep(ids, (heads, self._receivers(copies)))
        return known[1]

    def failures(self) -> int:
        """Return the number of copies that devices refused since the last call."""
        failed = [bpf.lookup(self._failures, port) for port in range(len(self._failed))]
        new = sum(failed) - sum(self._failed)
        self._failed = failed
        return new

    def _receivers(self, copies: Sequence[Transmission]) -> tuple[Target, ...]:
        found, common = [], None
        for port, heads, *_ in copies:
            if heads is None or not (heads[:, 0] & NEEDS_CSUM).all():
                return ()
            head, rest = heads[0].tobytes(), heads.copy()
            for part in _DIFFERENT:
                rest[:, part] = 0
            if common is not None and not np.array_equal(rest, common):
                return ()
            common = rest
            mac, ip, udp = head[ETH : ETH + MAC_SIZE], head[IP + 16 : UDP], head[UDP + 2 : UDP + 4]
            found.append(Target(port, self._interfaces[port], mac, ip, udp))
        return tuple(found)

    def _consider(self, receivers: tuple[Target, ...]) -> Block | None:
        times = self._times.keep(receivers, self._times.get(receivers, 0) + 1)
        if times < WORTH or self._is_refused:
            return None
        if len(self._fans) >= MOST:
            self._fans.clear()
            self._times.clear()
            self.version += 1
        number = len(self._fans)
        try:
            program = bpf.load(replicate(receivers, self._failures))
            try:
                bpf.update(self._programs, number, program)
            finally:
                os.close(program)  # the array keeps it
        except OSError:  # no memory, or no privilege any more: each port by itself from now on
            self._is_refused = True
            return None
        mark = struct.pack("<Qiii4x", 20, socket.SOL_SOCKET, SO_MARK, FIRST_MARK + number)
        self._fans[receivers] = fan = Block(mark)
        return fan

    def _keep(self, descriptor: int) -> int:
        self._descriptors.append(descriptor)
        return descriptor


def dispatch(programs: int) -> bytes:
    """Write the program that calls the program of a frame's mark, if there is one."""
    return b"".join(
        (
            step(bpf.MOVE, 6, 1),
            step(bpf.LOAD, 3, 6, MARK),
            step(bpf.SUB_VALUE, 3, value=FIRST_MARK),
            bpf.load_map(2, programs),
            step(bpf.MOVE, 1, 6),
            step(bpf.CALL, value=bpf.TAIL_CALL),
            step(bpf.MOVE_VALUE, 0, value=NEXT),
            step(bpf.EXIT),
        )
    )


def replicate(receivers: Sequence[Target], failures: int) -> bytes:
    """Write the program that sends clones to all but the first receiver, which gets the frame.

    Clones have no mark, so that the programs at their ports let them pass.
    """
    first, *others = receivers
    code = [
        step(bpf.MOVE, 6, 1),
        step(bpf.MOVE_VALUE, 7),
        step(bpf.STORE, 6, 7, MARK),
        step(bpf.LOAD, 7, 6, LENGTH),  # R7: packets that the frame stands for
        step(bpf.LOAD, 8, 6, GSO_SIZE),
        step(bpf.SUB_VALUE, 7, value=HEADERS + 1),
        step(bpf.IF_EQUAL, 8, offset=2),
        step(bpf.DIVIDE, 7, 8),
        step(0x05, offset=1),  # JA
        step(bpf.MOVE_VALUE, 7),
        step(bpf.ADD_VALUE, 7, value=1),
    ]
    before = first
    for one in others:
        code += [address_to(before, one), bpf.call(bpf.CLONE_REDIRECT, one.interface, 0)]
        count = count_in(failures, one.port)
        code += [step(bpf.IF_EQUAL, 0, offset=len(count) // 8), count]
        before = one
    code += [address_to(before, first), step(bpf.MOVE_VALUE, 0, value=NEXT), step(bpf.EXIT)]
    return b"".join(code)


def address_to(before: Target, one: Target) -> bytes:
    """Write the steps that replace a frame's receiver `before` by another one."""
    old, new = (struct.unpack("<i", receiver.ip)[0] for receiver in (before, one))
    return b"".join(
        (
            bpf.call(bpf.L3_CSUM, IP_CSUM_AT, old, new, 4),
            bpf.call(bpf.L4_CSUM, UDP_CSUM_AT, old, new, 4 | PSEUDO_HEADER),
            write(MAC_AT, one.mac),
            write(IP_AT, one.ip),
            write(PORT_AT, one.udp),
        )
    )


def write(at: int, content: bytes) -> bytes:
    """Write the steps that put up to eight bytes into the frame."""
    low, high = struct.unpack("<ii", content.ljust(8, b"\0"))
    return b"".join(
        (
            step(bpf.STORE_VALUE, 10, offset=-8, value=low),
            step(bpf.STORE_VALUE, 10, offset=-4, value=high),
            step(bpf.MOVE, 1, 6),
            step(bpf.MOVE_VALUE, 2, value=at),
            step(bpf.MOVE, 3, 10),
            step(bpf.ADD_VALUE, 3, value=-8),
            step(bpf.MOVE_VALUE, 4, value=len(content)),
            step(bpf.MOVE_VALUE, 5),
            step(bpf.CALL, value=bpf.STORE_BYTES),
        )
    )


def count_in(array: int, key: int) -> bytes:
    """Write the steps that add R7 to an element of an array."""
    return b"".join(
        (
            step(bpf.STORE_VALUE, 10, offset=-4, value=key),
            bpf.load_map(1, array),
            step(bpf.MOVE, 2, 10),
            step(bpf.ADD_VALUE, 2, value=-4),
            step(bpf.CALL, value=bpf.LOOKUP),
            step(bpf.IF_EQUAL, 0, offset=1),
            step(bpf.ATOMIC_ADD, 0, 7),
        )
    )
