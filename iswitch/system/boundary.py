"""Turns exceptions into a sentence for the user and an exit status, for all commands.

| status | what it means |
|---|---|
| 1 | the work is done, but its output (a capture) is incomplete: the disk is full, say |
| 2 | something from outside: an option, a file, a full disk, a limit of the system |
| 70 | a defect of iswitch: the sentence says where its traceback is |
| 130 | Ctrl-C |
| 141 | nobody reads what is printed any more |

Each command defines its other statuses. ISWITCH_TRACEBACK=1 in the environment shows tracebacks.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from subprocess import SubprocessError

from iswitch.outside import IncompleteError, OutsideError, reason

from . import interrupts

INCOMPLETE = 1
OUTSIDE, DEFECT, UNREAD = 2, 70, 141  # 70: EX_SOFTWARE of sysexits.h
SHOW = "ISWITCH_TRACEBACK"
LONGEST = 1000  # characters of a sentence; a damaged file must not fill the screen
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
DESCRIPTORS = 32  # the demo fails with 16, does with 20
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # a file's bytes must not command the terminal
OURS = ("iswitch", "worker_lib", "topologies", "p4")


def guarded(name: str, run: Callable[[], int]) -> int:
    """Run a command; report an exception in one sentence on stderr.

    Args:
        name: name of the program and the command, with which the sentence begins.
        run: returns its exit status.

    Returns:
        the exit status.
    """
    try:
        try:
            status = run()
        finally:
            _flush()
    except KeyboardInterrupt as stopped:
        return _stopped(name, getattr(stopped, "signum", signal.SIGINT))
    except BrokenPipeError:  # nobody reads our output any more, so end quietly
        _print_no_more()
        return UNREAD
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich ends the process where it writes
            return UNREAD
        raise
    except Exception as error:
        if interrupts.follows_one(error):
            return _stopped(name)
        status, sentence = told(error)
        _complain(f"{name}: {sentence}")
        if os.environ.get(SHOW):
            traceback.print_exc()
    return status


def _stopped(name: str, signum: int = signal.SIGINT) -> int:
    """Say which signal has ended a command; return the exit status."""
    _complain(f"{name}: stopped by {signal.Signals(signum).name}")
    return 128 + signum


def told(error: BaseException) -> tuple[int, str]:
    """Return the exit status for an exception, and the sentence that reports it."""
    found = from_outside(error)
    if found is not None:
        return INCOMPLETE if isinstance(error, IncompleteError) else OUTSIDE, found
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return DEFECT, f"a defect of iswitch: {what}; {_kept(error)}"


def from_outside(error: BaseException) -> str | None:
    """Word an exception whose cause lies outside; None: it is a defect of iswitch."""
    match error:
        case OutsideError():
            return str(error)
        case OSError():
            if lacks_descriptors(error):
                return reason(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
            where = f"{os.fsdecode(error.filename)}: " if _is_path(error.filename) else ""
            if not where and error.errno in FULL:  # all files that are written are named
                where = "cannot write standard output: "
            return where + reason(error)
        case MemoryError():
            return "out of memory; ask for less, free some, or raise ulimit -v"
        case ImportError() if (error.name or "").partition(".")[0] not in OURS:
            missing = isinstance(error, ModuleNotFoundError) and error.name
            mend = f"; pip install {error.name}, or see `iswitch doctor`" if missing else ""
            return f"cannot load {error.name or 'a library'}: {error}{mend}"
        case RuntimeError() if "can't start new thread" in str(error):
            limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
            limits = "ulimit -v or ulimit -u" if limited else "ulimit -u"  # a stack is memory, too
            return f"no more threads can be started: raise {limits}, or end other processes"
        case SubprocessError():  # between fork and exec
            return f"cannot start a process: {error}"
    if isinstance(error.__cause__, OSError | MemoryError):  # what a shortage did to a library
        return from_outside(error.__cause__)
    return None


def lacks_descriptors(error: OSError) -> bool:
    """Tell whether a library found no folder to write to because file descriptors ran out."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return "temporary directory" in str(error) and 0 <= most < DESCRIPTORS


def own_process() -> None:
    """Prepare the process of a command: its user never sees a traceback.

    Standard streams that are closed are opened, so that no file of ours takes their place.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # whatever a terminal cannot show is escaped
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    threading.excepthook = lambda args: _of_a_thread(args.exc_value)
    sys.unraisablehook = lambda args: _lost(args.exc_value)


def _lost(error: BaseException | None) -> None:
    if not interrupts.come_again(error):
        _of_a_thread(error)


def _of_a_thread(error: BaseException | None) -> None:
    if error is None or isinstance(error, KeyboardInterrupt | SystemExit | BrokenPipeError):
        return
    _complain(f"iswitch: {told(error)[1]}")


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _print_no_more()
        raise OutsideError(f"cannot write standard output: {reason(error)}") from error


def _print_no_more() -> None:
    """Discard text that is still to be printed; else Python complains at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(sentence: str) -> None:
    text = CONTROL.sub(lambda found: _escaped(found[0]), " ".join(sentence.splitlines()))
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    text = text.encode(errors="backslashreplace").decode()
    with suppress(OSError, ValueError):  # nobody can be told
        print(text, file=sys.stderr, flush=True)


def _escaped(character: str) -> str:
    return " " if character == "\t" else f"\\x{ord(character):02x}"


def _is_path(name: object) -> bool:
    return isinstance(name, str | bytes | os.PathLike)


def _kept(error: BaseException) -> str:
    """Keep the traceback of a defect, and say where."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="iswitch-", suffix=".txt", delete=False, errors="backslashreplace"
        ) as file:
            file.writelines(traceback.format_exception(error))
    except OSError:
        return f"{SHOW}=1 in the environment shows the traceback"
    return f"please report it with {file.name}"
