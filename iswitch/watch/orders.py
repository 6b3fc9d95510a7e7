"""Takes an operator's orders at the socket at which a switch is watched.

An order is a JSON object on a line. Only the owner of the switch's process can connect there, so
whoever gives an order is its operator. The engine carries it out between two turns.
"""

from __future__ import annotations

import json
import threading
from ipaddress import IPv4Address
from math import inf
from typing import Any

from iswitch.core.jobs.operating import Order
from iswitch.core.jobs.record import NOWHERE, Elsewhere, Record
from iswitch.ports.engine import Engine

PATIENCE = 5.0  # seconds for the engine to take an order
MOST_PORT = 0xFFFF


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

        The switch has carried it out then, but for jobs whose rounds are under way.

        Args:
            text: `drain` (true, false or null), `jobs` (numbers; null: all), `to` (host and port,
                or null), `grace` (seconds).
        """
        try:
            order = parsed(text)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            return json.dumps({"error": f"no order of this version: {error!r}"}) + "\n"
        told: dict[str, Any] = {}
        taken = threading.Event()

        def take() -> None:
            record = self._record
            named = order.jobs or ()
            told["waiting"] = [one for one in record.policy.queue() if order.drain or one in named]
            there = [job.number for job in record.jobs.values() if job.shape is not None]
            told["ending"] = [one for one in there if order.jobs is None or one in order.jobs]
            record.orders.append(order)
            self._engine.call(taken.set)  # after the turn that carries it out

        self._engine.call(take)
        return json.dumps(told) + "\n" if taken.wait(PATIENCE) else None


def parsed(text: bytes) -> Order:
    """Parse an order.

    Raises:
        ValueError: a value is out of its range, or the text is no JSON.
        KeyError: a name is missing.
        TypeError: a value is of another kind.
        OverflowError: a number is too large.
        RecursionError: lists are nested too deeply.
    """
    asked = json.loads(text)
    drain, jobs, to, grace = asked["drain"], asked["jobs"], asked["to"], float(asked["grace"])
    if drain not in (None, False, True):
        raise ValueError("drain is true, false or null")
    if jobs is not None and not (isinstance(jobs, list) and all(type(one) is int for one in jobs)):
        raise ValueError("jobs are numbers in a list, or null")
    if not 0 <= grace < inf:
        raise ValueError("grace is 0 s or more")
    there = NOWHERE
    if to is not None:
        host, port = to
        there = Elsewhere(str(IPv4Address(str(host))), int(port))
        if not 0 < there.port <= MOST_PORT:
            raise ValueError(f"a port is from 1 to {MOST_PORT}")
    return Order(drain, None if jobs is None else frozenset(jobs), there, grace)
