"""bpf(2), and short programs that the kernel runs on the path of each frame.

An instruction is 8 bytes: code, registers (destination and source, four bits each), offset and a
constant (linux/bpf.h). R1 holds the context (struct __sk_buff) at the start, R0 what a helper or
the program returns, R10 the end of the stack; helpers take R1 to R5 and leave R6 to R9 alone.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Any

SYSCALL = {"x86_64": 321, "aarch64": 280}  # bpf(2)
MAP_CREATE, MAP_LOOKUP, MAP_UPDATE, PROG_LOAD, LINK_CREATE = 0, 1, 2, 5, 28
ARRAY, PROG_ARRAY = 2, 3  # kinds of maps
SCHED_CLS, TCX_EGRESS = 3, 47  # of programs, and of places to attach them at
LOOKUP, STORE_BYTES, L3_CSUM, L4_CSUM, TAIL_CALL, CLONE_REDIRECT = 1, 9, 10, 11, 12, 13  # helpers

LOAD, STORE, STORE_VALUE = 0x61, 0x63, 0x62  # 32 bits, from and to memory
MOVE, MOVE_VALUE, ADD_VALUE, SUB_VALUE, DIVIDE = 0xBF, 0xB7, 0x07, 0x17, 0x3F
ATOMIC_ADD, LOAD_MAP = 0xDB, 0x18
IF_EQUAL, CALL, EXIT = 0x15, 0x85, 0x95

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


def bpf(command: int, attributes: bytes) -> int:
    """Call bpf(2).

    Raises:
        OSError: the kernel refuses; ENOSYS on machines whose call number is unknown.
    """
    number = SYSCALL.get(platform.machine(), -1)
    memory = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result: int = _syscall(ctypes.c_long(number), ctypes.c_int(command), memory, ctypes.c_uint(128))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def create_map(kind: int, value: int, entries: int) -> int:
    """Create a map from numbers to values; return its descriptor.

    Args:
        kind: ARRAY or PROG_ARRAY.
        value: bytes of a value.
        entries: number of entries.
    """
    return bpf(MAP_CREATE, struct.pack("<IIII", kind, 4, value, entries))


def lookup(map_: int, key: int) -> int:
    """Read the 64-bit value of an array's element."""
    value = ctypes.c_uint64()
    _element(MAP_LOOKUP, map_, key, value)
    return value.value


def update(map_: int, key: int, descriptor: int) -> None:
    """Put a program into an array of programs."""
    _element(MAP_UPDATE, map_, key, ctypes.c_uint32(descriptor))


def _element(command: int, map_: int, key: int, value: Any) -> None:
    number = ctypes.c_uint32(key)
    places = ctypes.addressof(number), ctypes.addressof(value), 0
    bpf(command, struct.pack("<I4xQQQ", map_, *places))


def load(code: bytes) -> int:
    """Load a program for frames into the kernel; return its descriptor."""
    memory = ctypes.create_string_buffer(code, len(code))
    license_ = ctypes.create_string_buffer(b"Apache-2.0")
    places = ctypes.addressof(memory), ctypes.addressof(license_)
    return bpf(PROG_LOAD, struct.pack("<IIQQ", SCHED_CLS, len(code) // 8, *places))


def attach(program: int, interface: int) -> int:
    """Attach a program to all frames that leave by an interface of this network namespace.

    Returns:
        A descriptor; closing it detaches the program.
    """
    return bpf(LINK_CREATE, struct.pack("<IIII", program, interface, TCX_EGRESS, 0))


def step(code: int, to: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    """Make one instruction."""
    return struct.pack("<BBhi", code, to | source << 4, offset, value)


def load_map(to: int, map_: int) -> bytes:
    """Make the two instructions that load a map's address, by its descriptor."""
    return step(LOAD_MAP, to, 1, 0, map_) + step(0)


def call(helper: int, *arguments: int) -> bytes:
    """Make the call of a helper; R1 is the context, which R6 holds, and R2 and on are constants."""
    given = b"".join(step(MOVE_VALUE, i, value=one) for i, one in enumerate(arguments, 2))
    return step(MOVE, 1, 6) + given + step(CALL, value=helper)
