"""Takes an operator's orders at the socket at which a switch is watched.

An order is a JSON object on a line. Only the owner of the switch's process can connect there, so
whoever gives an order is its operator. The engine carries it out between two turns.
"""

from __future__ import annotations

import json
import threading
from typing import Any

from iswitch.core.jobs.operating import Order
from iswitch.core.jobs.record import NOWHERE, Elsewhere, Record
from iswitch.ports.engine import Engine

PATIENCE = 5.0  # seconds for the engine to take an order


class Orders:
    """Has the engine carry out orders; for other threads than its own.

    Args:
        engine: runs the switch.
        record: the jobs of the switch.
    """

    def __init__(self, engine: Engine[Any, Any], record: Record) -> None:
        self._engine = engine
        self._record = record

    def give(self, text: bytes) -> str | None:
        """Give an order; return the answer as a line of JSON. None: the switch has no time.

        Args:
            text: `drain` (true, false or null), `jobs` (numbers; null: all), `to` (host and port,
                or null), `grace` (seconds).
        """
        try:
            asked = json.loads(text)
            jobs, to = asked["jobs"], asked["to"]
            order = Order(
                asked["drain"],
                None if jobs is None else frozenset(map(int, jobs)),
                NOWHERE if to is None else Elsewhere(str(to[0]), int(to[1])),
                float(asked["grace"]),
            )
            order.to.told()
        except (ValueError, KeyError, TypeError, IndexError) as error:
            return json.dumps({"error": f"no order of this version: {error!r}"}) + "\n"
        told: dict[str, Any] = {}
        taken = threading.Event()

        def take() -> None:
            record = self._record
            told["waiting"] = record.policy.queue() if order.drain else []
            there = [job.number for job in record.jobs.values() if job.shape is not None]
            told["ending"] = [one for one in there if order.jobs is None or one in order.jobs]
            record.orders.append(order)
            taken.set()

        self._engine.call(take)
        return json.dumps(told) + "\n" if taken.wait(PATIENCE) else None
