"""Handles Ctrl-C and other signals in the process of a command, from its first line to its last.

While modules load, a KeyboardInterrupt could be lost: an extension may turn it into another
exception, and a destructor drops it. So SIGINT ends the process with a sentence, and raises
nothing, until the command begins, and again when it is done: there is nothing to undo.

SIGUSR1 asks a switch for its counters. It is ignored until the switch serves. A thread writes the
answers, since the program that reads them may have stopped.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from types import FrameType

STATUS = 130  # as a shell has it of a process that SIGINT has ended
AGAIN = 0.02  # seconds
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def end_at_once() -> None:
    """Have Ctrl-C end this process at once, with a sentence, unless the shell ignores it."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, interrupt):
        signal.signal(signal.SIGINT, _end)


def _end(*_: object) -> None:
    command = " ".join(["iswitch", *filter(str.isalpha, sys.argv[1:2])])
    with suppress(OSError):  # nobody can be told
        os.write(2, f"{command}: stopped by SIGINT\n".encode())
    os._exit(STATUS)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C from now on, when the work is done and only Python's shutdown is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def ignore_requests() -> None:
    """Ignore SIGUSR1, until `answered` or for good."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


@contextmanager
def answered(text: Callable[[], str]) -> Iterator[None]:
    """Answer SIGUSR1 in the `with` block by a text on stderr, without waiting for its reader.

    Several signals that arrive while a text is being written are answered by one more text.
    """
    asked: SimpleQueue[bool] = SimpleQueue()  # whose put, unlike an Event's set, is reentrant

    def ask(*_: object) -> None:
        if asked.empty():
            asked.put(True)

    def write() -> None:
        while asked.get():
            rest = text().encode(errors="backslashreplace")
            with suppress(OSError):  # nobody reads
                while rest:
                    rest = rest[os.write(2, rest) :]  # sys.stderr has a lock, which others need

    if sys.stderr is None:  # closed: another file has its descriptor now
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        yield
        return
    threading.Thread(target=write, name="answers", daemon=True).start()
    before = signal.signal(signal.SIGUSR1, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)
        asked.put(False)


_came: list[int] = []  # SIGINT, as often as it was heeded


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt and record it, since a library that is loading may swallow it."""
    _came.append(number)
    signal.default_int_handler(number, frame)


def heed() -> None:
    """Make Ctrl-C raise KeyboardInterrupt if it would end this process at once."""
    if signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, _end):
        _came.clear()
        signal.signal(signal.SIGINT, interrupt)


class Stopped(KeyboardInterrupt):
    """A signal asked this process to end.

    It is a KeyboardInterrupt because libraries do not catch those. Mininet, for example, catches
    every Exception that is raised while it sets limits or writes its log.

    Args:
        signum: number of the signal.
        signals: the `Signals` that caught it; None: no signal was caught.
    """

    def __init__(self, signum: int, signals: Signals | None = None) -> None:
        super().__init__(signum)
        self.signum = signum
        self.signals = signals
        self.name = signal.Signals(signum).name


class Signals:
    """Makes the first signal in a `with` block raise `Stopped`; later ones do nothing."""

    def __enter__(self) -> Signals:
        self._before = {signum: signal.getsignal(signum) for signum in STOPPING}
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def listen(self) -> None:
        """Make the next signal raise `Stopped`."""
        for signum, handler in self._before.items():
            if handler is not signal.SIG_IGN:  # as under nohup
                signal.signal(signum, self._stop)

    def hold(self) -> None:
        """Ignore signals from now on, so that none disturbs the end of the process."""
        for signum in STOPPING:
            signal.signal(signum, signal.SIG_IGN)

    def _stop(self, signum: int, _: object) -> None:
        self.hold()
        raise Stopped(signum, self)


def come_again(lost: BaseException | None) -> bool:
    """Send this process a signal again if its exception was lost, for example in a destructor.

    Returns: whether the exception was a signal's.
    """
    if isinstance(lost, Stopped) and lost.signals:
        lost.signals.listen()
        number = lost.signum
    elif isinstance(lost, KeyboardInterrupt):
        number = signal.SIGINT
    else:
        return False
    again = threading.Timer(AGAIN, os.kill, (os.getpid(), number))
    again.daemon = True
    with suppress(RuntimeError):  # at the very end no thread can be started, nor is one needed
        again.start()
    return True


def follows_one(error: BaseException) -> bool:
    """Tell whether an import failed because a KeyboardInterrupt came in the middle of it."""
    return bool(_came) and isinstance(error, ImportError | SystemError)


@contextmanager
def restored() -> Iterator[None]:
    """Leave the signal handlers and the environment of this process as they were."""
    environment = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    try:
        yield
    finally:
        if os.environ != environment:
            os.environ.clear()
            os.environ.update(environment)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                if handler is not None:  # not one of Python's
                    signal.signal(number, handler)
