"""Reads nodes of Chakra execution traces, which are messages `Node` of their et_def.proto.

https://github.com/mlcommons/chakra
"""

from __future__ import annotations

from typing import NamedTuple

from .protobuf import fields, numbers

TYPES = (
    "INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL",
)  # fmt: skip
COLLECTIVES = (
    "ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL",
    "REDUCE_SCATTER", "REDUCE_SCATTER_BLOCK", "BARRIER",
)  # fmt: skip
CALLS = {"ALL_REDUCE": "allreduce", "BARRIER": "barrier"}
EVERYBODY = ("", "0")  # names of the process group of all
ZIGZAG = (15, 17)  # fields of attributes whose integers are of the types sint32 and sint64


class Node(NamedTuple):
    """A node of a trace.

    Attributes:
        number: by which others depend on it.
        kind: one of TYPES.
        needs: numbers of the nodes whose data it needs.
        micros: how long it took, in microseconds.
        attributes: name and value; of lists and texts, the bytes.
    """

    number: int
    kind: str
    needs: tuple[int, ...]
    micros: int
    attributes: dict[str, int | bytes]

    def whole(self, name: str) -> int:
        """Return an attribute that is a whole number; 0: there is none."""
        value = self.attributes.get(name, 0)
        if not isinstance(value, int):
            raise ValueError(f"{name} of node {self.number} is no whole number")
        return value

    @property
    def group(self) -> str:
        """Return the name of the process group that takes part in the call; "": all."""
        value = self.attributes.get("pg_name", b"")
        name = value.decode() if isinstance(value, bytes) else str(value)
        return "" if name in EVERYBODY else name

    @property
    def dimensions(self) -> list[int]:
        """Return for each dimension of ASTRA-sim's network whether a call is of it; or nothing."""
        value = self.attributes.get("involved_dim", b"")
        found = fields(value) if isinstance(value, bytes) else ()
        return [one for _, values in found for one in numbers(values)]

    @property
    def operation(self) -> str:
        """Return what it does: a collective of COLLECTIVES, or one of TYPES.

        A collective that a CPU launches has no comm_type: the accelerator has a node of its own.
        """
        if self.kind != "COMM_COLL":
            return self.kind
        if "comm_type" not in self.attributes and self.whole("is_cpu_op"):
            return "COMP"
        kind = self.whole("comm_type") if "comm_type" in self.attributes else -1
        if not 0 <= kind < len(COLLECTIVES):
            raise ValueError(f"node {self.number} does not say by comm_type which collective it is")
        return COLLECTIVES[kind]

    @property
    def call(self) -> str | None:
        """Return the collective of a record; None: it makes no call that is played."""
        return CALLS.get(self.operation)


def check_metadata(message: bytes) -> None:
    """Look whether a message can be a GlobalMetadata, which has a text and messages alone.

    Raises:
        ValueError: it is a node, or damaged.
    """
    if any(field in (1, 3) and isinstance(value, int) for field, value in fields(message)):
        raise ValueError("it begins with a node, not with GlobalMetadata")


def parse(message: bytes) -> Node:
    """Read a node.

    Raises:
        ValueError: it is damaged.
    """
    number = kind = micros = 0
    needs: list[int] = []
    attributes: dict[str, int | bytes] = {}
    for field, value in fields(message):
        if field == 1 and isinstance(value, int):
            number = value
        elif field == 3 and isinstance(value, int):
            kind = value
        elif field == 5:
            needs += numbers(value)
        elif field == 7 and isinstance(value, int):
            micros = value
        elif field == 10 and isinstance(value, bytes):
            attributes.update([_attribute(value)])
    if kind >= len(TYPES):
        raise ValueError(f"node {number} is of no known type: {kind}")
    return Node(number, TYPES[kind], tuple(needs), micros, attributes)


def _attribute(message: bytes) -> tuple[str, int | bytes]:
    name = ""
    found: int | bytes = b""
    for field, value in fields(message):
        if field == 1 and isinstance(value, bytes):
            name = value.decode()
        elif field > 2:
            is_zigzag = field in ZIGZAG and isinstance(value, int)
            found = int(value) >> 1 ^ -(int(value) & 1) if is_zigzag else value
    return name, found
