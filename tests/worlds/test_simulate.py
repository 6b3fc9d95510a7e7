"""`topologies.simulate`: functions as the workers of a network, in one call."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.wire import Shape
from iswitch.ethernet.frame import HEADERS
from iswitch.sim.grain import AUTO, SINGLE, Grain
from iswitch.sim.published import host_handling, switch_handling
from topologies import simulate
from topologies.virtual.hub import Stuck
from topologies.virtual.notebook import Seat
from worker_lib import AllreduceTimeout, Worker

NUMEL = 200_000


def summed(seat: Seat) -> tuple[np.ndarray, float]:
    """Sum a vector; return the sum, and the seconds of the second round."""
    own = np.random.default_rng(seat.rank).standard_normal(NUMEL, np.float32)
    with Worker(numel=NUMEL, reproducible=True, **seat.arguments) as worker:
        worker.allreduce(own)
        return worker.allreduce(own), worker.allreduce_seconds[-1]


@pytest.mark.parametrize(
    "form",
    ["star:4,rate=100Gbit,delay=10us", "star:2,rate=1Gbit,delay=2ms", "rack:2x2,rate=10Gbit"],
)
def test_runs_change_no_round_by_half_a_percent(form: str) -> None:
    """Also where workers have to wait for room in their windows while their lines are idle."""

    def work(seat: Seat) -> list[float]:
        with Worker(numel=NUMEL, **seat.arguments) as worker:
            for _ in range(3):
                worker.allreduce(np.ones(NUMEL, np.float32))
            return list(worker.allreduce_seconds)

    exact, found = (np.array(simulate(form, work, grain=grain)) for grain in (SINGLE, AUTO))
    assert (np.abs(found - exact) <= 0.005 * exact).all()


@pytest.mark.parametrize("grain", [SINGLE, AUTO])
def test_a_round_takes_what_the_wire_takes(grain: Grain) -> None:
    """Sums are those of NumPy in rank order; the time is that of the bytes, and repeats."""
    found = simulate("star:4,rate=10Gbit,delay=1us", summed, grain=grain)
    draws = [np.random.default_rng(rank).standard_normal(NUMEL, np.float32) for rank in range(4)]
    expected = draws[0] + draws[1] + draws[2] + draws[3]
    assert all((total == expected).all() for total, _ in found)
    shape = Shape.of(NUMEL)
    size = shape.segments * HEADERS + NUMEL * 4 + shape.segments * 8
    bound = size * 8 / 10e9 + 2e-6
    for _, seconds in found:
        assert bound <= seconds <= bound * (1.03 if grain is SINGLE else 1.05)
    again = simulate("star:4,rate=10Gbit,delay=1us", summed, grain=grain)
    assert [seconds for _, seconds in again] == [seconds for _, seconds in found]
    assert again.counters == found.counters
    assert found.counters["s1"]["accumulated"] == 2 * 4 * shape.segments


def test_64_workers_in_racks_start_in_no_time() -> None:
    def one(seat: Seat) -> float:
        with Worker(numel=100, **seat.arguments) as worker:
            return float(worker.allreduce(np.full(100, seat.rank, np.float32))[0])

    began = time.process_time()
    assert simulate("rack:8x8,rate=100Gbit,delay=1us", one) == [sum(range(64))] * 64
    assert time.process_time() - began < 5.0


def test_hosts_and_switches_take_their_times() -> None:
    """Two packets on the way, up and down: each host 10 us, the switch 100 us."""

    def one(seat: Seat) -> float:
        with Worker(numel=10, **seat.arguments) as worker:
            worker.allreduce(np.ones(10, np.float32))
            worker.allreduce(np.ones(10, np.float32))
            return worker.allreduce_seconds[-1]

    (seconds,) = simulate(
        "star:1", one, hosts=host_handling("10us"), switches=switch_handling("100us")
    )
    assert seconds == pytest.approx(120e-6, rel=1e-3)
    assert simulate("star:1", one, grain=1, hosts="10us", switches="100us") == [seconds]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"grain": 0}, "grain '0' is neither auto nor a number"),
        ({"hosts": "dpkd"}, "'dpkd' is none of kernel-udp, dpdk, rdma"),
        ({"switches": "fgpa"}, "'fgpa' is none of fpga, tofino"),
        ({"slow": {2: 2.0}}, r"with a RANK of 0\.\.1 and a FACTOR above 0"),
        ({"slow": {1: 0.0}}, "FACTOR above 0"),
        ({"compute": "fixd:3ms"}, "write measured, zero, fixed:3ms"),
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        simulate("star:2", lambda seat: seat.rank, **wrong)


def test_stragglers_are_waited_for_in_virtual_time() -> None:
    def steps(seat: Seat) -> float:
        with Worker(numel=10, **seat.arguments) as worker:
            began = time.monotonic()
            for _ in range(3):
                worker.allreduce(np.ones(10, np.float32))
            return time.monotonic() - began

    plain = simulate("star:2", steps, compute="fixed:1s")
    slow = simulate("star:2", steps, compute="fixed:1s", slow={1: 5.0})
    assert min(plain) == pytest.approx(3.0, abs=0.03)
    assert min(slow) == pytest.approx(15.0, abs=0.03)


def test_failures_name_rank_and_virtual_time() -> None:
    def fails(seat: Seat) -> None:
        with Worker(numel=10, **seat.arguments) as worker:
            if seat.rank == 1:
                raise KeyError("mine")
            worker.allreduce(np.ones(10, np.float32))

    with pytest.raises(KeyError, match="mine") as caught:
        simulate("star:2", fails)
    assert caught.value.__notes__[0].startswith("rank 1 failed at 0.0")

    def waits_for_it(seat: Seat) -> None:
        if seat.rank == 1:
            raise KeyError("mine")
        threading.Event().wait()

    with pytest.raises(KeyError, match="mine") as caught:
        simulate("star:2", waits_for_it)
    assert "then came a deadlock at" in caught.value.__notes__[1]

    def leaves_out(seat: Seat) -> None:
        with Worker(numel=10, **seat.arguments) as worker:
            if seat.rank == 0:
                worker.allreduce(np.ones(10, np.float32))
            else:
                time.sleep(100.0)

    with pytest.raises(AllreduceTimeout, match="rank 1"):
        simulate("star:2", leaves_out)
    with pytest.raises(Stuck, match=r"deadlock at 0.000000 s of virtual time: ranks 0, 1 wait"):
        simulate("star:2", lambda _: threading.Event().wait())
