"""Reads snapshots: of a switch at its socket, or of all switches of a launched network."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from iswitch.outside import OutsideError, UsageError, reading

from .places import PARTS, SOCKET, Network, runs
from .snapshot import VERSION

Snapshot = dict[str, Any]
MOST = 256 << 20  # bytes of a snapshot
PATIENCE = 6.0  # seconds
CAPTURES = (".pcap", ".pcapng")


class Reader:
    """Reads the snapshots of one switch, over one connection as long as it lasts.

    Args:
        path: path of its socket.
        patience: seconds in which it must answer.
        parts: whether to ask for the parts of rounds.
    """

    def __init__(self, path: Path, patience: float = PATIENCE, parts: bool = False) -> None:
        self.path = path
        self.patience = patience
        self.parts = parts
        self._socket: socket.socket | None = None

    def read(self) -> Snapshot | None:
        """Return a snapshot; None: the switch does not answer.

        Raises:
            OutsideError: what answers is no switch of this version.
        """
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._socket.settimeout(self.patience)
                self._socket.connect(str(self.path))
                line = self._line(self._socket)
                if not self.parts:
                    return self._parsed(line)
            self._socket.sendall(PARTS if self.parts else b"\n")
            line = self._line(self._socket)
        except OSError:
            line = b""
        return self._parsed(line)

    def order(self, order: Mapping[str, Any]) -> Snapshot | None:
        """Give an operator's order; return the answer. None: the switch does not answer.

        Raises:
            OutsideError: what answers takes no such orders.
        """
        if self._socket is None and self.read() is None:
            return None
        assert self._socket is not None
        try:
            self._socket.sendall(json.dumps(order).encode() + b"\n")
            line = self._line(self._socket)
        except OSError:
            return None
        with reading(str(self.path), OutsideError):
            told: Snapshot = json.loads(line or b"null")
        if told is not None and not {"ending", "error"} & told.keys():
            told = {"error": "it takes no orders; use the iswitch that runs the switch"}
        return told

    def _parsed(self, line: bytes) -> Snapshot | None:
        if not line:
            self.close()
            return None
        return parsed(line, str(self.path))

    @staticmethod
    def _line(sock: socket.socket) -> bytes:
        parts: list[bytes] = []
        size = 0
        while part := sock.recv(1 << 18):
            parts.append(part)
            size += len(part)
            if part.endswith(b"\n"):
                return b"".join(parts)
            if size > MOST:
                break
        return b""

    def close(self) -> None:
        """End the connection; the next `read` begins a new one."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
            self._socket = None


def parsed(line: bytes, path: str) -> Snapshot:
    """Parse a snapshot.

    Raises:
        OutsideError: it is damaged, or of another version.
    """
    with reading(path, OutsideError):
        snapshot: Snapshot = json.loads(line)
        version = snapshot["version"]
    if version != VERSION:
        raise OutsideError(
            f"{path} has snapshots of version {version}, and this iswitch reads version {VERSION}; "
            "use the iswitch that runs the switch"
        )
    return snapshot


class Observer:
    """Reads the snapshots of a network, or of a switch alone.

    Args:
        place: the folder of a launched network, or a switch's socket; None: the newest network.
        patience: seconds in which a switch must answer.
        parts: whether to ask for the parts of rounds.

    Raises:
        UsageError: there is no such place, or no network runs.
    """

    def __init__(self, place: str | None, patience: float = PATIENCE, parts: bool = False) -> None:
        self.patience = patience
        self.parts = parts
        self.place = found(place)
        self._is_named = place is not None
        self._readers: dict[str, Reader] = {}
        if not self.place.is_dir():
            self._readers[self.place.stem] = Reader(self.place, patience, parts)

    def others(self) -> list[Path]:
        """List the networks that run, too, if nobody has named this one."""
        return [] if self._is_named else [run for run in runs() if run != self.place]

    def network(self) -> Network:
        """Return the names in the network; none for a switch alone."""
        return Network.read(self.place if self.place.is_dir() else self.place.parent)

    def order(self, order: Mapping[str, Any], name: str | None) -> dict[str, Snapshot | None]:
        """Give an order to the switches, or to one; return the answers by switch.

        Raises:
            UsageError: no switch has that name.
            OutsideError: what answers is no switch of this version.
        """
        self.read()
        if name is not None and name not in self._readers:
            known = ", ".join(sorted(self._readers))
            raise UsageError(f"there is no switch {name!r}; there are {known}")
        chosen = self._readers if name is None else {name: self._readers[name]}
        return {name: reader.order(order) for name, reader in chosen.items()}

    def read(self) -> dict[str, Snapshot | None]:
        """Return the snapshots by switch; None: the switch does not answer.

        Raises:
            OutsideError: what answers is no switch of this version.
        """
        if self.place.is_dir():
            known = {path.stem for path in self.place.glob(f"*{SOCKET}")}
            for name in sorted({*known, *self.network().switches} - self._readers.keys()):
                self._readers[name] = Reader(
                    self.place / f"{name}{SOCKET}", self.patience, self.parts
                )
        return {name: reader.read() for name, reader in self._readers.items()}

    def close(self) -> None:
        """End all connections."""
        for reader in self._readers.values():
            reader.close()


def found(place: str | None) -> Path:
    """Find the folder or the socket that is meant.

    Raises:
        UsageError: there is none.
    """
    if place is None:
        newest = next(iter(runs()), None)
        if newest is None:
            raise UsageError(
                "no network runs here; start one with `iswitch run`, or name the socket of a "
                "switch that was started with --watch PATH.sock"
            )
        return newest
    path = Path(place)
    mend = "name the socket of a switch with --watch"
    if path.is_file() or path.suffix in CAPTURES:
        mend += ", or play a capture with `iswitch web --trace FILE`"
    if not path.exists():
        raise UsageError(f"{place} does not exist; {mend}")
    if not (path.is_socket() or path.is_dir()):
        raise UsageError(f"{place} is not a socket; {mend}")
    return path
