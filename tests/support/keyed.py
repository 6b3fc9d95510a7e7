"""A key, and the MACs made with it."""

from __future__ import annotations

import hashlib

import numpy as np

from iswitch.core.format.wire import (
    DType,
    Shape,
)

SHAPE = Shape.of(6, DType.INT32, elements=2)
ONES = np.ones(6, np.int32)
KEY = b"a key of this test"
MAC = 16


def mac(packet: bytes, key: bytes = KEY) -> bytes:
    return hashlib.blake2b(packet, digest_size=MAC, key=key).digest()
