"""A parameter server for federated rounds, to compare with: it adds what devices send over TCP.

It gives a round's model to the devices that are picked, and to nobody else. Its sums are those of
`worker_lib.federated.numbers.weighted_mean`, so it gives the same bits as a switch.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from worker_lib.closing import Closing
from worker_lib.errors import TooFewWorkers, WorkerError
from worker_lib.federated.numbers import weighted_mean
from worker_lib.strategies.messages import expected
from worker_lib.strategies.tcp import Connection, connect, wait

from .data import Floats

HEAD = struct.Struct("<i")  # the round's number
END = -1  # in its place
PURPOSE = 0  # of the connections
TIMEOUT = 600.0  # seconds for all devices to connect
SILENCE = 1e6  # seconds: a device that nobody picks hears nothing until the end


class Result(NamedTuple):
    """What a round gave: the new global model, and who is in the sum."""

    model: Floats
    ranks: Sequence[int]


class Server(Closing):
    """The server, and coordinator of the rounds.

    Args:
        port: TCP port at which devices connect.
        numel: elements of the model.
        devices: the number of devices; the constructor waits for all of them.
        timeout: seconds to wait for devices.

    Raises:
        TooFewWorkers: not all devices came in time.
    """

    def __init__(self, port: int, numel: int, devices: int, timeout: float = TIMEOUT) -> None:
        self._numel = numel
        wanted = {(rank, PURPOSE) for rank in range(devices)}
        with socket.create_server(("", port), backlog=devices) as door:
            found, missing = expected(door, wanted, timeout)
        self._devices = {
            rank: Connection(sock, f"device {rank}", SILENCE) for (rank, _), sock in found.items()
        }
        if missing:
            self.close()
            raise TooFewWorkers(f"device {min(missing)} did not connect within {timeout:g} s")

    def round(self, number: int, model: Floats, *, picked: Sequence[int], needed: int) -> Result:
        """Give the model to the devices that are picked; add what `needed` of them reply.

        The others must not reply at all: a reply has no number, and would count for the next round.

        Raises:
            PeerLost: a connection broke.
            PeerSilent: all were silent for too long.
        """
        chosen = {rank: self._devices[rank] for rank in picked}
        for connection in chosen.values():
            connection.queue_bytes(HEAD.pack(number))
            connection.send(model)
        replies = {rank: np.empty(1 + self._numel, np.float32) for rank in picked}
        views = {rank: reply.data.cast("B") for rank, reply in replies.items()}
        done: list[int] = []
        while len(done) < needed:
            moved = False
            for rank in list(views):
                got = chosen[rank].take(views[rank])
                moved |= got > 0
                views[rank] = views[rank][got:]
                if not views[rank]:
                    del views[rank]
                    done.append(rank)
            unsent = [connection for connection in chosen.values() if not connection.flush()]
            if not moved and len(done) < needed:
                wait([chosen[rank] for rank in views], unsent, SILENCE)
        for connection in chosen.values():
            connection.drain()
        ranks = tuple(sorted(done))
        mean, _ = weighted_mean({k: (replies[k][1:], float(replies[k][0])) for k in ranks})
        return Result(mean, ranks)

    def close(self) -> None:
        """End the rounds of all devices; one whose connection is broken is not told."""
        for connection in self._devices.values():
            connection.queue_bytes(HEAD.pack(END))
            with suppress(WorkerError):  # the others must hear it
                connection.drain()
            connection.close()


class Given(NamedTuple):
    """A round for which a device was picked; see `members.Task`."""

    connection: Connection
    round: int
    model: Floats

    def contribute(self, weights: Floats, n: float) -> None:
        """Send n and the weights."""
        self.connection.send(np.concatenate([np.array([n], np.float32), weights]))
        self.connection.drain()


class Client:
    """A device's connection to the server.

    Args:
        server: (host, port).
        numel: elements of the model.
        rank: number of the device.

    Raises:
        PeerLost: the server does not accept connections.
    """

    def __init__(self, server: tuple[str, int], numel: int, rank: int) -> None:
        self._numel = numel
        self._connection = connect(server, rank, PURPOSE, "the server", TIMEOUT)
        self._connection.endure(SILENCE)

    def rounds(self) -> Iterator[Given]:
        """Yield the rounds for which the device is picked.

        Raises:
            PeerLost, PeerSilent: the connection broke, or was silent for too long.
        """
        head, connection = np.empty(1, np.int32), self._connection
        while True:
            connection.receive(head, connection)
            if head[0] == END:
                connection.close()
                return
            model = np.empty(self._numel, np.float32)
            connection.receive(model, connection)
            yield Given(connection, int(head[0]), model)
