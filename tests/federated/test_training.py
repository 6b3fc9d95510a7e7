"""Trainings over switches and servers give the bits of the same training in one process."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from iswitch.lab.federated.places import network, racks_of
from iswitch.lab.federated.simulated import SERVER, SWITCH, How, Row, play
from iswitch.lab.launch.simulated import Virtual
from iswitch.outside import UsageError
from tests.conftest import Where
from worker_lib.federated import FederatedCoordinator, FederatedWorker
from worker_lib.fedprox import server
from worker_lib.fedprox.data import Federation
from worker_lib.fedprox.members import coordinate, serve
from worker_lib.fedprox.model import Steps
from worker_lib.fedprox.models import model_of
from worker_lib.fedprox.rounds import Setting, paces, plan_round, train
from worker_lib.fedprox.server import END, HEAD, PURPOSE

DEVICES = 6
SETTING = Setting(
    devices=DEVICES, picked=4, rounds=4, epochs=3, stragglers=0.5, steps=Steps(mu=0.1)
)
WAIT = 30.0


@pytest.fixture(scope="module")
def federation() -> Federation:
    return SETTING.federation()


def played(
    setting: Setting, federation: Federation, form: str, adds: str = SWITCH, numel: int = 0
) -> list[Row]:
    rows: list[Row] = []
    topology = network(form, setting.devices)

    def tell(row: Row) -> bool:
        rows.append(row)
        return True

    play(setting, federation, topology, Virtual(), tell, How(adds, numel or None))
    return rows


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox"])
def test_a_switch_gives_the_bits_of_one_process(
    switch: Where, job: int, federation: Federation, algorithm: str
) -> None:
    setting = replace(SETTING, algorithm=algorithm)
    model = model_of(setting.model, federation)

    def device(rank: int) -> None:
        with FederatedWorker(
            switch, 2 * job, model.numel, DEVICES, rank, timeout=WAIT, silence=WAIT
        ) as worker:
            serve(worker, setting, rank, federation.devices[rank].train, model)

    with ThreadPoolExecutor(DEVICES) as pool:
        devices = [pool.submit(device, rank) for rank in range(DEVICES)]
        with FederatedCoordinator(
            switch, 2 * job, model.numel, DEVICES, timeout=WAIT
        ) as coordinator:
            found = list(coordinate(coordinator, setting, model))
        for one in devices:
            one.result(WAIT)
    for state, alone in zip(found, train(setting, federation, model), strict=True):
        assert state.weights.tobytes() == alone.weights.tobytes()
        assert list(state.in_sum) == list(alone.in_sum)


@pytest.mark.parametrize(
    ("form", "adds", "numel"),
    [
        ("star:6,rate=10Mbit", SWITCH, 0),
        ("star:6,rate=10Mbit", SWITCH, 2000),
        ("star:6,rate=10Mbit", SERVER, 2000),
        ("rack:2x3,rate=10Mbit", SWITCH, 0),
    ],
)
def test_virtual_time_gives_the_bits_of_one_process(
    federation: Federation, form: str, adds: str, numel: int
) -> None:
    setting = replace(SETTING, seconds=0.5)
    rows = played(setting, federation, form, adds, numel)
    racks = [(0, 1, 2), (3, 4, 5)] if form.startswith("rack") else ()
    for row, alone in zip(rows, train(setting, federation, racks=racks), strict=True):
        assert row.weights.tobytes() == alone.weights.tobytes()
        assert list(row.in_sum) == list(alone.in_sum)
        assert row.seconds >= 0.5 * row.rounds
    assert 0 < rows[-1].busiest < rows[-1].bytes
    assert rows[-1].seconds < 0.7 * len(rows)


@pytest.mark.parametrize("adds", [SWITCH, SERVER])
def test_devices_may_compute_for_long(federation: Federation, adds: str) -> None:
    """Longer than a silence after which nobody would be waited for."""
    setting = replace(SETTING, devices=1, picked=1, seconds=605, rounds=1)
    rows = played(setting, federation, "star:1,rate=10Mbit", adds)
    assert list(rows[-1].in_sum) == [0]


def test_times_and_bytes_follow_from_the_setting(federation: Federation) -> None:
    first, again = (
        [row[3:] for row in played(SETTING, federation, "star:6,rate=1Mbit")] for _ in range(2)
    )
    assert first == again


def test_a_server_carries_what_a_switch_adds(federation: Federation) -> None:
    """The server's link has a model in and out for each device; the coordinator's has three.

    It sends the model, which comes back to it as to all members, and takes the sum.
    """
    over_switch, over_server = (
        played(SETTING, federation, "star:6,rate=1Mbit", adds, 10_000)[-1]
        for adds in (SWITCH, SERVER)
    )
    size, rounds = 40_000, SETTING.rounds
    assert over_switch.busiest == pytest.approx(3 * size * rounds, rel=0.1)
    assert over_server.busiest == pytest.approx(2 * size * 4 * rounds, rel=0.1)
    assert over_server.seconds > 2 * over_switch.seconds


def test_a_server_tells_the_end_to_all_whose_connections_are_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        ends = [socket.create_connection(door.getsockname()) for _ in range(2)]
        found = {(rank, PURPOSE): door.accept()[0] for rank in range(2)}
    monkeypatch.setattr(server, "expected", lambda *_: (found, set()))
    ending = server.Server(0, 1, 2)
    found[0, PURPOSE].close()
    ending.close()
    assert HEAD.unpack(ends[1].recv(HEAD.size)) == (END,)
    for end in ends:
        end.close()


def test_a_training_ends_when_it_is_told_to(federation: Federation) -> None:
    rows: list[Row] = []

    def tell(row: Row) -> bool:
        rows.append(row)
        return row.rounds < 2

    play(SETTING, federation, network(None, DEVICES), Virtual(), tell)
    assert [row.rounds for row in rows] == [0, 1, 2]


def test_speeds_decide_who_is_a_straggler() -> None:
    setting = replace(SETTING, devices=50, epochs=20, speeds=1.0, picked=10)
    done = paces(setting)
    assert (done == 20).sum() == 25
    assert done.min() < 10
    plans = [plan_round(setting, i) for i in range(20)]
    for plan in plans:
        assert all(epochs == done[device] for device, epochs in plan.epochs.items())
        assert all(done[device] >= 1 for device in plan.in_sum)
    dropping = plan_round(replace(setting, algorithm="fedavg"), 0)
    assert dropping.in_sum == [k for k in dropping.epochs if done[k] == 20]


def test_the_slowest_device_that_finishes_does_all_its_epochs() -> None:
    for seed in range(100):  # rounding 20 * speed would take an epoch from one of these
        setting = replace(SETTING, devices=30, epochs=20, speeds=1.0, stragglers=0.5, seed=seed)
        assert (paces(setting) == 20).sum() == 15


def test_networks_have_a_host_for_each_device() -> None:
    assert [host.name for host in network(None, 30).hosts][-1] == "server1"
    assert len(network(None, 300).tree) == 1 + 5
    racks = racks_of(network("rack:2x3", 6), lambda name: (name, 1))
    assert list(racks.values()) == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(UsageError, match="say --devices 4"):
        network("star:4", 5)
    with pytest.raises(UsageError, match="two levels"):
        network("tree:2x2x2", 8)
    with pytest.raises(UsageError, match="no equal racks"):
        network(None, 67)


def test_links_are_spread() -> None:
    rates = [link.rate for link in network("star:40,rate=10Mbit", 40, 1.0, seed=2).links][:-1]
    assert len(set(rates)) == 40
    assert np.median(np.array(rates, float)) == pytest.approx(1e7, rel=0.4)
    with pytest.raises(UsageError, match="no rate"):
        network("star:40", 40, 1.0)
