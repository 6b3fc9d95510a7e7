"""Plays a scenario in the simulated world under the eyes of the oracle."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from iswitch.core.sums.buffers import PLAIN, AllOrNothing, Buffers
from iswitch.faults.impairment import Impairment
from iswitch.outside import OutsideError
from iswitch.sim.trace import Trace

from .books import check_links
from .events import Events
from .lives import ENOUGH
from .scenario import Scenario
from .stage import Stage
from .tenant import Tenant
from .violation import Violation

BOUND = 30.0  # seconds after the end of all faults in which everybody must make progress
EVENTS = 1_000_000  # that may happen in a history: none needs a tenth of it


@dataclass(frozen=True)
class Result:
    """The end of a history.

    Attributes:
        violation: the kind of promise that was broken; empty: none.
        message: description of how the promise was broken.
        time: virtual seconds at the end.
        rounds: allreduces, and versions of segments, that were checked.
        packets: packets that were sent on links.
    """

    seed: int
    violation: str
    message: str
    time: float
    rounds: int
    packets: int


def run(scenario: Scenario, trace: Trace | None = None) -> Result:
    """Play a scenario to its end, or to the first violation."""
    return outcome(History(scenario, trace, AllOrNothing()))


def outcome(history: History) -> Result:
    """Play a history, and say how it ended.

    Raises:
        OutsideError: this computer has too little memory for it.
    """
    violation = message = ""
    try:
        history.play()
    except Violation as broken:
        violation, message = broken.kind, str(broken)
    except OutsideError:  # a shortage of this computer's, not a defect of a machine
        raise
    except Exception as error:  # a defect of a machine
        violation = type(error).__name__
        message = f"{violation}: {error}"
    finally:
        history.stage.close()
    network = history.simulation.network
    rounds = sum(oracle.finished for oracle in history.stage.oracles.values())
    packets = network.link_counts().sent
    return Result(history.scenario.seed, violation, message, network.now, rounds, packets)


class History:
    """One history.

    Args:
        scenario: its network, jobs and events.
        trace: records every packet; None: nothing is recorded.
        buffers: source of the switches' buffers.
    """

    def __init__(
        self, scenario: Scenario, trace: Trace | None = None, buffers: Buffers = PLAIN
    ) -> None:
        self.scenario = scenario
        self.stage = Stage(scenario, trace, buffers)
        self.simulation, self.network = self.stage.simulation, self.stage.network
        self.events = Events(self.stage)
        late = [self.stage.job_of(event.who) for event in scenario.events if event.what == "come"]
        for job in scenario.jobs:
            for host in job.hosts if job not in late else ():
                self.stage.spawn(host)
        for event in scenario.events:
            self.network.at(event.at, partial(self.events.happen, event))
        self.network.at(scenario.horizon, self._mend_links)
        self.tenant = Tenant(self.stage)

    def play(self) -> None:
        """Play the history to its end.

        Raises:
            Violation: a promise was broken.
        """
        network, limit = self.network, self.scenario.horizon + BOUND
        for _ in range(EVENTS):
            due = network.next_time()
            faults = network.now < self.scenario.horizon or self.stage.open
            if not faults or due is None or (due >= self.scenario.horizon and not self.stage.open):
                break
            if network.now > limit:
                raise Violation("no progress", f"it does not even begin: {self.stage.states()}")
            network.step()
        self._end_faults()
        end = network.now + BOUND
        for _ in range(EVENTS):
            if all(life.done for life in self.stage.alive()):
                break
            if network.now > end or not network.step():
                raise Violation(
                    "no progress", f"{BOUND:g} s after the faults: {self.stage.states()}"
                )
        else:
            raise Violation("no progress", f"too much happens: {self.stage.states()}")
        self.stage.look()
        check_links(network)

    def _end_faults(self) -> None:
        """Ask every worker for ENOUGH more rounds, and reset jobs that stay halted."""
        for life in self.stage.alive():
            life.goal = life.rounds + ENOUGH
        if self.scenario.has("halt"):
            self.events.tidy()

    def _mend_links(self) -> None:
        for link in self.network.links.values():
            link.impairment = Impairment()
