"""Names a group's switch, and lets the group's processes find one another there.

torch keeps a store in one process, whose address all others must learn. Without a URL it is in
MASTER_ADDR and MASTER_PORT. With a URL the switch tells it: rank 0 contributes the address of its
store, all others contribute zeros, and the sum is the address. MASTER_ADDR and MASTER_PORT then
count only under torchrun, which sets them itself; elsewhere they may be another run's.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed import DistStoreError, default_pg_timeout
from torch.distributed.rendezvous import rendezvous as torchs_rendezvous

from iswitch.core.format.wire import PORT
from iswitch.system.keyfiles import key_in
from worker_lib import arguments, environment, naming
from worker_lib.worker import Worker

LAST_JOB = 0xFFFF
SCHEME = "iswitch"  # of URLs: the name of the backend
JOBS_OF_A_GROUP = 3  # barrier, bytes, and gradients
FORM = f"{SCHEME}://HOST:PORT/JOB, such as {SCHEME}://127.0.0.1:{PORT}/7"
ENVIRONMENT = (
    f"name switch and job: init_method='{SCHEME}://HOST:PORT/JOB', or ISWITCH_SWITCH=HOST:PORT and "
    "ISWITCH_JOB=JOB in the environment (`iswitch run` sets them)"
)


class JobAddress(NamedTuple):
    """A switch, and the first of the job numbers that a run takes there."""

    switch: tuple[str, int]
    job: int

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return the place that a URL names; ignore its query.

        Raises:
            ValueError: the URL names no place; the message shows the form.
        """
        parts = urlsplit(url)
        try:
            port = PORT if parts.port is None else parts.port
            job = int(parts.path.removeprefix("/"))
        except ValueError:
            raise ValueError(f"{url!r}: write {FORM}") from None
        if parts.scheme != SCHEME or not parts.hostname:
            raise ValueError(f"{url!r}: write {FORM}")
        switch = arguments.address("switch", (parts.hostname, port), least_port=1)
        return cls(switch, arguments.job_number(job))

    @classmethod
    def from_env(cls, variables: Mapping[str, str]) -> Self:
        """Read the place from ISWITCH_SWITCH and ISWITCH_JOB.

        Raises:
            ValueError: one of these variables is missing or wrong.
        """
        for name in "ISWITCH_SWITCH", "ISWITCH_JOB":
            if not variables.get(name):
                raise ValueError(f"backend 'iswitch': {name} is not set: {ENVIRONMENT}")
        switch = environment.address(variables, "ISWITCH_SWITCH", f"127.0.0.1:{PORT}")
        return cls(switch, environment.job_number(variables))

    def agree_with(self, variables: Mapping[str, str], given: str) -> Self:
        """Check that the environment, such as that of `iswitch run`, names no other switch or job.

        Args:
            variables: the environment.
            given: where this place was named, for the message.

        Raises:
            ValueError: the environment names another one, so the address is ambiguous.
        """
        told = {name: variables.get(name, "") for name in ("ISWITCH_SWITCH", "ISWITCH_JOB")}
        same = not told["ISWITCH_JOB"] or told["ISWITCH_JOB"] == str(self.job)
        if told["ISWITCH_SWITCH"]:
            example = f"127.0.0.1:{PORT}"
            there = environment.address(variables, "ISWITCH_SWITCH", example)
            same &= there == self.switch or _found(there) == _found(self.switch)
        if not same:
            named = " ".join(f"{name}={value}" for name, value in told.items() if value)
            raise ValueError(
                f"{given} contradicts the environment, which has {named} (`iswitch run` sets "
                "them): say nothing of a switch in the script, and these are used; or unset them"
            )
        return self

    def check_room(self, used: int = 0) -> None:
        """Check that job numbers are left for another group; groups have taken `used` so far.

        Raises:
            ValueError: none is left.
        """
        most = LAST_JOB - JOBS_OF_A_GROUP
        if self.job + used > most:
            raise ValueError(
                f"job {self.job}: a group takes job numbers after that of its run, usually three"
                + f", and the groups before have taken {used}" * (used > 0)
                + f"; {LAST_JOB} is the last, so give the run a smaller one (ISWITCH_JOB, "
                f"`iswitch run --job`, or the URL), {most} at most"
            )

    @property
    def url(self) -> str:
        """Return the place's URL, iswitch://HOST:PORT/JOB."""
        (host, port), job = self
        return f"{SCHEME}://{host}:{port}/{job}"

    @property
    def near_address(self) -> str:
        """Return this machine's own address on the route to the switch."""
        port = arguments.port(self.switch, environment.ANY)
        try:
            return str(port.socket.getsockname()[0])
        finally:
            port.close()


def rendezvous(
    url: str, timeout: timedelta = default_pg_timeout, **_: Any
) -> Iterator[tuple[Store, int, int]]:
    """Serve `init_method="iswitch://HOST:PORT/JOB"`: yields (store, rank, world size).

    Rank and world size are read from the URL, or else from the environment.

    Raises:
        ValueError: the URL has another form, or rank or world size are missing or wrong.
        WorkerError: not all processes came to the switch in time.
    """
    place = JobAddress.from_url(url).agree_with(os.environ, f"init_method={_plain(url)!r}")
    query = dict(parse_qsl(urlsplit(url).query))
    size = _number(query, "world_size", environment.size(os.environ), "WORLD_SIZE")
    rank = _number(query, "rank", environment.rank(os.environ, size), "RANK")
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of {size}: ranks are 0 to world_size - 1")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store: Store = next(torchs_rendezvous("env://", rank, size, timeout=timeout))[0]
    else:
        store = _store_through_the_switch(place, rank, size, timeout)
    store.set(key_of(rank), place.url)
    yield store, rank, size
    raise RuntimeError(f"a process that was lost cannot come back by {SCHEME}://: start anew")


def key_of(rank: int) -> str:
    """Return the store's key under which a rank names its switch; ranks may have different ones."""
    return f"iswitch/place/{rank}"


def jobs_taken(store: Any, rank: int, size: int) -> int:
    """Return how many job numbers rank 0 says are taken; tell the others that this rank has come.

    Raises:
        DistStoreError: rank 0 did not say so within the store's timeout; names the missing ranks.
    """
    store.set(f"here/{rank}", "")
    try:
        return int(store.get("jobs taken"))
    except DistStoreError as error:
        # Where the store is rank 0's own, torch lets rank 0 wait in it until all have come.
        missing = [r for r in range(1, size) if not store.check([f"here/{r}"])] or [0]
        raise DistStoreError(
            f"{naming.listed(missing)} of {size} did not begin the group within "
            f"{store.timeout.total_seconds():g} s: start all, or pass a larger timeout"
        ) from error


def _plain(url: str) -> str:
    """Return a URL as the user gave it, without the rank and world size that torch adds."""
    return url.partition("?")[0]


def _found(switch: tuple[str, int]) -> tuple[str, int]:
    """Replace the name of a switch's host by its address, if that can be found."""
    with suppress(OSError):
        return socket.gethostbyname(switch[0]), switch[1]
    return switch


def _number(query: Mapping[str, str], name: str, told: int | None, variable: str) -> int:
    """Return a number from the call or, if missing there, from the environment."""
    if query.get(name):
        return environment.number(query, name)
    if told is None:
        raise ValueError(f"pass {name}=... to init_process_group, or set {variable}")
    return told


def _store_through_the_switch(place: JobAddress, rank: int, size: int, timeout: timedelta) -> Store:
    """Return a store in rank 0's process; all others learn its address by an allreduce."""
    told = np.zeros(2, np.int32)
    if rank == 0:
        host = place.near_address
        store = TCPStore(host, 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
        told[:] = int(ipaddress.IPv4Address(host)) - 2**31, store.port
    seconds = timeout.total_seconds()
    key = key_in(os.environ)
    worker = Worker(
        place.switch,
        place.job,
        told.size,
        size,
        rank=rank,
        dtype=np.int32,
        timeout=seconds,
        key=key,
    )
    with worker:
        number, port = worker.allreduce(told).tolist()
    if rank:
        host = str(ipaddress.IPv4Address(number + 2**31))
        store = TCPStore(host, port, size, is_master=False, timeout=timeout)
    return store
