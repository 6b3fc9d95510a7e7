"""Datatypes by the names that mpi4py gives them: each is one element of NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Datatype:
    """The type of an element.

    Attributes:
        name: name in MPI, such as MPI_FLOAT.
        numpy: dtype of an element; of a pair, with the fields `value` and `index`.
    """

    name: str
    numpy: np.dtype[Any]

    @property
    def extent(self) -> int:
        """Return the bytes from one element to the next."""
        return self.numpy.itemsize

    @property
    def size(self) -> int:
        """Return the bytes of an element's data, without padding."""
        fields = self.numpy.fields
        return sum(kind.itemsize for kind, *_ in fields.values()) if fields else self.extent

    @property
    def typechar(self) -> str:
        """Return NumPy's character for the type."""
        return self.numpy.char

    def Get_size(self) -> int:
        """Return the bytes of an element's data."""
        return self.size

    def Get_extent(self) -> tuple[int, int]:
        """Return the lower bound, which is 0, and the extent in bytes."""
        return 0, self.extent

    def Get_name(self) -> str:
        """Return the name in MPI."""
        return self.name

    def tocode(self) -> str:
        """Return NumPy's character for the type."""
        return self.numpy.char

    @staticmethod
    def fromcode(code: str) -> Datatype:
        """Return the datatype for a character of NumPy, such as "d"."""
        return datatype_of(np.dtype(code))


def _plain(names: str, dtype: npt.DTypeLike) -> dict[str, Datatype]:
    """Make one datatype, with names for it; the first is its own."""
    first, *_ = names.split()
    datatype = Datatype(f"MPI_{first}", np.dtype(dtype))
    return dict.fromkeys(names.split(), datatype)


def _pair(names: str, value: npt.DTypeLike, index: npt.DTypeLike) -> dict[str, Datatype]:
    """Make the datatype of a C struct of a value and an index."""
    return _plain(names, np.dtype([("value", value), ("index", index)], align=True))


NAMED: dict[str, Datatype] = {
    **_plain("BYTE PACKED", np.uint8),
    **_plain("CHAR CHARACTER", np.dtype("S1")),
    **_plain("SIGNED_CHAR", np.int8),
    **_plain("UNSIGNED_CHAR", np.uint8),
    **_plain("SHORT SIGNED_SHORT", np.int16),
    **_plain("UNSIGNED_SHORT", np.uint16),
    **_plain("INT SIGNED_INT INTEGER", np.int32),
    **_plain("UNSIGNED UNSIGNED_INT", np.uint32),
    **_plain("LONG SIGNED_LONG", np.dtype("l")),
    **_plain("UNSIGNED_LONG", np.dtype("L")),
    **_plain("LONG_LONG SIGNED_LONG_LONG", np.dtype("q")),
    **_plain("UNSIGNED_LONG_LONG", np.dtype("Q")),
    **_plain("INT8_T SINT8_T INTEGER1", np.int8),
    **_plain("UINT8_T", np.uint8),
    **_plain("INT16_T SINT16_T INTEGER2", np.int16),
    **_plain("UINT16_T", np.uint16),
    **_plain("INT32_T SINT32_T INTEGER4", np.int32),
    **_plain("UINT32_T", np.uint32),
    **_plain("INT64_T SINT64_T INTEGER8 AINT OFFSET COUNT", np.int64),
    **_plain("UINT64_T", np.uint64),
    **_plain("C_BOOL BOOL CXX_BOOL", np.bool_),
    **_plain("FLOAT16_T REAL2", np.float16),
    **_plain("FLOAT REAL REAL4", np.float32),
    **_plain("DOUBLE DOUBLE_PRECISION REAL8", np.float64),
    **_plain("LONG_DOUBLE", np.longdouble),
    **_plain("C_FLOAT_COMPLEX C_COMPLEX COMPLEX COMPLEX8 F_FLOAT_COMPLEX", np.complex64),
    **_plain("C_DOUBLE_COMPLEX DOUBLE_COMPLEX COMPLEX16 F_DOUBLE_COMPLEX", np.complex128),
    **_plain("C_LONG_DOUBLE_COMPLEX", np.clongdouble),
    **_pair("FLOAT_INT", np.float32, np.int32),
    **_pair("DOUBLE_INT", np.float64, np.int32),
    **_pair("LONG_INT", np.dtype("l"), np.int32),
    **_pair("TWOINT INT_INT", np.int32, np.int32),
    **_pair("SHORT_INT", np.int16, np.int32),
    **_pair("LONG_DOUBLE_INT", np.longdouble, np.int32),
}
NULL = Datatype("MPI_DATATYPE_NULL", np.dtype([]))
BYTES = NAMED["BYTE"]
PLAIN = [datatype for datatype in NAMED.values() if datatype.numpy.fields is None]
PAIRS = [datatype for datatype in NAMED.values() if datatype.numpy.fields is not None]


@cache
def datatype_of(dtype: np.dtype[Any]) -> Datatype:
    """Return the datatype of a buffer's elements.

    Raises:
        TypeError: MPI has no type for them.
    """
    if dtype.name == "bfloat16":
        return Datatype("MPI_BFLOAT16_T", dtype)
    for datatype in PLAIN:
        if datatype is not BYTES and datatype.numpy.char == dtype.char and datatype.numpy == dtype:
            return datatype
    for pair in PAIRS:
        if layout(pair.numpy) == layout(dtype):
            return pair
    raise TypeError(
        f"no MPI datatype for {dtype}: convert the array (.astype), or pass its bytes, as "
        "array.view('uint8')"
    )


def layout(dtype: np.dtype[Any]) -> object:
    """Return what makes two pairs alike: types and places of their fields, and their size."""
    return dtype.itemsize, [kind[:2] for kind in (dtype.fields or {}).values()]
