"""Collectives through the switch, with the conventions of mpi4py.

from worker_lib import mpi as MPI
comm = MPI.COMM_WORLD
comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Any

from . import datatypes, ops
from .buffers import BOTTOM, IN_PLACE
from .comm import UNDEFINED, Intracomm
from .datatypes import Datatype
from .errors import CLASSES
from .errors import MpiError as Exception
from .ops import Op
from .requests import Request

if TYPE_CHECKING:
    COMM_WORLD: Intracomm

Comm = Intracomm
COMM_SELF = Intracomm.alone()
COMM_NULL = Intracomm()
REQUEST_NULL = Request()
DATATYPE_NULL = datatypes.NULL
OP_NULL = Op("MPI_OP_NULL", lambda x, _: x)
THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
NAMED: dict[str, Any] = {**datatypes.NAMED, **ops.NAMED, **CLASSES}

__all__ = [
    "BOTTOM",
    "COMM_NULL",
    "COMM_SELF",
    "COMM_WORLD",
    "DATATYPE_NULL",
    "IN_PLACE",
    "OP_NULL",
    "REQUEST_NULL",
    "THREAD_FUNNELED",
    "THREAD_MULTIPLE",
    "THREAD_SERIALIZED",
    "THREAD_SINGLE",
    "UNDEFINED",
    "Comm",
    "Datatype",
    "Exception",
    "Finalize",
    "Get_processor_name",
    "Init",
    "Intracomm",
    "Is_finalized",
    "Is_initialized",
    "Op",
    "Query_thread",
    "Request",
    "Wtick",
    "Wtime",
]


def __getattr__(name: str) -> Any:
    """Return a datatype, an operation, an error class, or COMM_WORLD.

    COMM_WORLD is made of the environment when a program first names it.

    Raises:
        ValueError: the environment names no switch, job, rank or number of processes.
    """
    if name == "COMM_WORLD":
        globals()[name] = Intracomm.from_env(os.environ)
        return globals()[name]
    if name in NAMED:
        return NAMED[name]
    raise AttributeError(f"worker_lib.mpi has no {name} (docs/mpi.md lists what it has)")


def __dir__() -> list[str]:
    """List all public names, those of datatypes and operations included."""
    return sorted({*__all__, *NAMED})


def Init() -> None:
    """Do nothing: communicators connect when they are first used."""


def Finalize() -> None:
    """Leave the switch, as the end of the process does, too."""
    world = globals().get("COMM_WORLD", COMM_NULL)
    if world:
        world.Free()


def Is_initialized() -> bool:
    """Return True: the import is enough."""
    return True


def Is_finalized() -> bool:
    """Return whether `Finalize` has ended COMM_WORLD."""
    return "COMM_WORLD" in globals() and not globals()["COMM_WORLD"]


def Query_thread() -> int:
    """Return THREAD_MULTIPLE: calls of several threads take turns."""
    return THREAD_MULTIPLE


def Wtime() -> float:
    """Return seconds since some moment in the past."""
    return time.perf_counter()


def Wtick() -> float:
    """Return the resolution of `Wtime` in seconds."""
    return time.get_clock_info("perf_counter").resolution


def Get_processor_name() -> str:
    """Return the name of this machine."""
    return socket.gethostname()
