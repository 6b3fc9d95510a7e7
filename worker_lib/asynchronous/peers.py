"""The other workers of an asynchronous job: their addresses, standings and states."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .directory import Directory, Where, pack
from .giving import Server
from .snapshots import NotThere, Offer, Unreachable, ask
from .standing import Standing


class Survey(NamedTuple):
    """The standings of the workers that answered.

    Attributes:
        found: address of each worker that answered, by its standing.
        all_asked: whether all known workers answered or are gone for certain.
    """

    found: dict[Standing, Where]
    all_asked: bool


class Peers:
    """Asks the other workers for standings and states, and answers their requests.

    Args:
        directory: holds the addresses of the others.
        here: local (host, port) of the worker.
        job: the job's number.
        key: the key of a keyed job; None: no key.
        offer: returns this worker's offer, see `Server`.
        size: bytes of a packed state.
        stop: returns whether to stop asking.
    """

    def __init__(
        self,
        directory: Directory,
        here: Where,
        job: int,
        key: bytes | None,
        offer: Callable[[bool], Offer],
        size: int,
        stop: Callable[[], bool],
    ) -> None:
        self.directory = directory
        self._job, self._key = job, key
        self._most = 2 * size + (1 << 20)  # accept wrong sizes too, so that an error reports them
        self._stop = stop
        self._server = Server(*here, job, key, offer)
        self.where = self._server.where
        self.identity = int.from_bytes(pack(self.where), "big")

    def survey(self) -> Survey:
        """Ask all known workers for their standings; forget the addresses of those gone."""
        found: dict[Standing, Where] = {}
        all_asked = True
        for where in self.directory.addresses - {self.where}:
            if self._stop():
                return Survey(found, False)
            try:
                found[ask(where, self._job, self._key).standing] = where
            except NotThere:
                self.directory.forget(where)
            except Unreachable:
                all_asked = False
        return Survey(found, all_asked)

    def state_of(self, where: Where) -> Offer | None:
        """Fetch the state of the worker at an address, and learn the addresses that it knows.

        None: the worker did not answer, or has no state yet.
        """
        try:
            offer = ask(where, self._job, self._key, self._most)
        except (NotThere, Unreachable):
            return None
        self.directory.learn_packed(offer.addresses)
        return None if offer.standing.version is None else offer

    @property
    def given(self) -> int:
        """Return the number of states that others have taken completely."""
        return self._server.given

    @property
    def dropped(self) -> int:
        """Return the number of connections cut off as too slow, too many, or for lack of memory."""
        return self._server.dropped

    def close(self) -> None:
        """Stop answering requests."""
        self._server.close()
