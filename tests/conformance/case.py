"""What a case is, how it is registered and run, and the bench of sockets it works with."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tests.conformance.client import Address, Peer, wait_readable
from tests.conformance.expectations import expect_sum
from tests.conformance.packets import CaseFailure, CaseSkipped, expect_equal
from tests.conformance.wire import Action, Shape, Status

FAREWELL = 0.3  # seconds allowed for the answers to a finished case's Leaves


class Bench:
    """A case's own sockets and job numbers on one switch."""

    def __init__(
        self,
        switch: Address,
        jobs: Iterator[int],
        keyed: Iterator[tuple[int, bytes]],
        *,
        lossy: bool = False,
    ) -> None:
        self._switch = switch
        self._lossy = lossy
        self._jobs = jobs
        self._keyed = keyed
        self._key: bytes | None = None  # of the job
        self._peers: list[Peer] = []
        self.job = next(jobs) & 0xFFFF

    def new_job(self) -> int:
        """Go on with a job number nobody has used yet."""
        self.job = next(self._jobs) & 0xFFFF
        return self.job

    def keyed_job(self) -> bytes:
        """Go on with a keyed job, of which all further sockets have the key; returns it.

        Raises:
            CaseSkipped: nobody has named one, or the switch knows of no key for it.
        """
        job, key = next(self._keyed, (None, None))
        if job is None or key is None:
            raise CaseSkipped("no keyed job is named: --keys FILE, as the switch has it")
        self.job = job
        answer = self.stranger(Shape()).request(Action.LEAVE)
        if answer.status != Status.DENIED:
            got = Status(answer.status).name
            raise CaseSkipped(f"the switch has no key for job {job}: {got} to who has none")
        self._key = key
        return key

    def stranger(self, shape: Shape, *, gro: bool = False) -> Peer:
        """A socket that has joined nothing."""
        peer = Peer(self._switch, self.job, shape, gro=gro, key=self._key, lossy=self._lossy)
        self._peers.append(peer)
        return peer

    def workers(
        self, count: int, shape: Shape, *, expected: int = 0, gro: bool = False
    ) -> list[Peer]:
        """So many workers that have joined, one after the other."""
        peers = [self.stranger(shape, gro=gro) for _ in range(count)]
        for peer in peers:
            peer.join(expected=expected)
        return peers

    def controller(self, shape: Shape) -> Peer:
        """A controller that has joined leaving everything agreed zero."""
        peer = self.stranger(shape)
        peer.join_as_controller()
        return peer

    def violations(self) -> list[str]:
        """Everything the switch sent to any socket that the page does not allow."""
        for peer in self._peers:
            peer.pump()
        return [violation for peer in self._peers for violation in peer.violations]

    def close(self) -> None:
        """Leave all jobs, so that nothing is relayed to sockets that are gone, and close."""
        members = [peer for peer in self._peers if peer.joined is not None]
        for peer in members:
            peer.send_leave()
        deadline = time.monotonic() + FAREWELL
        for peer in members:
            wait_readable([peer], deadline - time.monotonic())
        for peer in self._peers:
            peer.close()


@dataclass(frozen=True, slots=True)
class Case:
    """A promise of the page and the function that holds a switch to it.

    `lossless` says why it needs a path that loses and doubles nothing; empty: it does not.
    """

    name: str
    section: str
    promise: str
    run: Callable[[Bench], None]
    lossless: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case went: `result` is passed, failed or skipped."""

    name: str
    section: str
    result: str
    seconds: float
    message: str = ""


REGISTERED: dict[str, Case] = {}


def case(
    section: str, lossless: str = ""
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Register a function as the case of its name; its docstring's first line is the promise."""

    def register(function: Callable[[Bench], None]) -> Callable[[Bench], None]:
        name = function.__name__
        promise = (function.__doc__ or "").strip().splitlines()[0]
        if name in REGISTERED:
            raise ValueError(f"two cases of the name {name}")
        REGISTERED[name] = Case(name, section, promise, function, lossless)
        return function

    return register


def run(
    case_: Case,
    switch: Address,
    jobs: Iterator[int],
    keyed: Iterator[tuple[int, bytes]],
    *,
    lossy: bool = False,
) -> None:
    """Run one case.

    Args:
        case_: which.
        switch: where it listens.
        jobs: numbers, each used once.
        keyed: jobs that have a key at the switch, and these.
        lossy: the path to the switch loses and doubles packets.

    Raises:
        CaseFailure: the switch did not do what the page promises.
        CaseSkipped: this machine, the switch or the path is not one to run the case on.
    """
    if lossy and case_.lossless:
        raise CaseSkipped(f"needs a lossless path: {case_.lossless}")
    bench = Bench(switch, jobs, keyed, lossy=lossy)
    try:
        case_.run(bench)
        expect_equal(bench.violations(), [], "packets the page does not allow")
    finally:
        bench.close()


def judge(
    case_: Case,
    switch: Address,
    jobs: Iterator[int],
    keyed: Iterator[tuple[int, bytes]],
    *,
    lossy: bool = False,
) -> Outcome:
    """Run one case and say how it went."""
    start = time.monotonic()
    result, message = "passed", ""
    try:
        run(case_, switch, jobs, keyed, lossy=lossy)
    except CaseFailure as failure:
        result, message = "failed", str(failure)
    except CaseSkipped as skipped:
        result, message = "skipped", str(skipped)
    return Outcome(case_.name, case_.section, result, time.monotonic() - start, message)


def vectors(count: int, shape: Shape, seed: int = 0) -> list[np.ndarray]:
    """So many vectors of small whole numbers, whose sums are exact in every element format."""
    drawn = np.random.default_rng([seed, count]).integers(-40, 41, size=(count, shape.size))
    return [row.astype(shape.numpy) for row in drawn]


def first_round(peer: Peer) -> int:
    """The round the answer to this peer's Join named."""
    if peer.joined is None:
        raise ValueError("the peer has not joined: call join() first")
    return peer.joined.round


def play(workers: list[Peer], round_: int) -> np.ndarray:
    """One ordinary round: everybody contributes, everybody receives the right aggregate."""
    shape = workers[0].shape
    inputs = vectors(len(workers), shape, seed=round_)
    for worker, vector in zip(workers, inputs, strict=True):
        worker.contribute(round_, vector)
    want = shape.fold(*inputs)
    expect_sum(workers, round_, want)
    return want
