"""The input arbiter: is a packet control, data, or ordinary traffic?"""

from __future__ import annotations

from enum import Enum

import numpy as np

from .wire import TOS_CONTROL, TOS_DATA, TOS_MASK


class Traffic(Enum):
    """The arbiter's verdict on a packet."""

    CONTROL = TOS_CONTROL
    DATA = TOS_DATA
    ORDINARY = None


def classify(tos: int) -> Traffic:
    """Tell the kind of a UDP packet for the switch's port by its ToS byte, without the ECN bits."""
    tos &= TOS_MASK
    if tos == TOS_DATA:
        return Traffic.DATA
    return Traffic.CONTROL if tos == TOS_CONTROL else Traffic.ORDINARY


# The verdicts on many packets at once, indexed by their ToS bytes.
CONTROL, DATA = (
    np.array([classify(tos) is kind for tos in range(256)])
    for kind in (Traffic.CONTROL, Traffic.DATA)
)
TAGGED = CONTROL | DATA
