"""The rings of a switch beside its other port: what finds no room, and groups that end."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import TOS_DATA
from iswitch.ethernet.frame import Transmission
from iswitch.ethernet.issuing import Jack
from iswitch.ports.rings import meeting
from iswitch.ports.rings.members import Group
from iswitch.ports.rings.serving import RingIssuer, RingPort, RingPorts

from .bench import bench


def test_a_full_ring_of_a_host_is_no_error() -> None:
    class Full:
        def send(self, out: Outgoing) -> list[Outgoing]:
            return [out._replace(rows=out.rows[:])]

        def clock(self) -> float:
            return 0.0

    class Cable:
        frames = 0

        def push(self, steps: Iterable[Sequence[Transmission]]) -> None:
            self.frames += sum(len(one.lengths) for step in steps for one in step)

    rings: Any = Full()
    cable: Any = Cable()
    issuer = RingIssuer([Jack()], bytes(4), bytes(6), 5, Counters())
    issuer.learn("10.0.0.1", 0, bytes(6))
    out = Outgoing((Address("10.0.0.1", 5),), TOS_DATA, np.zeros((2, 16), np.uint8), 16)
    RingPorts(cable, rings, issuer).push([[out]])
    assert cable.frames == 1  # a super-frame


def test_a_group_that_cannot_be_made_ends_those_before_for_kernels_too(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say = meeting.say

    def fails(connection: socket.socket, text: bytes, fds: list[int]) -> None:
        if text == b"1":  # the first invitation of the third worker
            raise BlockingIOError
        say(connection, text, fds)

    with bench(path) as made:
        made.plug(3)
        assert isinstance(made.port, RingPort)
        rings, peers = made.port.rings, tuple(worker.address for worker in made.workers)
        former, changes = rings.holder_of(peers[:2]), rings.changes
        assert isinstance(former, Group)
        monkeypatch.setattr(meeting, "say", fails)
        assert rings.holder_of(peers) is None
        assert former.is_left
        assert rings.changes > changes  # else a kernel writes on for the former group
