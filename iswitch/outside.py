"""Errors whose cause lies outside: files, options, the limits of the system.

The command line prints an `OutsideError` as one sentence, with exit status 2
(`iswitch.system.boundary`). A reader of files need not know all exceptions of its parsers: in a
`reading` block they all become an error that names the file.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LIMITS = {  # why the system refuses, mostly as it has run out of something, and how to mend that
    errno.EMFILE: "raise the limit of this process: ulimit -n 1024",
    errno.ENFILE: "this machine has no more of them; end other processes",
    errno.EAGAIN: "no more processes or threads can be started: raise ulimit -u, or end others",
    errno.ENOMEM: "free some memory, or raise ulimit -v",
    errno.ENOSPC: "make room there, or name another place",
    errno.EDQUOT: "make room there, or name another place",
    errno.EISDIR: "name a file in it",
}


class OutsideError(Exception):
    """Input from outside cannot be used; the message says what is wrong, and how to mend it."""


class UsageError(OutsideError):
    """A request of the user cannot be carried out; the message says why and how to mend it."""


def extra(names: str) -> str:
    """Say how to install what iswitch needs for some things, such as `rl` or `netns,mininet`."""
    return f"pip install -e '.[{names}]' (in a checkout of iswitch)"


def reason(error: OSError) -> str:
    """Say why the system refused, and how to mend that if `LIMITS` knows."""
    why = error.strerror or str(error) or type(error).__name__
    mend = LIMITS.get(error.errno or 0)
    return f"{why}; {mend}" if mend else why


class IncompleteError(OutsideError):
    """The work was done, but its output is incomplete; the message says why."""


@contextmanager
def reading(
    name: str, kind: Callable[[str], Exception] = OutsideError, what: str = "read"
) -> Iterator[None]:
    """Make a context that turns every exception of a file's parsers into one error.

    Parsers (of TOML, JSON, ZIP, NPY, captures) raise a dozen kinds of exceptions at crafted bytes,
    and may raise others in their next version. So all are caught; the error keeps its cause.

    Args:
        name: name of the file, or of other input that is parsed.
        kind: makes an error from a message.
        what: the verb for the message if the system refuses.

    Raises:
        OutsideError: a parser failed; `kind` makes the error. The block's own pass unchanged.
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
    """Say in words what is wrong with a file that a parser gave up on."""
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
    """Make a context in which an OSError becomes an error that names the file being written.

    Raises:
        OutsideError: the file cannot be written, for example because the disk is full.
    """
    try:
        yield
    except OSError as error:
        raise OutsideError(f"cannot write {path}: {reason(error)}") from error
