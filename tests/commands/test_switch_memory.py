"""Memory of a switch, what members reserve of it, and garbage."""

from __future__ import annotations

import json
import socket

import numpy as np
import pytest

from iswitch.core.format.wire import Shape, Status
from tests.commands.test_switch_command import PATIENCE, end, resident, rounds, switch
from tests.conftest import pending
from worker_lib import Refused, Worker

pytestmark = pytest.mark.serial


def test_memory_is_what_members_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sets of 1 MB, receive slots that are written to once, and nothing per round."""
    monkeypatch.setenv("ISWITCH_FAST", "0")  # the most was while Numba was loaded
    numel = 250_000
    shape = Shape.of(numel)
    reserved = 2 * shape.segments * (shape.packet_size + 16)
    slots = 128 * 65536
    with switch() as (process, where):
        assert rounds(where, 2, 1000, 5) == [2.0, 2.0]
        before = resident(process)
        assert rounds(where, 2, numel, 20) == [2.0, 2.0]
        assert resident(process, "VmHWM") - before < reserved + slots + (8 << 20)
        before = resident(process)
        assert rounds(where, 2, numel, 200) == [2.0, 2.0]
        assert resident(process) - before < slots + (2 << 20)  # of slots not written to before
        end(process)


def test_members_that_left_cost_nothing() -> None:
    with switch("--memory", "4") as (process, where):
        for job in range(1, 30):  # 2.9 MB each: two would not fit
            with Worker(where, job, 350_000, timeout=PATIENCE) as worker:
                worker.allreduce(np.zeros(350_000, np.float32))
        end(process)


def test_memory_limit() -> None:
    with switch("--memory", "2") as (process, where):
        with pytest.raises(Refused, match=r"of its --memory are free") as raised:
            Worker(where, 7, 1 << 20, timeout=PATIENCE)
        assert raised.value.status is Status.FULL
        assert rounds(where, 2, 100_000, 2) == [2.0, 2.0]
        end(process)


def test_garbage_does_not_stop_it() -> None:
    """Whatever comes is counted; the switch goes on."""
    random = np.random.default_rng(5)
    with switch("--json", "--log-level", "error") as (process, where):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for i in range(2000):
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, (0x0C, 0x1C, 0x00)[i % 3])
                sock.sendto(random.bytes(int(random.integers(0, 64))), where)
                if i % 50 == 0:
                    while pending(where[1]):
                        pass
        assert rounds(where, 2, 1000, 3) == [2.0, 2.0]
        counters = json.loads(end(process))
    assert counters["rx_packets"] + counters["rx_overflow"] >= 2000 + 2 * (1 + 3 * 3 + 1)
    doors = counters["ordinary"] + counters["short"]
    assert counters["rx_packets"] == counters["control"] + counters["data"] + doors
    assert counters["ordinary"] == 2000 // 3
    assert counters["accumulated"] == 2 * 3 * 3
