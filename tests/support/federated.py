"""Random histories of federated rounds, and the oracle that judges them.

Devices are killed, stopped, slow and lossy in mid round, alone or in racks; switches are restarted,
and jobs are reset. The oracle knows what
every member has contributed to each round, and computes each mean from the ranks that the
coordinator reports:

- the sum holds exactly these members' contributions, each once and whole: its bits are those of
  the algorithm in one process;
- they were picked, and have contributed to this round and no other;
- every member that was told is told the truth: `IN` if and only if it is in the sum, unless the
  sum was lost with what a switch knew; `before` of the next task is always true;
- a round has as many as are needed, or its deadline has passed;
- every round ends, and every member that runs until then has the last model.
"""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial

import numpy as np

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import Action
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from iswitch.faults.impairment import Impairment
from worker_lib.controller import Controller
from worker_lib.errors import WorkerError
from worker_lib.federated import (
    FederatedCoordinator,
    FederatedWorker,
    Outcome,
    Said,
    picks,
    weighted_mean,
)

from .devices import Device, Stage, sleep

ROOT = Address("10.0.0.254", 26963)
ELEMENTS = 8  # of a segment: vectors have several
NUMELS = (1, 4, 11, 60)
JOB = 7
SILENCE = 100.0  # seconds
LATE = 0.02  # of a deadline: the coordinator may look this much too early

Vector = np.ndarray


class History:
    """One run of a federation.

    Args:
        seed: draws everything.
        racks: of a two-level tree; 0: a star.
    """

    def __init__(self, seed: int, racks: int = 0) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"{seed} {racks}")
        self.members = rng.randint(2, 6)
        self.numel = rng.choice(NUMELS)
        self.rounds = rng.randint(2, 5)
        self.per_round = rng.randint(1, self.members)
        self.needed = rng.randint(1, self.per_round)
        self.reproducible = rng.random() < 0.7
        self.fails = rng.random() < 0.8
        self.deadline = rng.uniform(0.3, 3.0) if self.fails or rng.random() < 0.5 else None
        self.pace = rng.choice((0.01, 0.3, 1.5))  # seconds that training takes, in the mean
        self.abstains = 0.2 if self.deadline else 0.0
        self.contributed: dict[tuple[int, int], tuple[Vector, float]] = {}
        self.told: dict[tuple[int, int], Said] = {}
        self.outcomes: list[tuple[Outcome, int, float]] = []  # needed, and seconds
        self.last: Vector = np.zeros(self.numel, np.float32)
        self.shaken: set[int] = set()  # rounds in which a switch or a job may have lost its sums
        self.begun = 0  # members
        self.kills = self.stops = self.restarts = self.resets = self.mistold = 0
        leaves = [Address(f"10.0.{i + 1}.254", 26963) for i in range(racks)]
        self.racks = {leaf: list(range(i, self.members, racks)) for i, leaf in enumerate(leaves)}
        self.racks = {leaf: ranks for leaf, ranks in self.racks.items() if ranks}
        self.switches = [ROOT, *self.racks]
        self.stage = Stage({address: self.new_switch(address) for address in self.switches}, seed)
        self.coordinator = self.stage.start("10.9.0.1", self._coordinate, self._link(0.3))
        self.devices = [
            self.stage.start(f"10.8.0.{rank + 1}", partial(self._take_part, rank), self._link(1.0))
            for rank in range(self.members)
        ]

    @staticmethod
    def new_switch(address: Address) -> Switch:
        switch = Switch(Limits(), False, None if address == ROOT else ROOT, 1000)
        if address != ROOT:
            switch.record.listening = address.port
        return switch

    def _link(self, how_bad: float) -> Impairment:
        rng = self.rng
        if not self.fails or rng.random() < 0.4:
            return Impairment()
        delay = rng.choice((0.0, 0.0, 0.02))
        return Impairment(
            rng.choice((0.0, 0.05, 0.25)) * how_bad, delay, delay / 2, rng.choice((0.0, 0.1))
        )

    def _draw_faults(self) -> None:
        """Faults of the rounds; a federation whose members are not all there never begins."""
        rng, now = self.rng, self.stage.network.now
        for _ in range(rng.randint(0, 3) if self.fails else 0):
            device = rng.choice(self.devices)
            befalls = rng.choice(
                [partial(self._kill, device), partial(self._kill, device)]
                + [partial(self._stop, device, rng.choice((0.2, 2.0, 45.0)))] * 2
                + [partial(self._restart, rng.choice(self.switches), rng.choice((0.002, 0.3, 3.0)))]
                + [partial(self._reset, rng.choice((JOB, JOB + 1)))]
            )
            if rng.random() < 0.5:  # in the middle of a vector, as it may be
                device.packets, device.befalls = rng.randint(1, 20), befalls
            else:
                self.stage.at(now + rng.expovariate(1 / 2 / self.pace), befalls)

    def _kill(self, device: Device) -> None:
        if not device.done and sum(d.killed for d in self.devices) < self.members - 1:
            self.kills += 1
            device.kill()

    def _stop(self, device: Device, seconds: float) -> None:
        if not device.done:
            self.stops += 1
            device.stop()
            self.stage.at(self.stage.network.now + seconds, partial(self._resume, device))

    def _resume(self, device: Device) -> None:
        if self.coordinator.done:
            device.kill()  # it would wait for a federation that is over
        device.resume()

    def _restart(self, address: Address, seconds: float) -> None:
        if not self.coordinator.done:
            self.restarts += 1
            self._shake()
            network = self.stage.network
            network.crash(address)
            start = partial(network.start, address, self.new_switch(address))
            self.stage.at(network.now + seconds, start)

    def _reset(self, job: int) -> None:
        if not self.coordinator.done:
            self.resets += 1
            self._shake()
            self.stage.start(f"10.7.0.{self.resets}", partial(self._command_reset, job))

    def _shake(self) -> None:
        self.shaken = set(range(len(self.outcomes) + 2))

    # The programs

    @staticmethod
    def _command_reset(job: int) -> None:
        here = ROOT.host, ROOT.port
        with suppress(WorkerError), Controller(here, job) as controller, controller.membership():
            controller.request(Action.RESET)

    def _coordinate(self) -> None:
        model = np.zeros(self.numel, np.float32)
        racks = {(leaf.host, leaf.port): ranks for leaf, ranks in self.racks.items()}
        with FederatedCoordinator(
            (ROOT.host, ROOT.port), JOB, self.numel, self.members, per_round=self.per_round,
            needed=self.needed, deadline=self.deadline, seed=self.seed, patience=1.0,
            elements_per_segment=ELEMENTS, racks=racks or None, reproducible=self.reproducible,
        ) as coordinator:  # fmt: skip
            while self.begun < self.members:
                sleep(0.01)
            self._draw_faults()
            for number in range(self.rounds):
                began = self.stage.network.now
                outcome = coordinator.round(number, model)
                took = self.stage.network.now - began
                self.outcomes.append((outcome, self.needed, took))
                model = outcome.model
        self.last = model

    def _take_part(self, rank: int) -> Vector | None:
        draw = random.Random(f"{self.seed} {rank}")
        values = np.random.default_rng((self.seed, rank))
        leaf = next((leaf for leaf, ranks in self.racks.items() if rank in ranks), ROOT)
        with FederatedWorker(
            (leaf.host, leaf.port), JOB, self.numel, self.members, rank,
            elements_per_segment=ELEMENTS, reproducible=self.reproducible, silence=SILENCE,
        ) as worker:  # fmt: skip
            self.begun += 1
            for task in worker.rounds():
                assert rank in task.picked
                if task.before is not None:
                    assert self.outcomes[task.before[0]][0].ranks == task.before[1]
                sleep(draw.expovariate(1 / self.pace))
                if draw.random() < self.abstains:
                    continue
                weights = task.model + values.standard_normal(self.numel, np.float32)
                if not self.reproducible:  # whole numbers have one sum in any order
                    weights = values.integers(-99, 99, self.numel).astype(np.float32)
                one = weights, float(draw.randint(1, 1000))
                again = (task.round, rank) in self.contributed
                assert not again or task.round in self.shaken
                self.contributed[task.round, rank] = one
                self.told.pop((task.round, rank), None)
                self.told[task.round, rank] = task.contribute(*one)
            return worker.model

    # The oracle

    def play(self) -> History:
        self.stage.play()
        for device in (self.coordinator, *self.devices):
            if device.error is not None:
                raise device.error
        assert len(self.outcomes) == self.rounds
        model = np.zeros(self.numel, np.float32)
        for number, (outcome, needed, took) in enumerate(self.outcomes):
            self._check(number, outcome, needed, took, model)
            model = outcome.model
        for device in self.devices:
            if not device.killed:
                assert isinstance(device.result, np.ndarray), "a member lacks the last model"
                assert device.result.tobytes() == self.last.tobytes()
        return self

    def _check(
        self, number: int, outcome: Outcome, needed: int, took: float, model: Vector
    ) -> None:
        chosen = picks(self.seed, number, self.members, self.per_round)
        assert outcome.picked == chosen
        assert set(outcome.ranks) <= set(chosen)
        given = {
            rank: self.contributed[number, rank]  # a KeyError: it never contributed
            for rank in outcome.ranks
        }
        if given:
            alone, n = weighted_mean(given, list(self.racks.values()))
            assert outcome.n == n
            assert outcome.model.tobytes() == alone.tobytes(), f"{outcome.ranks} are not the sum"
        else:
            assert outcome.model.tobytes() == model.tobytes()
        for (round_, rank), said in self.told.items():
            if round_ == number and said is not Said.UNTOLD:
                is_in = rank in outcome.ranks
                lost = said is Said.IN and not is_in and number in self.shaken
                self.mistold += lost
                assert lost or (said is Said.IN) == is_in, f"{rank} was told {said}"
        if len(outcome.ranks) < needed and outcome.attempts == 1:
            assert self.deadline is not None
            assert took >= self.deadline - LATE
