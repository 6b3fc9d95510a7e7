"""Reads the wire format of Protocol Buffers: messages, each behind its length, and their fields.

https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
WIDTH = {FIXED64: 8, FIXED32: 4}


def messages(content: bytes) -> Iterator[bytes]:
    """Yield the messages of a stream, each of which is behind its length.

    Raises:
        ValueError: the stream is cut off.
    """
    at = 0
    while at < len(content):
        size, begin = _varint(content, at)
        if (end := begin + size) > len(content):
            raise ValueError(f"the message at byte {at} is cut off")
        yield content[begin:end]
        at = end


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the numbers and values of fields: of varints as unsigned integers, else the bytes.

    Raises:
        ValueError: the message is damaged.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == LENGTH:
            size, at = _varint(message, at)
        elif kind in WIDTH:
            size = WIDTH[kind]
        else:
            raise ValueError(f"field {number} is of no known wire type: {kind}")
        if at + size > len(message):
            raise ValueError(f"field {number} of a message is cut off")
        yield number, message[at : at + size]
        at += size


def numbers(value: int | bytes) -> list[int]:
    """Return the integers of a repeated field, which are one, or packed.

    Raises:
        ValueError: they are cut off.
    """
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned integer of 64 bits, and where the next byte is."""
    value = 0
    for shift in range(0, 70, 7):
        if at == len(content):
            raise ValueError("it ends within a number")
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
    raise ValueError("a number has more than ten bytes")
