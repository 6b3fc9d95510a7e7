"""A process of `iswitch train fedavg|fedprox`: `python -m worker_lib.fedprox.process PLAN`.

In the environment of `iswitch run`, RANK names the device; the last rank is the coordinator. It
prints JSON objects for its parent, one a line: the coordinator `started` and a `round` each, all of
them `done` or `error`.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from typing import Any, Self

from iswitch.outside import OutsideError
from worker_lib import WorkerError, environment
from worker_lib.federated import FederatedCoordinator, FederatedWorker
from worker_lib.rl.plan import report

from .data import CLASSES, DATASETS, Federation, divided
from .measures import quality
from .members import Played, coordinate, serve
from .model import Model, Steps
from .models import MODELS, model_of
from .rounds import Setting

JOINING = 300.0  # seconds for all processes to start


@dataclass(frozen=True)
class Plan:
    """What all processes of a training are told.

    Attributes:
        setting: what is trained.
        reproducible: sums in rank order.
        deadline: seconds after which a round is closed with what has come; None: never.
    """

    setting: Setting
    reproducible: bool = False
    deadline: float | None = None

    def to_json(self) -> str:
        """Return the plan as JSON text, for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse a plan from the text of `to_json`."""
        values: dict[str, Any] = json.loads(text)
        values["setting"]["steps"] = Steps(*values["setting"]["steps"])
        return cls(**values | {"setting": Setting(**values["setting"])})


def told(played: Played, model: Model, federation: Federation) -> dict[str, Any]:
    """Return what there is to tell of a round: how good its model is, its hash, who is in it."""
    return {
        "round": played.rounds,
        **quality(model, played.weights, federation)._asdict(),
        "in_sum": list(played.in_sum),
        "seconds": played.seconds,
        "weights": hashlib.sha256(played.weights.tobytes()).hexdigest(),
    }


def _coordinate(plan: Plan) -> None:
    setting = plan.setting
    federation = setting.federation()
    model = model_of(setting.model, federation)
    racks = environment.racks(os.environ, setting.devices)
    with FederatedCoordinator(
        environment.switch(os.environ),
        environment.job_number(os.environ),
        model.numel,
        setting.devices,
        racks=racks or None,
        deadline=plan.deadline,
        reproducible=plan.reproducible,
        silence=setting.silence,
        timeout=JOINING,
    ) as coordinator:
        report(
            "started",
            parameters=model.numel,
            sizes=federation.sizes.tolist(),
            racks=list(racks.values()),
        )
        for played in coordinate(coordinator, setting, model, is_tree=bool(racks)):
            report("round", **told(played, model, federation))


def _serve(plan: Plan, rank: int) -> None:
    setting = plan.setting
    samples = divided(DATASETS[setting.data](setting.seed, setting.devices), setting.seed, rank)
    model = MODELS[setting.model](samples.train.inputs.shape[1], CLASSES)
    with FederatedWorker(
        environment.switch(os.environ),
        environment.job_number(os.environ),
        model.numel,
        setting.devices,
        rank,
        bind=environment.bind(os.environ),
        reproducible=plan.reproducible,
        silence=setting.silence,
        timeout=JOINING,
    ) as worker:
        serve(worker, setting, rank, samples.train, model)


def main() -> int:
    """Run one process; return its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    plan = Plan.from_json(sys.argv[1])
    rank = environment.number(os.environ, "RANK")
    try:
        if rank == plan.setting.devices:
            _coordinate(plan)
        else:
            _serve(plan, rank)
    except (WorkerError, OutsideError) as error:
        report("error", message=str(error), outside=isinstance(error, OutsideError))
        return 1
    report("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
