"""Checks callers' arguments: each error names the argument, its value, and the mend."""

from __future__ import annotations

import errno
import math
import socket
import time
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from iswitch.core.format.division import divided
from iswitch.core.format.keys import Key, KeyUnusable
from iswitch.core.format.packets import Address
from iswitch.core.format.wire import (
    IP_UDP_HEADERS,
    MOST_PRIORITY,
    MTU_PAYLOAD,
    NO_RANK,
    RANKS,
    ROUND_MASK,
    SEG_SIZE,
    DType,
    Mode,
    Op,
    Shape,
    WireError,
)
from iswitch.hostnames import as_ascii
from iswitch.outside import LIMITS, reason
from iswitch.ports.rings import channel
from iswitch.ports.udp import UdpPort
from iswitch.virtual.process import current

from .errors import BindError, SwitchUnreachable
from .waiting import CHOICES, OnMemberLost

OpName = Literal[
    "sum", "max", "min", "prod", "land", "lor", "lxor", "band", "bor", "bxor", "maxloc", "minloc"
]


class _TorchDType(Protocol):
    """PyTorch's dtype, by what tells it from others."""

    @property
    def is_floating_point(self) -> bool: ...
    @property
    def is_complex(self) -> bool: ...


ElementType = npt.DTypeLike | _TorchDType
OPS = {op.label: op for op in Op}
MOST_JOB = 0xFFFF
MOST_ROUNDS = 0xFFFFFFFF  # for which a Join has room
JOBS = f"a job number is 0..{MOST_JOB}"
WORKERS = f"a job has 1 to {RANKS} workers, and at each switch 64 at most"
LONGEST = 2.0**31  # seconds; infinity becomes this, since locks take no more
TIMEOUT = 60.0  # seconds: two leases, as the place of a worker that was killed is free after one


def address(name: str, value: object, least_port: int = 0) -> tuple[str, int]:
    """Return a value if it is a (host, port) pair.

    Args:
        name: name of the argument.
        value: its value.
        least_port: 0 for a local address, where port 0 means any; 1 for a remote one.

    Raises:
        ValueError: the value is no such pair.
    """
    match value:
        case (str(host), Integral() as port) if least_port <= int(port) <= 65535:
            try:
                return as_ascii(host), int(port)
            except ValueError as error:
                raise ValueError(f"{name} = {value!r}: {error}") from None
    raise ValueError(f"{name} = {value!r}: pass (host, port), such as ('127.0.0.1', 26963)")


def whole(name: str, value: object, least: int, most: int, hint: str) -> int:
    """Return a value as an int if it is a whole number from `least` to `most`.

    Raises:
        ValueError: the value is anything else; the message ends with `hint`.
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= most:
        return int(value)
    raise ValueError(f"{name} = {value!r}: {hint}")


def seconds(name: str, value: object) -> float:
    """Return a value as a float if it is a number above zero."""
    if isinstance(value, Real) and not isinstance(value, bool) and float(value) > 0:
        return min(float(value), LONGEST)
    raise ValueError(f"{name} = {value!r}: pass seconds, more than 0")


def operation(value: object) -> Op:
    """Return the operation of a name of `OPS`."""
    if isinstance(value, str) and value in OPS:
        return OPS[value]
    raise ValueError(f"op = {value!r}: use {', '.join(OPS)} (a mean is the sum, divided)")


def version(value: object, more: int = 0) -> int:
    """Return the version of some weights if the value can be one, or one and up to `more`."""
    hint = f"pass what read() has returned, a number of 0 to {ROUND_MASK}"
    return whole("version", value, 0, ROUND_MASK + more, hint) & ROUND_MASK


def rank(value: object, num_workers: int | None) -> int:
    """Return the rank to ask for; NO_RANK if the value is None, which means any rank."""
    if value is None:
        return NO_RANK
    if num_workers is None:
        return whole("rank", value, 0, RANKS - 1, f"a rank is 0..{RANKS - 1}, or None for any")
    hint = (
        f"the ranks of {num_workers} workers are 0..{num_workers - 1}; mend the rank (RANK in the "
        "environment?) or num_workers (WORLD_SIZE)"
    )
    return whole("rank", value, 0, num_workers - 1, hint)


def num_workers(value: object) -> int:
    """Return a job's number of workers if the value can be one."""
    return whole("num_workers", value, 1, RANKS, WORKERS)


def job_number(value: object) -> int:
    """Return a job number if the value can be one."""
    return whole("job", value, 0, MOST_JOB, JOBS)


def named_round(value: object, partial: bool, name: str) -> None:
    """Check the round that a caller names: partial Workers require one, others refuse it.

    Args:
        value: the round, or None.
        partial: whether the Worker is partial.
        name: name of the argument.

    Raises:
        ValueError: the round is missing, not expected, or out of range.
    """
    if value is None and partial:
        raise ValueError(
            f"{name} is missing: a Worker made with partial=True is told which round of the "
            "program a vector is of, such as allreduce(vector, round_=step)"
        )
    if value is not None and not partial:
        raise ValueError(f"{name} = {value!r}: make the Worker with partial=True, or leave it out")
    if value is not None:
        whole(name, value, 0, ROUND_MASK, f"a round is a number of 0 to {ROUND_MASK}")


def rounds(value: object) -> int:
    """Check how many rounds a worker says it will do; return 0 for None."""
    hint = "pass the number of allreduces to come, or None if that is not known"
    return 0 if value is None else whole("rounds", value, 1, MOST_ROUNDS, hint)


def priority(value: object) -> int:
    """Check the priority that a worker asks for its job."""
    hint = f"pass a number from 0 to {MOST_PRIORITY}; jobs of a higher one go first"
    return whole("priority", value, 0, MOST_PRIORITY, hint)


def key(value: bytes | None) -> Key | None:
    """Make a Key from the bytes of a keyed job's key; None stays None.

    Raises:
        ValueError: the bytes cannot be a key.
    """
    if value is None:
        return None
    try:
        return Key(value)
    except KeyUnusable as error:
        raise ValueError(f"key: {error} (Worker.from_env reads it from a file)") from None


def on_member_lost(value: object, num_workers: int | None) -> OnMemberLost:
    """Return the choice for the loss of a worker if the value is one.

    Raises:
        ValueError: the value is no choice, or requires num_workers.
    """
    found = next((choice for choice in CHOICES if choice == value), None)
    if found is None:
        raise ValueError(f"on_member_lost = {value!r}: pass 'wait', 'continue' or 'raise'")
    if found == "raise" and num_workers is None:
        raise ValueError("on_member_lost = 'raise': pass num_workers, else nobody can be missed")
    return found


def shape(
    numel: object, dtype: ElementType, op: object, elements: object, mode: Mode = Mode.SYNCHRONOUS
) -> Shape:
    """Make the layout of vectors from a Worker's arguments.

    Args:
        numel: elements of a vector.
        dtype: element type.
        op: a name of `OPS`.
        elements: elements of a segment; None: the default.
        mode: mode of the job.

    Raises:
        ValueError: the protocol cannot carry such vectors.
    """
    hint = "pass the vector's number of elements (grad.size), 0 to 4294967295"
    numel = whole("numel", numel, 0, 0xFFFFFFFF, hint)
    elements, element_type, combined = per_segment(elements), type_of(dtype), operation(op)
    if mode is Mode.ASYNCHRONOUS and (element_type.is_pair or element_type is DType.BOOL):
        raise ValueError(f"dtype = {dtype!r}: gradients are numbers, such as float32")
    return _checked(Shape.of(numel, element_type, combined, mode, elements=elements))


def _checked(shape: Shape) -> Shape:
    try:
        shape.check()
    except WireError as error:
        raise ValueError(str(error)) from None
    return shape


def per_segment(elements: object) -> int | None:
    """Return elements of a segment if the value can be their number; None stays None."""
    if elements is None:
        return None
    return whole("elements_per_segment", elements, 1, 0xFFFF, "pass 1 to 65535 elements")


def type_of(dtype: ElementType) -> DType:
    """Return the element type that a value names: NumPy's dtype, PyTorch's, or a name."""
    is_torch = type(dtype).__module__ == "torch"
    named: Any = str(dtype).removeprefix("torch.") if is_torch else dtype
    try:
        return DType.of(named)
    except (TypeError, WireError):
        raise ValueError(f"dtype = {dtype!r}: use {', '.join(DType.labels())}") from None


def layouts(
    numel: object, num_workers: int, mode: Mode, dtype: ElementType, op: object
) -> Callable[[int | None], Shape]:
    """Return a function from elements of a segment, None for the default, to a layout of blocks.

    Args:
        numel: most elements of a block.
        num_workers: number of ranks.
        mode: mode of the job.
        dtype: element type.
        op: a name of `OPS`, which counts in a reduce_scatter.

    Raises:
        ValueError: the protocol cannot carry such vectors.
    """
    hint = "pass the most elements of a block, 0 to 4294967295"
    numel_ = whole("numel", numel, 0, 0xFFFFFFFF, hint)
    element_type, combined = type_of(dtype), operation(op)
    if mode is not Mode.REDUCE_SCATTER:  # where nothing is combined
        combined = Op.MAXLOC if element_type.is_pair else Op.SUM
    full = (MTU_PAYLOAD - SEG_SIZE) // element_type.itemsize

    def layout(elements: int | None) -> Shape:
        most = full if elements is None else elements
        return _checked(divided(numel_, num_workers, mode, element_type, combined, most))

    return layout


def resizing(shape: Shape) -> Callable[[int], Shape]:
    """Return a function that returns the layout of such vectors with other elements a segment."""

    def resized(elements: int) -> Shape:
        return Shape.of(shape.numel, shape.dtype, shape.op, shape.mode, elements)

    return resized


def fitted(shape: Shape, port: UdpPort, resized: Callable[[int], Shape]) -> Shape:
    """Shorten a shape's packets to the MTU of the route to the switch; return the shape.

    Args:
        shape: the layout of the vectors.
        port: socket connected to the switch.
        resized: returns that layout with other elements per segment.
    """
    payload = port.mtu - IP_UDP_HEADERS
    if payload >= shape.packet_size:
        return shape
    return resized((payload - SEG_SIZE) // shape.dtype.itemsize)


def incarnation() -> int:
    """Return the current second, Unix time modulo 2^32, as this process's incarnation.

    If an earlier process at its address had a larger one, the switch says so, and the worker joins
    with a number above that.
    """
    return int(time.time()) & ROUND_MASK


def port(switch: tuple[str, int], bind: tuple[str, int], offload: bool = True) -> UdpPort:
    """Open a UDP socket at `bind`, connected to the switch.

    Args:
        switch: (host, port) of the switch.
        bind: local (host, port).
        offload: use segmentation offload where the machine supports it.

    Raises:
        SwitchUnreachable: there is no route from `bind` to the switch.
        BindError: the address `bind` is not available, or no socket can be opened.
    """
    try:
        return virtual(bind, switch) or channel.port(bind, switch, offload)
    except OSError as error:
        if error.errno in LIMITS:
            raise BindError(f"cannot open a socket: {reason(error)}") from None
        here, there = Address(*bind), Address(*switch)
        ours = {
            errno.EADDRINUSE: "another socket has it; choose another, port 0 for any",
            errno.EADDRNOTAVAIL: "no address of this machine",
            errno.EACCES: "that needs a privilege; choose a port from 1024 on",
        }.get(error.errno or 0)
        why = error.strerror
        if error.errno == errno.EACCES and _forbidden(switch):
            ours, why = None, "it is a broadcast address, or a route forbids it"
        if ours:
            raise BindError(f"cannot bind {here}: {ours}") from None
        raise SwitchUnreachable(
            f"cannot reach {there} from {here}: {why}; mend the address (IPv4) of the switch, or "
            "`bind`"
        ) from None


def virtual(bind: tuple[str, int], switch: tuple[str, int]) -> Any:
    """Open a port in virtual time, connected to the switch; None: this thread runs in real time.

    Raises:
        OSError: the address is not available, or nothing leads to the switch.
    """
    if (task := current()) is None:
        return None
    from iswitch.virtual.port import VirtualPort

    return VirtualPort(task.process, bind, switch)


def _forbidden(switch: tuple[str, int]) -> bool:
    """Tell whether the kernel lets no socket connect to an address, wherever it is bound."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return probe.connect_ex(switch) == errno.EACCES


def too_large(shape: Shape) -> MemoryError:
    """Make the error that this machine has no memory for a shape's packets."""
    size = shape.numel * shape.dtype.itemsize
    return MemoryError(
        f"no memory for packets of {shape.numel:,} elements ({size:,} bytes); sum up a "
        "smaller vector several times, free memory, or raise `ulimit -v`"
    )


def new_result(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Allocate an array for a result, for a caller that passed no `out`.

    Raises:
        MemoryError: this machine has no memory for the array; the message names the mend.
    """
    try:
        return np.empty(shape, dtype)
    except MemoryError:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        raise MemoryError(
            f"no memory for a result of {size:,} bytes; give `out` (it may be the vector itself), "
            "free memory, or raise `ulimit -v`"
        ) from None
