"""The exception of this package, and its error classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from worker_lib.errors import SizesDiffer, WorkerError

# Numbers of MPI 5.0, chapter 20.
CLASSES = {
    "SUCCESS": 0,
    "ERR_BUFFER": 1,
    "ERR_COUNT": 2,
    "ERR_TYPE": 3,
    "ERR_COMM": 5,
    "ERR_RANK": 6,
    "ERR_ROOT": 8,
    "ERR_OP": 10,
    "ERR_ARG": 13,
    "ERR_UNKNOWN": 14,
    "ERR_TRUNCATE": 15,
    "ERR_OTHER": 16,
}


class MpiError(RuntimeError):
    """A failure of a collective; programs know it as `MPI.Exception`.

    Args:
        error_class: a name of `CLASSES`.
        message: what has happened, and what to do.
    """

    def __init__(self, error_class: str, message: str) -> None:
        super().__init__(message)
        self._class = CLASSES[error_class]

    def Get_error_class(self) -> int:
        """Return the error class, such as `MPI.ERR_ROOT`."""
        return self._class

    Get_error_code = Get_error_class

    def Get_error_string(self) -> str:
        """Return the message."""
        return str(self)

    error_class = property(Get_error_class)
    error_code = property(Get_error_class)
    error_string = property(Get_error_string)


@contextmanager
def translated() -> Iterator[None]:
    """Raise an MpiError for each error of a worker in a `with` block, with the error as its cause.

    Raises:
        MpiError: a rank is lost, the switch does not answer, sizes differ; see worker_lib.errors.
    """
    try:
        yield
    except SizesDiffer as error:
        raise MpiError("ERR_TRUNCATE", str(error)) from error
    except WorkerError as error:
        raise MpiError("ERR_OTHER", str(error)) from error
