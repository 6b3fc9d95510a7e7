"""Sets the H at which sums fire: at one switch, or at each switch of a two-level tree.

A switch counts contributions, and to the root of a tree a rack is one. So in a tree each rack's
switch fires at its share of H, and the root at the number of racks that have a share. A rack
without one holds what its members send until the round is closed without them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from iswitch.core.format.wire import NO_RANK, Action, Status, Threshold
from worker_lib.command_errors import CommandRefused
from worker_lib.controller import Controller
from worker_lib.worker import Worker

Place = tuple[str, int]
Racks = Mapping[Place, Sequence[int]]

NEVER = 0x7FFFFFFF  # contributions, which no switch ever has
ON_ITS_WAY = 0.05  # seconds for what the racks send up to reach the root


def shares(h: int, counts: Sequence[int]) -> list[int]:
    """Divide h among racks in proportion to how many of their members are picked.

    What is left by rounding down goes to the largest remainders, of equal ones to the first.
    """
    total = sum(counts)
    parts = [h * count // total for count in counts]
    by_rest = sorted(range(len(counts)), key=lambda i: (-(h * counts[i] % total), i))
    for i in by_rest[: h - sum(parts)]:
        parts[i] += 1
    return parts


class Firing:
    """The H of the sums' job, wherever it is counted.

    Args:
        sums: the coordinator's Worker.
        racks: ranks by the address of their switch; None: all are at the coordinator's switch.
        num_workers: members.
        key: key of a keyed job.

    Raises:
        ValueError: the racks do not fit what the switch shows, or the ranks.
    """

    def __init__(
        self, sums: Worker, racks: Racks | None, num_workers: int, key: bytes | None
    ) -> None:
        self._sums = sums
        self._racks = {} if racks is None else {place: set(ranks) for place, ranks in racks.items()}
        self._check(num_workers)
        self._root = sums.address.host, sums.address.port
        places = [*self._racks, self._root] if self._racks else []
        self._controllers = {place: Controller(place, sums.job, key=key) for place in places}
        self._in_force: dict[Place, int] = {}

    def _check(self, num_workers: int) -> None:
        named = sorted(rank for ranks in self._racks.values() for rank in ranks)
        if self._racks and named != list(range(num_workers)):
            raise ValueError(f"racks name ranks {named}: name each of 0 to {num_workers - 1} once")
        below = sum(one.rank == NO_RANK for one in self._sums.members())
        if self._sums.has_parent():
            raise ValueError(
                f"the switch at {self._sums.address} has one above it: give the coordinator the "
                "root's address, and racks={(host, port): ranks, ...}"
            )
        if below != len(self._racks):
            raise ValueError(
                f"{below} switches are below the one at {self._sums.address}, which count their "
                f"own members, and racks names {len(self._racks)}: pass racks={{(host, port): "
                "ranks, ...}} with all of them, and the root's address to the coordinator"
            )

    def expect(self, ranks: Collection[int], h: int | None = None) -> None:
        """Have sums fire when `h` of these ranks have contributed; None: when all have.

        With `h` a round begins, and racks are told even what they should know: one that was
        restarted has forgotten it, and nobody is told.
        """
        if h is None:
            h = len(ranks)
        else:
            for place in self._racks:
                self._in_force.pop(place, None)
        if not self._racks:
            self._set(self._root, h)
            return
        parts = shares(h, [len(own.intersection(ranks)) for own in self._racks.values()])
        # The root first: else a rack that fires at a smaller share could complete its sum.
        self._set(self._root, sum(part > 0 for part in parts))
        for place, part in zip(self._racks, parts, strict=True):
            self._set(place, part or NEVER)

    def again(self) -> None:
        """Set it all again: a switch that was restarted has forgotten it."""
        in_force, self._in_force = self._in_force, {}
        for place, h in in_force.items():
            self._set(place, h)

    def hold(self) -> None:
        """Have nothing fire before `expect`."""
        self._set(self._root, NEVER)

    def flush(self) -> None:
        """Have the racks send up what they hold, and nothing after that before `expect`."""
        if not self._racks:
            return
        self.hold()
        for place in self._racks:
            self._set(place, 1)
            self._set(place, NEVER)
        time.sleep(ON_ITS_WAY)

    def _set(self, place: Place, h: int) -> None:
        if self._in_force.get(place) == h:
            return
        self._in_force.pop(place, None)  # not known, if the switch does not answer
        controller = self._controllers.get(place)
        if controller is None:
            self._sums._request(Action.SETH, Threshold(h))  # warns of no H, however large
        else:
            self._request(controller, Threshold(h))
        self._in_force[place] = h

    @staticmethod
    def _request(controller: Controller, threshold: Threshold) -> None:
        try:
            controller.request(Action.SETH, threshold)
        except CommandRefused as refused:
            if refused.status is not Status.NOT_MEMBER:
                raise
            controller.join()
            controller.request(Action.SETH, threshold)

    def close(self) -> None:
        """Close the sockets; their memberships end with their leases, or with the job."""
        for controller in self._controllers.values():
            controller.close()
