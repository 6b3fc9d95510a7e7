"""Finds the sockets of watched switches, and the names in their network.

`iswitch run` makes a folder for each network it starts. It holds a socket for each switch,
NAME.sock, and `network.json`, which says how hosts, ports and ranks are called. Only its owner may
enter it. The process that made it keeps it locked, so that others see whether the network runs,
even if that process is in another PID namespace.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple, Self

from iswitch.outside import OutsideError, reading
from iswitch.system.private import alone_in, folder, is_private

PREFIX = "run-"  # of the names of folders
NETWORK = "network.json"
BEGUN = "begun"  # an empty file, as old as the network
SOCKET = ".sock"
PARTS = b"parts\n"  # sent to a socket by those who want the parts of rounds
LONGEST = 107  # bytes of a UNIX socket's path (unix(7))


class Watch(NamedTuple):
    """Where a launched network shows itself: the folder of its sockets, and what it is called."""

    folder: Path
    title: str


@contextmanager
def made_run(title: str) -> Iterator[Watch | None]:
    """Make a folder for the network of this process, and remove it; None: it cannot be made.

    `title` says which network it is.
    """
    parent = folder()
    try:
        parent.mkdir(mode=0o700, exist_ok=True)
        if not is_private(parent):
            raise PermissionError
        with alone_in(parent):  # a folder that was just made is not locked yet
            for left in parent.glob(f"{PREFIX}*"):
                if not _lives(left):
                    shutil.rmtree(left, ignore_errors=True)
            own = Path(mkdtemp(prefix=PREFIX, dir=parent))
            (own / BEGUN).touch()
            lock = _opened(own)
            fcntl.flock(lock, fcntl.LOCK_EX)  # a reader may have it for a moment
    except OSError:
        yield None
        return
    try:
        yield Watch(own, title)
    finally:
        shutil.rmtree(own, ignore_errors=True)
        os.close(lock)


def runs() -> list[Path]:
    """List the folders of this user's networks that run, the newest first."""
    if not is_private(folder()):  # another user could name commands there (`Network.entry`)
        return []
    begun: list[tuple[float, Path]] = []
    for one in folder().glob(f"{PREFIX}*"):
        if _lives(one):
            with suppress(OSError):  # it has just been removed
                mark = one / BEGUN  # a folder's own time is that of its last change
                begun.append(((mark if mark.exists() else one).stat().st_mtime, one))
    return [one for _, one in sorted(begun, reverse=True)]


def titled(run: Path) -> str:
    """Name a network by its folder, with what it is called."""
    title = ""
    with suppress(OSError, OutsideError):  # it has just ended
        title = Network.read(run).title
    return f"{run}" + f" ({title})" * bool(title)


def _lives(run: Path) -> bool:
    """Return whether the process that made a folder lives, in whatever PID namespace."""
    try:
        fd = _opened(run)
    except OSError:  # it has just been removed
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # others may ask at the same time
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _opened(run: Path) -> int:
    """Open a folder, to lock it; return its descriptor."""
    return os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


@dataclass(frozen=True)
class Network:
    """The names in a launched network; empty for a switch that was started alone.

    Attributes:
        title: the topology and the world.
        hosts: hosts by address; those that share one are left out.
        ranks: the host of each rank.
        switches: by name: HOST:PORT.
        ports: by interface: the node at the other end, and the rate in bit/s, or None.
        parents: by switch: the switch above, or None.
        below: by switch: its hosts.
        control: HOST:PORT of the switch that takes commands.
        entry: the words that run a command where it can be reached.
    """

    title: str = ""
    hosts: dict[str, str] = field(default_factory=dict)
    ranks: list[str] = field(default_factory=list)
    switches: dict[str, str] = field(default_factory=dict)
    ports: dict[str, tuple[str, float | None]] = field(default_factory=dict)
    parents: dict[str, str | None] = field(default_factory=dict)
    below: dict[str, list[str]] = field(default_factory=dict)
    control: str = ""
    entry: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Write the file of a folder, at once for its readers."""
        file = folder / f"{NETWORK}.new"
        file.write_text(json.dumps(asdict(self)))
        file.replace(folder / NETWORK)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file of a folder; without one, nothing has a name.

        Raises:
            OutsideError: the file is damaged.
        """
        try:
            text = (folder / NETWORK).read_text()
        except FileNotFoundError:
            return cls()
        with reading(str(folder / NETWORK), OutsideError):
            fields = json.loads(text)
            ports = {name: (peer, rate) for name, (peer, rate) in fields.pop("ports").items()}
            return cls(**fields, ports=ports)

    def name(self, kind: str, host: str, port: int, rank: int | None) -> str:
        """Name a member: by its host, or as HOST:PORT.

        Args:
            kind: worker, switch or controller.
            host: its address.
            port: its UDP port; of a switch, where it listens.
            rank: its rank; None: it has none.
        """
        at = f"{host}:{port}"
        if kind == "switch":
            return next((name for name, where in self.switches.items() if where == at), at)
        if host in self.hosts:
            return self.hosts[host]
        known = kind == "worker" and rank is not None and rank < len(self.ranks)
        return self.ranks[rank] if known and rank is not None else at


class Names:
    """Reads the names again whenever their file has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = Network()
        self._stamp = 0

    def look(self) -> Network:
        """Return the names as they are now; the former ones if the file cannot be read."""
        with suppress(OSError, OutsideError):
            stamp = (self.folder / NETWORK).stat().st_mtime_ns
            if stamp != self._stamp:
                self.network, self._stamp = Network.read(self.folder), stamp
        return self.network
