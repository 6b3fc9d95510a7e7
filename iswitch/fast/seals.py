"""Makes the MACs of keyed jobs ready for kernels: by the OpenSSL that Python's hashlib uses.

A kernel computes no BLAKE2b itself: it calls three functions of OpenSSL by their addresses, with a
context that has the key. Where Python has been built without OpenSSL 3, or this does not have the
algorithm, marks of keyed jobs go the Python way.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from typing import NamedTuple

import numpy as np

from iswitch.core.format.keys import MAC_SIZE, Key
from iswitch.ports.kernel.mmsg import address_of

INIT, UPDATE, FINAL, CONTEXT, LENGTH, MAC = range(6)  # of words; the MAC has the last two
WORDS = MAC + MAC_SIZE // 8
UNSIGNED = 2  # OSSL_PARAM_UNSIGNED_INTEGER


class Parameter(ctypes.Structure):
    """OSSL_PARAM; the last of several has no name."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("kind", ctypes.c_uint),
        ("data", ctypes.c_void_p),
        ("data_size", ctypes.c_size_t),
        ("return_size", ctypes.c_size_t),
    )


class Library(NamedTuple):
    """OpenSSL, and its BLAKE2b as a MAC."""

    functions: ctypes.CDLL
    algorithm: int


@cache
def library() -> Library | None:
    """Find BLAKE2b in OpenSSL, whose symbols Python's hashlib brings; None: it is not there."""
    try:
        import _hashlib

        found = ctypes.CDLL(getattr(_hashlib, "__file__", None))
        found.EVP_MAC_fetch.restype = found.EVP_MAC_CTX_new.restype = ctypes.c_void_p
        found.EVP_MAC_CTX_new.argtypes = found.EVP_MAC_CTX_free.argtypes = (ctypes.c_void_p,)
        found.EVP_MAC_init.argtypes = (
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.POINTER(Parameter),
        )
        algorithm = found.EVP_MAC_fetch(None, b"BLAKE2BMAC", None)
    except (ImportError, OSError, AttributeError):
        return None
    return Library(found, algorithm) if algorithm else None


class Seal:
    """What a kernel needs to make the MACs of one key.

    Attributes:
        words: addresses of functions and of their context, and room for a MAC, (WORDS,) int64.

    Args:
        key: the key.
        found: OpenSSL.

    Raises:
        ValueError: OpenSSL does not take the key.
    """

    def __init__(self, key: Key, found: Library) -> None:
        functions, algorithm = found
        context = functions.EVP_MAC_CTX_new(algorithm)
        freed = weakref.finalize(self, functions.EVP_MAC_CTX_free, context)
        freed.atexit = False  # a thread may be in a kernel then
        size = ctypes.c_uint(MAC_SIZE)
        place = ctypes.cast(ctypes.byref(size), ctypes.c_void_p)
        parameters = (Parameter * 2)()
        parameters[0] = Parameter(b"size", UNSIGNED, place, ctypes.sizeof(size), 0)
        secret = key.secret
        if not context or not functions.EVP_MAC_init(context, secret, len(secret), parameters):
            raise ValueError("OpenSSL does not take this key")
        called = functions.EVP_MAC_init, functions.EVP_MAC_update, functions.EVP_MAC_final
        addresses = [ctypes.cast(one, ctypes.c_void_p).value or 0 for one in called]
        self.words = np.array([*addresses, context, 0, 0, 0], np.int64)

    @property
    def address(self) -> int:
        """Return the address of the words."""
        return address_of(self.words)


def seal_of(key: Key) -> Seal | None:
    """Return what makes the MACs of a key; None: OpenSSL cannot."""
    found = library()
    try:
        return None if found is None else Seal(key, found)
    except ValueError:
        return None
