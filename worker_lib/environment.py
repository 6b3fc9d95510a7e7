"""What `iswitch run` tells a worker in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from iswitch.keyfiles import key_in

from . import arguments


class Place(NamedTuple):
    """The arguments of a `Worker` that depend on where it runs."""

    switch: tuple[str, int]
    job: int
    num_workers: int
    key: bytes | None


def read(environment: Mapping[str, str]) -> Place:
    """The place of a worker, from ISWITCH_SWITCH, ISWITCH_JOB and WORLD_SIZE; and its key, if any.

    Raises:
        ValueError: one of them lacks or is wrong; the message names it.
    """
    where = text(environment, "ISWITCH_SWITCH")
    host, _, port = where.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= 65535:
        raise ValueError(f"ISWITCH_SWITCH is {where!r}: write HOST:PORT, such as 127.0.0.1:26963")
    job = arguments.job_number(number(environment, "ISWITCH_JOB"))
    return Place((host, int(port)), job, number(environment, "WORLD_SIZE"), key_in(environment))


def number(environment: Mapping[str, str], name: str) -> int:
    """A variable that holds a whole number."""
    value = text(environment, name)
    if not (value.isascii() and value.isdecimal()):
        raise ValueError(f"{name} is {value!r}: a whole number is wanted")
    return int(value)


def text(environment: Mapping[str, str], name: str) -> str:
    """A variable that has to be there."""
    if not environment.get(name):
        raise ValueError(
            f"{name} is not set: start this with `iswitch run --topology star:4 -- COMMAND`, "
            "which sets it, or call Worker(...) with arguments"
        )
    return environment[name]
