"""Known flows of tagged traffic, and the layouts of their datagrams."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.packets import Rows
from iswitch.core.format.wire import SEG_SIZE

from .frame import DATA_VALID, GSO_NONE, HEAD, IP, NEEDS_CSUM, UDP, sums
from .sorting import Flow, Lengths, is_whole


class KnownFlow(NamedTuple):
    """A flow, and the layout of its datagrams of one length."""

    flow: Flow
    found: Lengths
    size: int  # bytes of the payload
    step: int  # of one packet
    packets: int
    tail: int  # bytes of the last packet
    least: int  # bytes of a row that holds the whole datagram
    is_unchecked: bool  # the payload's checksum is neither verified nor left to be finished
    is_plain: bool  # data, sound as far as the head tells

    @classmethod
    def of(cls, flow: Flow, found: Lengths) -> KnownFlow:
        """Make a known flow with the layout that a datagram's headers describe."""
        size = found.datagram - 8
        step = size if found.gso_type == GSO_NONE else min(found.gso_size, size)
        packets = -(-size // step) if step else 1
        tail = size - (packets - 1) * step
        least = IP + found.packet
        is_unchecked = found.gso_type == GSO_NONE and not found.flags & (NEEDS_CSUM | DATA_VALID)
        is_plain = (
            classify(flow.tos) is Traffic.DATA
            and not (flow.spoofed or is_unchecked)
            and is_whole(found, least)
            and tail >= SEG_SIZE
        )
        return cls(flow, found, size, step, packets, tail, least, is_unchecked, is_plain)

    def may_precede(self, other: KnownFlow) -> bool:
        """Return whether packets of `other` can follow in one array: same flow, same size."""
        return self.flow == other.flow and self.step == other.step == self.tail

    def may_lead(self, last: KnownFlow) -> bool:
        """Return whether full super-datagrams of this layout may come before `last`."""
        return (
            self.is_plain
            and self.packets > 1
            and self.may_precede(last)
            and self.packets >= last.packets
        )


def headers_sound(heads: Rows, first: bytes) -> npt.NDArray[np.bool_]:
    """Return which IP headers of a group have the right checksum, (n,) booleans.

    The headers may differ from `first` in length, identification and checksum only.
    """
    words = np.ascontiguousarray(heads[:, IP:UDP]).view(">u2")
    changing = words[:, 1].astype(np.uint32) + words[:, 2] + words[:, 5]
    other = int.from_bytes(first[IP:UDP], "big") - int(changing[0])
    good: npt.NDArray[np.bool_] = (changing + np.uint32(other % 0xFFFF)) % 0xFFFF == 0
    return good


def datagrams_sound(heads: Rows, payloads: Rows) -> npt.NDArray[np.bool_]:
    """Return which datagrams of one length have the right UDP checksum or none, (n,) booleans."""
    length = 8 + payloads.shape[1]
    none = ~heads[:, UDP + 6 : HEAD].any(axis=1)
    pseudo = np.frombuffer(b"\0\x11" + length.to_bytes(2, "big"), np.uint8).reshape(1, -1)
    total = sums(payloads) + sums(heads[:, IP + 12 :]) + sums(pseudo)
    good: npt.NDArray[np.bool_] = none | (total % np.uint64(0xFFFF) == 0)
    return good
