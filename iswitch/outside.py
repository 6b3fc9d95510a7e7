"""What comes from outside (files, options, the system's limits) fails as an `OutsideError`.

A reader of files raises it, or a kind of it, and need not know all that its parsers raise: in
`reading` a damaged file is an error that names the file. The command line prints it as one
sentence, with exit status 2 (`iswitch.system.boundary`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LIMITS = {  # what the system has run out of, and the mend
    errno.EMFILE: "raise the limit of this process: ulimit -n 1024",
    errno.ENFILE: "this machine has no more of them; end other processes",
    errno.EAGAIN: "no more processes or threads can be started: raise ulimit -u, or end others",
    errno.ENOMEM: "free some memory, or raise ulimit -v",
    errno.ENOSPC: "make room there, or name another place",
    errno.EDQUOT: "make room there, or name another place",
}


class OutsideError(Exception):
    """What came from outside cannot be used; the message says what, and how to mend it."""


class UsageError(OutsideError):
    """What the user asked for cannot be done; the message says why and how to mend it."""


def reason(error: OSError) -> str:
    """Why the system refused, with the mend where it has run out of something."""
    why = error.strerror or str(error) or type(error).__name__
    mend = LIMITS.get(error.errno or 0)
    return f"{why}; {mend}" if mend else why


class IncompleteError(OutsideError):
    """The work was done, but what was written of it is incomplete; the message says why."""


@contextmanager
def reading(
    name: str, kind: Callable[[str], Exception] = OutsideError, what: str = "read"
) -> Iterator[None]:
    """A context in which whatever a damaged file has its parsers raise becomes one error.

    Parsers (of TOML, JSON, ZIP, NPY, captures) raise a dozen kinds of exceptions at crafted bytes,
    and other ones in their next version: so all are taken here, and the cause is kept.

    Args:
        name: of the file, or of what else is parsed.
        kind: makes the error of its message.
        what: cannot be done, if the system refuses.

    Raises:
        OutsideError: or what `kind` makes; those that are one already pass.
    """
    try:
        yield
    except OutsideError:
        raise
    except OSError as error:
        raise kind(f"cannot {what} {name}: {reason(error)}") from error
    except Exception as error:
        raise kind(f"{name} {damage(error)}") from error


def damage(error: Exception) -> str:
    """What is wrong with a file that a parser gave up on, in words."""
    match error:
        case RecursionError():
            return "is nested too deeply"
        case MemoryError():
            return "announces more than there is memory for"
        case UnicodeDecodeError():
            byte = error.object[error.start]
            return f"is not UTF-8 text: byte 0x{byte:02x} at offset {error.start}"
        case ValueError() if str(error):
            return f"is damaged: {error}"
    return f"is damaged: {type(error).__name__}: {error}" if str(error) else "is damaged"


@contextmanager
def writing(path: str) -> Iterator[None]:
    """A context in which a file that cannot be written is an error that names it.

    Raises:
        OutsideError: the disk is full, say.
    """
    try:
        yield
    except OSError as error:
        raise OutsideError(f"cannot write {path}: {reason(error)}") from error
