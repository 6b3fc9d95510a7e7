"""The other workers of an asynchronous job: where they are, how they stand, what they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .directory import Directory, Where, pack
from .giving import Server
from .snapshots import NotThere, Offer, Unreachable, ask
from .standing import Standing


class Survey(NamedTuple):
    """Who has answered, where each is, and whether nobody was left out."""

    found: dict[Standing, Where]
    all_asked: bool


class Peers:
    """Asks the others, and answers them.

    Args:
        directory: whom a version tells of.
        here: local (host, port) of the worker.
        job: the job's number.
        key: of a keyed job.
        offer: what is answered, see `Server`.
        size: bytes of a state.
        stop: whether to ask no more.
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
        self._most = 2 * size + (1 << 20)  # one of other arrays is taken too, to be told of
        self._stop = stop
        self._server = Server(*here, job, key, offer)
        self.where = self._server.where
        self.identity = int.from_bytes(pack(self.where), "big")

    def survey(self) -> Survey:
        """Ask all that are known where they stand; who is no more is forgotten."""
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
        """The state of the worker there, and whom it knows; None: it cannot be had now."""
        try:
            offer = ask(where, self._job, self._key, self._most)
        except (NotThere, Unreachable):
            return None
        self.directory.learn_packed(offer.addresses)
        return None if offer.standing.version is None else offer

    @property
    def given(self) -> int:
        """States that others took from here to the end."""
        return self._server.given

    @property
    def dropped(self) -> int:
        """Connections that were cut off: too slow, too many, or no memory for them."""
        return self._server.dropped

    def close(self) -> None:
        """Answer nobody any more."""
        self._server.close()
