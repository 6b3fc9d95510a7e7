"""Processes that print lines, started, listened to and ended together."""

from __future__ import annotations

import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import IO, NamedTuple, Self

from iswitch.ports.orphans import DiesWithParent
from iswitch.system import interrupts

TERM_GRACE = 3.0  # seconds from SIGTERM to SIGKILL
PAUSE = 0.01  # seconds between two looks at processes that are to end
LONGEST_LINE = 1 << 16  # bytes of a line of a log, with its end; longer ones are cut


class Child:
    """A started process that leads a session and process group of its own.

    So Ctrl-C in the terminal reaches the parent alone. The child's stderr is read line by line,
    like its stdout, or kept in case it fails.

    Args:
        name: name in messages about its failure.
        command: the program and its arguments.
        env: added to this process's environment.
        heard: whether to read its stderr line by line.
    """

    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None, heard: bool
    ) -> None:
        self.name = name
        # In memory: a full disk must not hide why it failed.
        kept = None if heard else open(os.memfd_create(name), "w+b")  # noqa: SIM115  (by Fleet.stop)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=kept or subprocess.PIPE,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            preexec_fn=DiesWithParent(),
        )
        errors = kept or self.process.stderr
        assert self.process.stdout is not None
        assert errors is not None
        self.errors: IO[bytes] = errors
        self.output = self.process.stdout
        self.streams = [self.output, self.errors] if heard else [self.output]
        self._partial = dict.fromkeys(self.streams, b"")
        self._read = 0  # bytes of the stderr that is kept which `news` has returned
        self._is_cut = False  # whether these end in the middle of a line that is too long

    def lines(self, stream: IO[bytes]) -> list[str] | None:
        """Read the whole lines that have come; None at the end of the stream."""
        data = os.read(stream.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self._partial[stream] = (self._partial[stream] + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def rest(self, stream: IO[bytes]) -> str:
        """Return the text after the last whole line."""
        text, self._partial[stream] = self._partial[stream], b""
        return text.decode(errors="replace")

    def status(self) -> int | None:
        """Look up its exit status, negative for a signal's number; None while it runs.

        The child is not reaped before `Fleet.end`: so no other process gets its number, which is
        also its group's.
        """
        if self.process.returncode is not None:
            return self.process.returncode
        pid = self.process.pid
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def ending(self) -> str:
        """Say how it ended, with the last line of its stderr."""
        try:
            how = ended(self.process.wait(TERM_GRACE))
        except subprocess.TimeoutExpired:
            return "closed its output"
        complaint = self.complaint()
        return how + (f": {complaint}" if complaint else "")

    def complaint(self) -> str:
        """Return the last line of the stderr that is kept, once the child has ended; "": none."""
        if self.errors in self.streams:
            return ""
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def news(self) -> list[str]:
        """Return the whole lines that came since the last call on the stderr that is kept."""
        data = os.pread(self.errors.fileno(), LONGEST_LINE, self._read)  # the child's place stays
        whole = data[: data.rfind(b"\n") + 1] or data[: len(data) // LONGEST_LINE * LONGEST_LINE]
        lines = whole.decode(errors="replace").splitlines()
        if whole:
            self._read += len(whole)
            lines, self._is_cut = lines[self._is_cut :], not whole.endswith(b"\n")
        return lines

    def close(self) -> None:
        """Close its streams."""
        self.output.close()
        self.errors.close()

    def signal(self, signum: int) -> None:
        """Send a signal to its process group."""
        if self.process.returncode is None:  # else the number may be another's by now
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signum)


class Heard(NamedTuple):
    """A line that a child printed; None: that stream of the child has ended."""

    child: Child
    line: str | None
    is_error: bool  # from stderr


class Fleet:
    """Children that live and die together; a context that ends all of them.

    Ctrl-C makes the next `listen` raise KeyboardInterrupt. If it were raised at once, in whatever
    code runs, it could be lost: in a destructor it would only be printed.
    """

    def __init__(self) -> None:
        self.children: list[Child] = []
        self._interrupted = False
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        self._former = signal.getsignal(signal.SIGINT)
        if self._former in (signal.default_int_handler, interrupts.interrupt):
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        signal.signal(signal.SIGINT, self._former)

    def _interrupt(self, *_: object) -> None:
        self._interrupted = True

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        env: Mapping[str, str] | None = None,
        place: AbstractContextManager[object] | None = None,
    ) -> Child:
        """Start `python ARGUMENTS`, which imports nothing from the current folder."""
        return self.launch(name, [sys.executable, "-P", *arguments], env, place)

    def launch(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        place: AbstractContextManager[object] | None = None,
        heard: bool = False,
    ) -> Child:
        """Start a command.

        Args:
            name: name in messages about its failure.
            command: the program and its arguments.
            env: added to this process's environment.
            place: entered for the start, such as the namespace of a network's node.
            heard: whether to read its stderr line by line, rather than keep it.
        """
        with place or nullcontext():
            child = Child(name, command, env, heard)
        self.children.append(child)
        for stream in child.streams:
            self._selector.register(stream, selectors.EVENT_READ, child)
        return child

    def hear(self, seconds: float) -> Iterator[Heard]:
        """Wait at most `seconds` for lines that children print.

        Raises:
            KeyboardInterrupt: SIGINT came since the last call.
        """
        ready = self._selector.select(seconds)
        if self._interrupted:
            raise KeyboardInterrupt
        for key, _ in ready:
            yield from self._heard(key.data, key.fileobj)  # type: ignore[arg-type]

    def _heard(self, child: Child, stream: IO[bytes]) -> Iterator[Heard]:
        """Read a stream of a child once; yield its lines."""
        is_error = stream is child.errors
        lines = child.lines(stream)
        if lines is None:
            self._selector.unregister(stream)
            if rest := child.rest(stream):
                yield Heard(child, rest, is_error)
            yield Heard(child, None, is_error)
        for line in lines or ():
            yield Heard(child, line, is_error)

    def drain(self, child: Child) -> Iterator[Heard]:
        """Yield the lines of a child that can be read at once, those of its stdout first."""
        for stream in child.streams:
            ready = select.poll()
            ready.register(stream, select.POLLIN)
            while stream in self._selector.get_map() and ready.poll(0):
                yield from self._heard(child, stream)

    def listen(self, seconds: float) -> Iterator[tuple[Child, str | None]]:
        """Wait at most `seconds` for lines on stdout; None: this child prints no more."""
        for child, line, is_error in self.hear(seconds):
            if not is_error:
                yield child, line

    def pending(self) -> bool:
        """Tell whether a line can be read at once."""
        return bool(self._selector.select(0))

    def end(self, children: Collection[Child], patience: float = TERM_GRACE) -> None:
        """End children and what they have started: by SIGTERM, then by SIGKILL."""
        for child in children:
            child.signal(signal.SIGTERM)
        limit = time.monotonic() + patience
        while any(child.status() is None for child in children) and time.monotonic() < limit:
            time.sleep(PAUSE)
        for child in children:
            child.signal(signal.SIGKILL)
            child.process.wait()

    def dismiss(self, child: Child) -> None:
        """End a child, and forget it: its end is no failure of the others."""
        self.end([child])
        self.children.remove(child)
        for stream in child.streams:
            if stream in self._selector.get_map():
                self._selector.unregister(stream)
        child.close()

    def stop(self) -> None:
        """End all children that run, and close their streams."""
        self.end(self.children)
        for child in self.children:
            child.close()
        self._selector.close()


def ended(status: int) -> str:
    """Say how a process with this exit status ended."""
    if status < 0:
        known = -status in set(signal.Signals)  # real-time signals are not, but for two
        return f"was killed by {signal.Signals(-status).name if known else f'signal {-status}'}"
    return f"ended with status {status}"
