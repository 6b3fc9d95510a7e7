"""Linear regression by Flower's loop, with sums of a switch; run it with `python -m`.

The members are threads of this process that live as long as the run, and a `Grid` hands them
Flower's messages: Flower's own deployment starts a new process for each message, in which no worker
could keep its membership.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid

from iswitch.core.format.wire import Vector
from worker_lib.errors import WorkerError

from .coordinator import FederatedCoordinator
from .flower import METRICS, RANK, SwitchStrategy
from .worker import FederatedWorker

FEATURES = 20
TRUTH = np.linspace(-1, 1, FEATURES, dtype=np.float32)
TTL = 3600.0  # seconds that a message is valid


class Node:
    """A client: one FederatedWorker, its samples, and what it answers to Flower's messages."""

    def __init__(self, switch: tuple[str, int], job: int, members: int, rank: int) -> None:
        draw = np.random.default_rng(rank)
        self.x = draw.standard_normal((20 + 10 * rank, FEATURES), np.float32)
        self.y = self.x @ TRUTH
        self.worker = FederatedWorker(switch, job, FEATURES, members, rank)
        self._tasks = self.worker.rounds()

    def __call__(self, message: Message) -> Message:
        """Answer a query with the rank; train, and contribute to the switch."""
        metrics: dict[str, Any] = {RANK: self.worker.rank}
        if message.metadata.message_type == MessageType.TRAIN:
            task = next(self._tasks)
            said = task.contribute(self._trained(task.model), len(self.x))
            metrics["in-sum"] = int(bool(said))
        return Message(RecordDict({METRICS: MetricRecord(metrics)}), reply_to=message)

    def _trained(self, model: Vector) -> Vector:
        weights = model.copy()
        for _ in range(5):
            slope = self.x.T @ (self.x @ weights - self.y) / np.float32(len(self.x))
            weights -= np.float32(0.1) * slope
        return weights


class Threads(Grid):
    """Hands messages to nodes in threads.

    Args:
        nodes: by their number.
        pool: has a thread for each node; this does not shut it down.
    """

    def __init__(self, nodes: dict[int, Node], pool: ThreadPoolExecutor) -> None:
        self._nodes = nodes
        self._pool = pool
        self._pending: dict[str, Future[Message]] = {}
        self._lock = threading.Lock()

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message of this run."""
        metadata = Metadata(
            run_id=0, message_id="", src_node_id=0, dst_node_id=dst_node_id,
            reply_to_message_id="", group_id=group_id, created_at=time.time(), ttl=ttl or TTL,
            message_type=message_type,
        )  # fmt: skip
        return Message(metadata=metadata, content=content)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes."""
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Have nodes begin with messages; return a number for each."""
        numbers = []
        for message in messages:
            with self._lock:
                number = str(len(self._pending))
                node = self._nodes[message.metadata.dst_node_id]
                self._pending[number] = self._pool.submit(node, message)
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return those replies that have come."""
        found = [self._pending[number] for number in message_ids]
        return [reply.result() for reply in found if reply.done()]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the replies that have come when all have, or the time is up."""
        numbers = list(self.push_messages(messages))
        wait([self._pending[number] for number in numbers], timeout)
        return self.pull_messages(numbers)

    def set_run(self, run: Any) -> None:
        """Refuse: there is one run."""
        raise NotImplementedError

    @property
    def run(self) -> Any:
        """Refuse: Flower knows nothing of this run."""
        raise NotImplementedError


def main(words: list[str] | None = None) -> float:
    """Train, print the error after each round, and return the last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--switch", default="127.0.0.1:26963", metavar="HOST:PORT")
    parser.add_argument("--job", type=int, default=30, help="and the one after it")
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--per-round", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args(words)
    host, _, port = args.switch.partition(":")
    switch = host, int(port)

    def error(_number: int, arrays: ArrayRecord) -> MetricRecord:
        (weights,) = arrays.to_numpy_ndarrays()
        return MetricRecord({"error": float(np.abs(weights - TRUTH).max())})

    with ThreadPoolExecutor(args.members, "flower node") as pool:
        joining = [
            pool.submit(Node, switch, args.job, args.members, rank) for rank in range(args.members)
        ]
        with FederatedCoordinator(
            switch, args.job, FEATURES, args.members, per_round=args.per_round
        ) as coordinator:
            nodes = {100 + rank: node.result() for rank, node in enumerate(joining)}
            strategy = SwitchStrategy(coordinator)
            zeros = ArrayRecord([np.zeros(FEATURES, np.float32)])
            result = strategy.start(Threads(nodes, pool), zeros, args.rounds, evaluate_fn=error)
            for node in nodes.values():  # the coordinator waits until they have left
                node.worker.close()
    last = 0.0
    for number, outcome in strategy.outcomes.items():
        last = float(result.evaluate_metrics_serverapp[number]["error"])
        print(f"round {number}: ranks {outcome.ranks}, {outcome.n:g} samples, error {last:.5f}")
    return last


if __name__ == "__main__":
    try:
        main()
    except WorkerError as error:
        sys.exit(f"flower_example: {error}")
