"""Operations, on objects of Python and on elements, and the element types that carry them.

The switch combines float16 to float64, bfloat16, int32, int64, uint8, bool and some pairs. Other
whole numbers travel as one of these, with equal results: addition, multiplication and operations
on bits do not see a sign, and an order of signed numbers is one of unsigned numbers with the first
bit inverted. Numbers of 16 bits travel as int32.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from iswitch.core.format.wire import DType, Vector, WireError
from worker_lib import arguments
from worker_lib.arguments import OpName

from .buffers import check_alike, message
from .datatypes import layout

WORDS = {1: np.uint8, 2: np.int32, 4: np.int32, 8: np.int64}  # that carry whole numbers, by bytes


@dataclass(frozen=True)
class Op:
    """An operation; a call combines two objects.

    Attributes:
        name: name in MPI, such as MPI_SUM.
        function: combines two objects, those of the lower rank first.
        elements: combines two arrays, and writes the result into `out`; None: no operation of
            reductions.
        switch: the switch's name.
    """

    name: str
    function: Callable[[Any, Any], Any]
    elements: Callable[..., Any] | None = None
    switch: OpName | None = None

    def __call__(self, x: Any, y: Any) -> Any:
        """Combine two objects."""
        return self.function(x, y)

    def Is_commutative(self) -> bool:
        """Return whether the order of operands does not matter."""
        return self.name not in ("MPI_REPLACE", "MPI_NO_OP")

    def Is_predefined(self) -> bool:
        """Return True: all are MPI's own."""
        return True

    is_commutative = property(Is_commutative)
    is_predefined = property(Is_predefined)

    @staticmethod
    def Create(function: Any, commute: bool = False) -> Op:
        """Refuse an operation that the switch does not have."""
        raise NotImplementedError(
            f"the switch cannot run {function!r} (commute={commute}): pass it to the lower-case "
            "calls, as in comm.allreduce(object, op=function), or gather and combine"
        )

    def Free(self) -> None:
        """Do nothing."""

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        """Combine two vectors of this process, into the second.

        Raises:
            TypeError, ValueError: they differ in size or type, or are no buffers.
        """
        theirs, ours = message("inbuf", inbuf), message("inoutbuf", inoutbuf, writable=True)
        check_alike(theirs, ours)
        self.combine(theirs.data, ours.data)

    def combine(self, theirs: Vector, ours: Vector) -> None:
        """Combine elements of a lower rank with ours, into ours."""
        if self.elements is None:
            raise self.refusal(ours.dtype)
        with np.errstate(all="ignore"):
            try:
                self.elements(theirs, ours, out=ours)
            except TypeError:
                raise self.refusal(ours.dtype) from None

    def refusal(self, dtype: np.dtype[Any]) -> TypeError:
        """Make the error that this operation is not defined for elements of a type."""
        return TypeError(
            f"{self.name} of {dtype}: the switch does not combine such elements; convert them to "
            "a type that it knows (docs/mpi.md), or use the lower-case call, whose ranks combine"
        )


def _located(largest: bool) -> Callable[..., None]:
    """Return the function that keeps, of each two pairs, the one with the larger value."""

    def keep(a: Vector, b: Vector, out: Vector) -> None:
        if a.dtype.fields is None:
            raise TypeError
        wins = a["value"] > b["value"] if largest else a["value"] < b["value"]
        level = (a["value"] == b["value"]) & (a["index"] < b["index"])
        np.copyto(out, np.where(wins | level, a, b))

    return keep


def _best(better: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    def keep(x: Any, y: Any) -> Any:
        if x[0] == y[0]:
            return x[0], min(x[1], y[1])
        return x if better(x[0], y[0]) else y

    return keep


NAMED: dict[str, Op] = {
    "SUM": Op("MPI_SUM", operator.add, np.add, "sum"),
    "PROD": Op("MPI_PROD", operator.mul, np.multiply, "prod"),
    "MAX": Op("MPI_MAX", max, np.maximum, "max"),
    "MIN": Op("MPI_MIN", min, np.minimum, "min"),
    "LAND": Op("MPI_LAND", lambda x, y: bool(x) & bool(y), np.logical_and, "land"),
    "LOR": Op("MPI_LOR", lambda x, y: bool(x) | bool(y), np.logical_or, "lor"),
    "LXOR": Op("MPI_LXOR", lambda x, y: bool(x) ^ bool(y), np.logical_xor, "lxor"),
    "BAND": Op("MPI_BAND", operator.and_, np.bitwise_and, "band"),
    "BOR": Op("MPI_BOR", operator.or_, np.bitwise_or, "bor"),
    "BXOR": Op("MPI_BXOR", operator.xor, np.bitwise_xor, "bxor"),
    "MAXLOC": Op("MPI_MAXLOC", _best(operator.gt), _located(True), "maxloc"),
    "MINLOC": Op("MPI_MINLOC", _best(operator.lt), _located(False), "minloc"),
    "REPLACE": Op("MPI_REPLACE", lambda _, y: y),
    "NO_OP": Op("MPI_NO_OP", lambda x, _: x),
}
SUM = NAMED["SUM"]


@dataclass(frozen=True)
class Carried:
    """Elements of one type, as the switch combines them.

    Attributes:
        op: operation.
        dtype: type of the elements.
        carrier: type that the switch combines.
        flip: bits to invert on the way there and back.
    """

    op: Op
    dtype: np.dtype[Any]
    carrier: np.dtype[Any]
    flip: int = 0

    @property
    def is_view(self) -> bool:
        """Return whether the elements are the switch's without a copy."""
        if self.dtype.fields is not None:
            return layout(self.dtype) == layout(self.carrier)
        return not self.flip and self.dtype.itemsize % self.carrier.itemsize == 0

    @property
    def name(self) -> OpName:
        """Return the switch's name of the operation."""
        assert self.op.switch is not None
        return self.op.switch

    def room(self, out: Vector) -> Vector:
        """Return where the switch's results for such elements go: a view, or a new array."""
        return out.view(self.carrier) if self.is_view else np.empty(out.shape, self.carrier)

    def load(self, array: Vector) -> Vector:
        """Return flat elements as the switch takes them: a view if they are such, else a copy."""
        if self.is_view:
            return array.view(self.carrier)
        if self.carrier.fields is not None:
            made = np.empty(array.shape, self.carrier)
            for name in made.dtype.names or ():
                made[name] = array[name]
            return made
        if self.dtype.itemsize != self.carrier.itemsize:
            return array.astype(self.carrier)
        flipped: Vector = array.view(self.carrier) ^ self._mask
        return flipped

    def store(self, result: Vector, out: Vector) -> None:
        """Write what the switch has combined to flat elements, unless it is a view of them."""
        if self.is_view:
            return
        if self.carrier.fields is not None:
            for name in out.dtype.names or ():
                out[name] = result[name]
        elif self.dtype.itemsize != self.carrier.itemsize:
            out[:] = result.astype(self.dtype)
        else:
            out[:] = (result ^ self._mask).view(self.dtype)

    @property
    def _mask(self) -> Any:
        return np.array(self.flip, f"u{self.carrier.itemsize}").view(self.carrier)


def carried(dtype: np.dtype[Any], op: Op) -> Carried:
    """Return how elements travel for an operation.

    Raises:
        TypeError: the switch cannot combine them; the message names the mend.
    """
    if op.switch is None:
        raise op.refusal(dtype)
    if dtype.kind == "c" and op.switch == "sum" and dtype.itemsize <= 16:
        return Carried(op, dtype, np.dtype(f"f{dtype.itemsize // 2}"))
    carrier, flip = dtype, 0
    if dtype.fields is not None and len(dtype.fields) == 2:
        carrier = _pair_for(dtype)
    elif dtype.kind in "iu":
        carrier = np.dtype(WORDS[dtype.itemsize])
        ordered = op.switch in ("max", "min") and dtype.itemsize != 2
        flip = 1 << 8 * dtype.itemsize - 1 if ordered and carrier.kind != dtype.kind else 0
    try:
        if not arguments.OPS[op.switch].takes(DType.of(carrier)):
            raise op.refusal(dtype)
    except WireError:
        raise op.refusal(dtype) from None
    return Carried(op, dtype, carrier, flip)


def _pair_for(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the switch's pair that holds such values and indices."""
    assert dtype.names is not None
    value, index = (dtype[name] for name in dtype.names)
    for pair in (each.numpy for each in DType if each.is_pair):
        fits = np.can_cast(value, pair["value"]) and np.can_cast(index, pair["index"])
        if fits and value.kind == pair["value"].kind:
            return pair
    return dtype
