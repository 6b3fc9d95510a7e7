"""A strategy for Flower whose aggregate is read from the switch; it needs the extra `flower`.

Flower says when a round begins, which nodes train, and what they report; models and weights travel
through the switch. docs/federated.md has an example, and says what Flower's processes permit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from iswitch.core.format.wire import Vector
from worker_lib.errors import WorkerError

from .coordinator import FederatedCoordinator
from .rounds import Outcome

METRICS = "metrics"
CONFIG = "config"
RANK = "rank"  # a node's answer to a query

log = logging.getLogger(__name__)


class SwitchStrategy(Strategy):
    """Has nodes train whose `FederatedWorker`s contribute to the switch; takes the mean from there.

    Every node answers a query with its worker's rank, as metric "rank". A training message has no
    arrays: the node's worker has the model. Nothing in a reply is averaged, so a node that replies
    late, or never, changes nothing; the switch says who is in the mean.

    Args:
        coordinator: plays the rounds; this does not close it.
        timeout: seconds for the nodes to say which ranks they are.

    Attributes:
        outcomes: by round.
    """

    def __init__(self, coordinator: FederatedCoordinator, timeout: float = 60.0) -> None:
        self._coordinator = coordinator
        self._timeout = timeout
        self._nodes: dict[int, int] = {}  # by rank
        self._layout: list[tuple[int, ...]] = []
        self._round: Future[Outcome] | None = None
        self.outcomes: dict[int, Outcome] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Begin the switch's round, and have the nodes train that were picked."""
        parts = arrays.to_numpy_ndarrays()
        self._layout = [part.shape for part in parts]
        self._find_nodes(grid)
        picked = self._coordinator.picked(server_round)
        model = np.concatenate([np.asarray(part, np.float32).reshape(-1) for part in parts])
        pool = ThreadPoolExecutor(1, "federated round")
        self._round = pool.submit(self._coordinator.round, server_round, model)
        pool.shutdown(wait=False)  # its thread ends with the round
        config["server-round"] = server_round
        content = RecordDict({CONFIG: config})
        return [self._message(grid, content, MessageType.TRAIN, self._nodes[r]) for r in picked]

    def aggregate_train(
        self,
        server_round: int,
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the mean that the switch has summed, and of how many members and samples it is."""
        for reply in replies:
            if reply.has_error():
                log.warning("a node failed in round %d: %s", server_round, reply.error)
        assert self._round is not None
        outcome = self.outcomes[server_round] = self._round.result()
        if not outcome.ranks:
            return None, None
        counts = MetricRecord({"num-examples": outcome.n, "members": len(outcome.ranks)})
        return ArrayRecord(self._parts(outcome.model)), counts

    def _parts(self, model: Vector) -> list[Vector]:
        """Cut a flat model into arrays of the shapes that came."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self._layout])
        cut = np.split(model, ends[:-1])
        return [part.reshape(shape) for part, shape in zip(cut, self._layout, strict=True)]

    def _find_nodes(self, grid: Grid) -> None:
        """Ask the nodes which ranks their workers have, unless all are known."""
        if len(self._nodes) == self._coordinator.num_workers:
            return
        nothing = RecordDict({CONFIG: ConfigRecord()})
        asked = [
            self._message(grid, nothing, MessageType.QUERY, node) for node in grid.get_node_ids()
        ]
        for reply in grid.send_and_receive(asked, timeout=self._timeout):
            if not reply.has_error():
                rank = reply.content.metric_records[METRICS][RANK]
                self._nodes[int(rank)] = reply.metadata.src_node_id
        missing = set(range(self._coordinator.num_workers)) - set(self._nodes)
        if missing:
            raise WorkerError(
                f"no node of Flower has answered for ranks {sorted(missing)}: start a node for "
                "each FederatedWorker, whose query function returns its rank"
            )

    @staticmethod
    def _message(grid: Grid, content: RecordDict, kind: str, node: int) -> Message:
        return grid.create_message(content, kind, node, "")

    def configure_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,  # noqa: ARG002
        grid: Grid,  # noqa: ARG002
    ) -> Iterable[Message]:
        """Return no messages: evaluate at the server, by `evaluate_fn`."""
        return []

    def aggregate_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        replies: Iterable[Message],  # noqa: ARG002
    ) -> MetricRecord | None:
        """Return None: nodes evaluate nothing."""
        return None

    def summary(self) -> None:
        """Log what the rounds are."""
        coordinator = self._coordinator
        log.info(
            "the switch sums %d of %d members a round", coordinator.per_round,
            coordinator.num_workers,
        )  # fmt: skip
