"""The express way: a few comparisons recognise nearly all frames, which are members' data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from iswitch.core.format.packets import Rows

from .flows import KnownFlow
from .frame import IP, IP_HEADER, UDP, Frames
from .sorting import FIXED, fixed, same

Flows = Mapping[tuple[int, bytes], KnownFlow | None]


def plain_data(flows: Flows, frames: Frames) -> tuple[KnownFlow, Rows] | None:
    """Recognise a member's data in its usual form.

    The form: sound super-datagrams (or a single datagram) of a known flow, all full but the last,
    whose payloads lie one after the other in memory, or can be copied to do so.

    Args:
        flows: known flows and layouts, by ingress and the fixed part of the head.
        frames: frames of one port.

    Returns:
        The flow and layout of the last datagram, and the packets of all, (n, size) bytes; None: the
        frames have another form and must be sorted.
    """
    ingress, heads, bodies, lengths = frames
    n = len(lengths)
    head: bytes = heads[n - 1].tobytes()
    last = flows.get((ingress, fixed(head)))
    if last is None or not last.is_plain or lengths[n - 1] < last.least:
        return None
    if int.from_bytes(head[IP:UDP], "big") % 0xFFFF:
        return None
    step, packets = last.step, last.packets
    if n > 1:
        head = heads[0].tobytes()
        first = flows.get((ingress, fixed(head)))
        if first is None or first.size != bodies.shape[1] or not first.may_lead(last):
            return _put_together(flows, frames)
        if lengths[:-1].count(lengths[0]) < n - 1 or lengths[0] < first.least:
            return _put_together(flows, frames)
        before = heads[: n - 1]
        if not all(same(before, head, part) for part in FIXED):
            return None
        ip = before[:, IP:UDP].tobytes()
        if any(
            int.from_bytes(ip[i : i + IP_HEADER], "big") % 0xFFFF
            for i in range(0, len(ip), IP_HEADER)
        ):
            return None
        packets += (n - 1) * first.packets
    payloads = bodies.reshape(-1)[: packets * step]
    if payloads.size < packets * step:
        return None
    return last, payloads.reshape(packets, step)


def _put_together(flows: Flows, frames: Frames) -> tuple[KnownFlow, Rows] | None:
    """Recognise super-datagrams of various lengths, which faulty links leave after losses.

    Copying their payloads into one array costs less than handling them one by one.
    """
    ingress, heads, bodies, lengths = frames
    payloads: list[Rows] = []
    before: KnownFlow | None = None
    for i, length in enumerate(lengths):
        head: bytes = heads[i].tobytes()
        known = flows.get((ingress, fixed(head)))
        if known is None or not known.is_plain or length < known.least:
            return None
        if int.from_bytes(head[IP:UDP], "big") % 0xFFFF:
            return None
        if before is not None and not before.may_precede(known):
            return None
        payload = bodies[i, : known.packets * known.step]
        if payload.size < known.packets * known.step:
            return None
        payloads.append(payload)
        before = known
    assert before is not None
    return before, np.concatenate(payloads).reshape(-1, before.step)
