"""Says what is wrong with packets that a switch answers with BAD_REQUEST or drops as malformed.

Each function returns the fault in words; None: there is none.
"""

from __future__ import annotations

from iswitch.core.format.keys import MAC_SIZE
from iswitch.core.format.wire import (
    PART,
    SEG_SIZE,
    VALUES,
    Action,
    Control,
    DType,
    Header,
    Join,
    Shape,
)

HEADER_SIZE = 8  # of control
SHORT = f"a packet has at least {SEG_SIZE} bytes"
TRUNCATED = "not captured whole"  # and so not judged


def without_mac(payload: bytes) -> bytes:
    """Cut the MAC off a control packet, if its length says that it has one."""
    action, length = Header.parse(payload).action, len(payload) - HEADER_SIZE - MAC_SIZE
    kinds = VALUES[Action(action)] if action in list(Action) else ()
    keyed = any(kind.takes(length) if kind else length == 0 for kind in kinds)
    return payload[:-MAC_SIZE] if keyed else payload


def of_control(payload: bytes) -> str | None:
    """Check a control packet, except for its MAC."""
    if len(payload) < HEADER_SIZE:
        return SHORT
    try:
        packet = Control.parse(without_mac(payload))
        if isinstance(packet.value, Join):
            packet.value.checked()
    except ValueError as error:
        return str(error)
    return None


def of_data(
    index: int, size: int, shape: Shape | None, assumed: DType, parts: bool = False
) -> str | None:
    """Check a data packet with `size` bytes of elements against the shape of its job, if known."""
    if shape is None:
        if size % assumed.itemsize:
            return f"{size} bytes are no whole number of {assumed.name.lower()} elements"
        return None
    if index >= shape.segments:
        return f"segment {index} of a vector of {shape.segments}"
    wanted = shape.tail(index + 1) - SEG_SIZE + PART.itemsize * parts
    if size != wanted:
        return f"segment {index} has {size} bytes of elements, and should have {wanted}"
    return None
