"""Named network namespaces that belong to a process, and can be removed after it has died.

A claim is a file in /run/iswitch/networks that its owner keeps locked. The kernel drops the lock
when the process ends, in whatever way. So an unlocked claim shows that its namespaces are left
over; a process number could not, since another process may have it by now. The namespaces of claim
X are /run/netns/X-NODE, where `ip netns exec X-NODE` finds them too.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import select
import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Self

CLAIMS = Path("/run/iswitch/networks")
NAMESPACES = Path("/run/netns")  # as iproute2 has it
CLONE_NEWNET = 0x40000000  # linux/sched.h
MNT_DETACH = 2  # linux/fs.h
TERM_GRACE = 1.0  # seconds from SIGTERM to SIGKILL
CLEANING = "being removed\n"  # in the file of a claim that somebody has taken over
CLEANED_IN = 20.0  # seconds for another process to remove what it has taken over
PREFIX = re.compile(r"[a-z]{1,8}")
NAME = re.compile(r"[a-z]{1,8}-\d+-\d+")  # PREFIX-PID-SERIAL: no claim's name and - begin another's

LIBC = ctypes.CDLL(None, use_errno=True)  # loaded here: not between a fork and its exec

Inode = tuple[int, int]  # a device's number, and a number there


class Claim:
    """A name that is this process's own until it is released or the process ends."""

    def __init__(self, name: str, lock: IO[str]) -> None:
        self.name = name
        self._lock = lock

    @classmethod
    def new(cls, prefix: str) -> Self:
        """Claim PREFIX-PID-SERIAL, with the first serial number that is free.

        Raises:
            ValueError: the prefix is not 1 to 8 small letters, so a name could not be taken apart
                again.
        """
        if not PREFIX.fullmatch(prefix):
            raise ValueError(
                f"prefix {prefix!r} is not 1 to 8 small letters; take some such as isw"
            )
        CLAIMS.mkdir(parents=True, exist_ok=True)
        serial = 0
        while (lock := take(CLAIMS / (name := f"{prefix}-{os.getpid()}-{serial}"), "x")) is None:
            serial += 1
        return cls(name, lock)

    @classmethod
    def left_over(cls) -> Iterator[Self]:
        """Take over, one after the other, the claims of processes that have ended.

        If another process is removing the namespaces of such a claim, wait until it is done; if it
        dies meanwhile, take the claim over. So no claim is left over at the end.
        """
        for path in sorted(CLAIMS.glob("*")):
            if not NAME.fullmatch(path.name):
                continue
            limit = time.monotonic() + CLEANED_IN
            while (lock := take(path, "r")) is None and is_cleaned(path):
                if time.monotonic() > limit:
                    break
                time.sleep(0.01)
            if lock is not None:
                path.write_text(CLEANING)
                yield cls(path.name, lock)

    def create(self, node: str) -> int:
        """Make the namespace NAME-NODE; return an open descriptor of it."""
        from pyroute2 import netns

        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            call(LIBC.unshare, CLONE_NEWNET)
            try:
                netns.attach(f"{self.name}-{node}", threading.get_native_id())
            finally:
                call(LIBC.setns, home, CLONE_NEWNET)
        finally:
            os.close(home)
        return os.open(NAMESPACES / f"{self.name}-{node}", os.O_RDONLY)

    def adopt(self, node: str, pid: int) -> int:
        """Give a process's namespace the name NAME-NODE; return an open descriptor of it."""
        from pyroute2 import netns

        netns.attach(f"{self.name}-{node}", pid)
        return os.open(NAMESPACES / f"{self.name}-{node}", os.O_RDONLY)

    def release(self) -> list[str]:
        """End all processes in the namespaces, remove the namespaces, and release the name.

        These include processes that children have started in their own groups and sessions.

        Returns:
            names of the removed namespaces.
        """
        found = sorted(NAMESPACES.glob(f"{self.name}-*"))
        evict(found)
        for path in found:
            LIBC.umount2(os.fsencode(path), MNT_DETACH)  # fails if its maker died before mounting
            path.unlink()
        (CLAIMS / self.name).unlink()
        self._lock.close()
        return [path.name for path in found]


def take(path: Path, mode: str) -> IO[str] | None:
    """Open and lock a claim's file; None: it exists (mode x), is locked, or is gone."""
    try:
        file = path.open(mode)
    except (FileExistsError, FileNotFoundError):
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    if os.fstat(file.fileno()).st_nlink == 0:  # cleaned away between opening and locking
        file.close()
        return None
    return file


def is_cleaned(path: Path) -> bool:
    """Tell whether a process is removing the namespaces of a claim."""
    with suppress(FileNotFoundError):
        return path.read_text() == CLEANING
    return False


@contextmanager
def inside(namespace: int) -> Iterator[None]:
    """Move the calling thread into a namespace for a `with` block.

    Processes that it starts and sockets that it opens there stay in the namespace.
    """
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        call(LIBC.setns, namespace, CLONE_NEWNET)
        try:
            yield
        finally:
            call(LIBC.setns, home, CLONE_NEWNET)
    finally:
        os.close(home)


def evict(namespaces: Collection[Path]) -> None:
    """End the processes in these namespaces: by SIGTERM, then by SIGKILL.

    Spare the namespace of this process, where its caller may run.
    """
    inodes = {inode(path) for path in namespaces} - {inode(Path("/proc/self/ns/net")), None}
    for signum in (signal.SIGTERM, signal.SIGKILL):
        pidfds = inhabitants(inodes)
        for pidfd in pidfds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signum)
        limit = time.monotonic() + TERM_GRACE
        for pidfd in pidfds:
            ended = select.poll()
            ended.register(pidfd, select.POLLIN)
            ended.poll(max(0.0, limit - time.monotonic()) * 1000)
            os.close(pidfd)
        if not pidfds:
            return


def inhabitants(inodes: Collection[Inode | None]) -> list[int]:
    """Return pidfds of the processes in these namespaces (pidfd_open(2)); callers close them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if inode(process / "ns/net") not in inodes:
            continue
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(int(process.name))
            if inode(process / "ns/net") in inodes:  # still: the number is not another's by now
                found.append(pidfd)
            else:
                os.close(pidfd)
    return found


def inode(namespace: Path) -> Inode | None:
    """Identify a namespace; None: it no longer exists."""
    try:
        found = namespace.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def call(function: ctypes._NamedFuncPointer, *arguments: int) -> None:
    """Make a system call.

    Raises:
        OSError: the call failed; a subclass such as PermissionError, by its errno.
    """
    if function(*arguments) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{function.__name__}: {os.strerror(error)}")
