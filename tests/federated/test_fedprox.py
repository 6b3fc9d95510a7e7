"""FedAvg and FedProx in one process: data, solvers, what is drawn, and what the paper finds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from iswitch.outside import UsageError
from worker_lib.fedprox import data, models
from worker_lib.fedprox.data import DATASETS, DEVICES, FEATURES, LEAST, Federation, Samples, divided
from worker_lib.fedprox.logistic import Logistic
from worker_lib.fedprox.measures import quality
from worker_lib.fedprox.model import Model, Steps
from worker_lib.fedprox.models import MODELS, model_of
from worker_lib.fedprox.rounds import Setting, orders, plan_round, train

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module", params=DATASETS)
def federation(request: pytest.FixtureRequest) -> Federation:
    if request.param == "digits":
        pytest.importorskip("sklearn")
    return Federation.made(request.param, 1)


# Data


def test_data_have_the_papers_shape(federation: Federation) -> None:
    is_digits = federation.name == "digits"
    assert len(federation.devices) == DEVICES
    assert federation.features == (64 if is_digits else FEATURES)
    for own, test in federation.devices:
        whole = len(own.labels) + len(test.labels)
        assert len(own.labels) == int(0.9 * whole)
        assert whole >= LEAST
        assert own.inputs.dtype == np.float32
        assert set(own.labels) <= set(range(10))


def test_a_seed_gives_the_same_data(federation: Federation) -> None:
    first = federation.devices[3].train
    again, other = (
        divided(DATASETS[federation.name](seed, DEVICES), seed, 3).train for seed in (1, 2)
    )
    assert first.inputs.tobytes() == again.inputs.tobytes()
    assert first.labels.tolist() == again.labels.tolist()
    assert first.inputs.tobytes() != other.inputs.tobytes()


@pytest.mark.slow
def test_a_and_b_are_variances_of_means() -> None:
    sizes = np.log(Federation.made("iid", 1, 500).sizes)  # e^4 + 50 and above are a half of all
    assert np.mean(sizes > np.log(0.9 * (np.exp(4) + LEAST))) == pytest.approx(0.5, abs=0.05)
    drawn = data.synthetic(0.0, 0.5, seed=1, devices=150)
    means = [np.mean(drawn(rank).inputs) for rank in range(150)]  # B_k, and 1/60 of v_k's variance
    assert np.var(means) == pytest.approx(0.5 + 1 / FEATURES, rel=0.2)


def test_a_device_of_digits_sees_few_of_them() -> None:
    pytest.importorskip("sklearn")
    seen = [len(set(one.labels)) for one, _ in Federation.made("digits", 1).devices]
    assert max(seen) <= 4
    assert np.mean(seen) < 2.5


def test_digits_are_refused_to_more_devices_than_pairs() -> None:
    pytest.importorskip("sklearn")
    with pytest.raises(UsageError, match="has images for 898 devices"):
        DATASETS["digits"](1, 899)


def test_gradients_differ_as_much_as_the_data() -> None:
    found = {}
    for name in ("iid", "synthetic_0_0", "synthetic_0.5_0.5", "synthetic_1_1"):
        model = Logistic(FEATURES, 10)
        one = Federation.made(name, 1)
        found[name] = quality(model, model.start(1), one).dissimilarity
    assert list(found.values()) == sorted(found.values())
    assert found["synthetic_0_0"] > 100 * found["iid"]


def test_what_is_missing_is_named_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "find_spec", lambda _: None)
    monkeypatch.setattr(models, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"scikit-learn: pip install .*federated"):
        DATASETS["digits"](1, DEVICES)
    with pytest.raises(UsageError, match=r"torch: pip install .*torch"):
        MODELS["network"](4, 2)


# Solvers


def tiny() -> Samples:
    random = np.random.default_rng(5)
    labels = random.integers(0, 3, 23)
    return Samples(random.normal(labels[:, None], 1, (23, 4)).astype(np.float32), labels)


def made(name: str) -> Model:
    if name == "network":
        pytest.importorskip("torch")
    return MODELS[name](4, 3)


def some(count: int) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return orders(Setting(seed=3), 0, 0, 23, count)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_loss(name: str) -> None:
    model, samples = made(name), tiny()
    random = np.random.default_rng(1)
    at = model.start(1)
    at += random.normal(0, 0.1, model.numel).astype(np.float32)
    way = random.normal(0, 0.0005, model.numel).astype(np.float32)
    measured = model.measure(at, samples)
    ahead, behind = (model.measure(there, samples).loss for there in (at + way, at - way))
    assert measured.gradient @ way == pytest.approx((ahead - behind) / 2, rel=0.01)
    assert 0 <= measured.correct <= 23


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_a_solver_takes_the_papers_steps(name: str, mu: float) -> None:
    model, samples = made(name), tiny()
    at = model.start(1) + np.linspace(-0.1, 0.1, model.numel, dtype=np.float32)
    steps = Steps(rate=0.05, mu=mu, batch=10)
    found = model.solve(at, samples, some(3), steps)
    expected = at.astype(np.float64)
    for order in some(3):
        for start in (0, 10, 20):
            rows = order[start : start + 10]
            batch = Samples(samples.inputs[rows], samples.labels[rows])
            gradient = model.measure(expected.astype(np.float32), batch).gradient
            expected -= steps.rate * (gradient + mu * (expected - at))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    assert found.dtype == np.float32
    assert model.solve(at, samples, some(3), steps).tobytes() == found.tobytes()


@pytest.mark.parametrize("name", MODELS)
def test_a_large_mu_holds_the_model(name: str) -> None:
    model, samples = made(name), tiny()
    at = model.start(1)
    free, held = (model.solve(at, samples, some(20), Steps(0.05, mu)) for mu in (0.0, 10.0))
    assert np.linalg.norm(held - at) < np.linalg.norm(free - at) / 2


# Rounds


def test_all_algorithms_of_a_seed_see_the_same_devices() -> None:
    first = [plan_round(Setting("fedprox", stragglers=0.9), i) for i in range(50)]
    other = [plan_round(Setting("fedavg", stragglers=0.9), i) for i in range(50)]
    for kept, dropped in zip(first, other, strict=True):
        assert kept.epochs == dropped.epochs
        assert list(kept.in_sum) == sorted(kept.epochs)
        assert len(kept.epochs) == 10
        done = [k for k, epochs in kept.epochs.items() if epochs == 20]
        assert dropped.in_sum == done
        assert len(done) == 1
    late = {epochs for one in first for epochs in one.epochs.values()} - {20}
    assert late == set(range(1, 20))
    assert set().union(*(one.epochs for one in first)) == set(range(30))
    another = [plan_round(Setting("fedprox", stragglers=0.9, seed=2), i) for i in range(50)]
    assert another != first


def test_without_stragglers_fedavg_is_fedprox_with_mu_0() -> None:
    settings = [Setting(name, rounds=3) for name in ("fedavg", "fedprox")]
    one, other = ([state.weights.tobytes() for state in train(setting)] for setting in settings)
    assert one == other


def test_of_stragglers_alone_fedavg_keeps_its_model() -> None:
    states = list(train(Setting("fedavg", rounds=2, stragglers=1.0)))
    assert [state.in_sum for state in states] == [(), [], []]
    assert (states[0].weights == states[2].weights).all()


@pytest.mark.slow
def test_fedprox_is_above_fedavg_where_nine_of_ten_are_stragglers() -> None:
    accuracy = {}
    for algorithm, mu in ("fedavg", 0.0), ("fedprox", 0.0), ("fedprox", 1.0):
        setting = Setting(algorithm, stragglers=0.9, rounds=20, steps=Steps(mu=mu))
        federation = setting.federation()
        model = model_of(setting.model, federation)
        last = [quality(model, s.weights, federation) for s in train(setting, federation, model)]
        accuracy[algorithm, mu] = np.mean([one.accuracy for one in last[-5:]])
    assert accuracy["fedprox", 0.0] > accuracy["fedavg", 0.0] + 0.05
    assert accuracy["fedprox", 1.0] > accuracy["fedavg", 0.0] + 0.05
