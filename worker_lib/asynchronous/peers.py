"""The other workers of an asynchronous job, and how this one catches up with them.

`standing.py` has the rules.
"""

from __future__ import annotations

import time

from iswitch.core.format.wire import NO_RANK, VERSIONS_KEPT, Vector, round_distance
from worker_lib import telling
from worker_lib.errors import WorkerError

from .directory import Directory, Where, pack
from .giving import Server
from .membership import Membership
from .snapshots import PATIENCE, NotThere, Offer, Unreachable, ask
from .standing import Standing, Way, choose, is_needed
from .state import State

GREETING_PAUSE = 0.05  # seconds between two greetings; doubles
GREETING_CEILING = 1.0
AGAIN_PAUSE = 0.02  # seconds until a worker that is behind asks the others again


class Peers:
    """Asks the other workers for standings and states, and answers their requests.

    Args:
        membership: this worker's.
        state: this worker's; others can take it.
        directory: holds the addresses of the others.
        num_workers: number of workers in the job.

    Attributes:
        server: answers the requests of others.
        taken: number of states taken from others.
        is_first: whether the others begin with this worker's state.

    Raises:
        OSError: there can be no socket for requests.
    """

    def __init__(
        self, membership: Membership, state: State, directory: Directory, num_workers: int
    ) -> None:
        self._membership, self._session = membership, membership.session
        self._state, self._directory = state, directory
        self._num_workers = num_workers
        self._job, self._key = self._session.job, self._session.terms.key
        # Accept wrong sizes, too, so that an error reports them.
        self._most = 2 * state.nbytes + (1 << 20)
        self._greeted = (float("-inf"), GREETING_PAUSE)
        self.taken = 0
        self.is_first = False
        here = membership.port.address
        with state.lock:  # an offer, which names this worker, waits for it
            self.server = Server(here.host, here.port, self._job, self._key, self._offer)
            self._where = self.server.where
            self._identity = int.from_bytes(pack(self._where), "big")

    def entry(self, counts: bool) -> Vector:
        """Return the extra elements of a contribution; `counts`: it is not only a greeting."""
        dtype = self._session.shape.dtype.numpy
        return self._directory.entry(self._session.rank, self._where, dtype, counts)

    def survey(self) -> tuple[dict[Standing, Where], bool]:
        """Ask all known workers for their standings; forget the addresses of those gone.

        Returns:
            the addresses by standing, and whether all workers have answered or have certainly gone.
        """
        found: dict[Standing, Where] = {}
        all_asked = True
        for where in sorted(self._directory.addresses - {self._where}):
            if self._membership.left.is_set():
                return found, False
            try:
                found[ask(where, self._job, self._key).standing] = where
            except NotThere:
                self._directory.forget(where)
            except Unreachable:
                all_asked = False
        return found, all_asked

    def all_have_begun(self) -> bool:
        """Return whether all known workers have a state, from this worker or from another."""
        found, all_asked = self.survey()
        return all_asked and all(other.version is not None for other in found)

    def greet(self) -> None:
        """Tell the others this worker's address by zeros that do not count as a contribution."""
        last, pause = self._greeted
        now = time.monotonic()
        with self._membership.changed:
            if now - last >= pause and self._session.can_contribute:
                self._membership.contribute(0, self.entry(counts=False))
                self._greeted = now, min(2 * pause, GREETING_CEILING)

    def catch_up(self) -> None:
        """Ask the others where they stand, and take one step towards them."""
        changed = self._membership.changed
        with changed:
            own = self._standing()
        found, all_asked = self.survey()
        if own.version is None:  # only workers that greeted since the start are known
            all_asked &= len(found) >= self._num_workers - 1 and self._is_listed()
        way, whose = choose(own, found.keys(), all_asked)
        if way is Way.TAKE and self._take(found[whose]):
            return
        if way is Way.GO_ON:
            with self._state.lock, changed:
                if self._session.behind:
                    self.is_first = own.version is None
                    self._tell_of_lost(own.version, self._session.newest)
                    self._resume_at(self._session.newest)
            return
        if own.version is None and self._session.rank != NO_RANK:
            self.greet()
        with changed:
            changed.wait_for(self._membership.left.is_set, AGAIN_PAUSE)

    def see_off(self, until: float) -> None:
        """Wait until no other worker needs this one's state, which goes with it when it leaves.

        A worker that gives no answer is waited for a little only: it may be gone for good.

        Args:
            until: when to leave all the same, by the monotonic clock.
        """
        changed, ended = self._membership.changed, self._membership.has_ended
        began, is_told = time.monotonic(), False
        while not ended() and (now := time.monotonic()) < until:
            with changed:
                own, newest = self._standing(), self._session.newest
            if own.version is None:
                return
            found, all_asked = self.survey()
            needed = is_needed(own, found.keys(), newest)
            if not needed and (all_asked or time.monotonic() >= began + PATIENCE):
                return
            if needed and not is_told and now >= began + telling.SILENT:
                is_told = True
                telling.of_leaving(self._job, until - now)
            with changed:
                changed.wait_for(ended, AGAIN_PAUSE)

    def _tell_of_lost(self, version: int | None, newest: int) -> None:
        """Say so if nobody has versions any more that the switch has made, and no longer keeps."""
        if version is not None and round_distance(newest, version) > VERSIONS_KEPT:
            telling.of_lost(self._job, version, newest)

    def _is_listed(self) -> bool:
        """Return whether a version has listed this worker, so that others can take its state."""
        rank, directory = self._session.rank, self._directory
        if rank == NO_RANK:
            return False
        return self._where in directory.addresses or rank >= directory.places

    def _take(self, where: Where) -> bool:
        """Take the state of the worker at an address; return whether it could be had.

        Raises:
            WorkerError: the state there has another size.
        """
        try:
            offer = ask(where, self._job, self._key, self._most)
        except (NotThere, Unreachable):
            return False
        self._directory.learn_packed(offer.addresses)
        if offer.standing.version is None:
            return False
        if len(offer.state) != self._state.nbytes:
            raise WorkerError(
                f"the state of the worker at {where} has {len(offer.state)} bytes, this one's "
                f"{self._state.nbytes}; `state` must be of the same arrays in all workers"
            )
        with self._state.lock, self._membership.changed:
            self._state.unpack(offer.state)
            self.taken += 1
            self._resume_at(offer.standing.version)
        return True

    def _resume_at(self, version: int) -> None:
        """Resume from the present state, at a version; the caller holds both locks."""
        self._session.resume_at(version, time.monotonic())
        self._state.reach(version)
        self._membership.changed.notify_all()

    def _offer(self, wanted: bool) -> Offer:
        """Return this worker's standing and known addresses, and its packed state if `wanted`."""
        with self._state.lock, self._membership.changed:
            standing, mark = self._standing(), self._state.mark
            packs = wanted and standing.version is not None
            state = self._state.pack() if packs else b""
            return Offer(standing, self._directory.pack(), state, mark)

    def _standing(self) -> Standing:
        session, version = self._session, self._state.version
        # A version that has arrived and is not applied yet will still change its standing.
        at_rest = version is None or version == session.version
        if self._membership.failure is not None:  # the state may be half of two versions
            return Standing(self._identity, None, True)
        return Standing(self._identity, version, session.behind and at_rest)
