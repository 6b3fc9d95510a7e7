"""The faults of links that `--impair` and `--seed` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from iswitch.faults.impairment import DIRECTIONS, Impairment, Impairments
from iswitch.faults.units import QuantityError
from iswitch.outside import UsageError

from .settings import Settings

MOST_DIGITS = 40  # of a seed


class Where(NamedTuple):
    """The directions of a port that an impairment is for."""

    port: int
    directions: tuple[str, ...]


def impairments(settings: Settings) -> tuple[Impairments, int]:
    """Read the impairments by port and direction, and the seed of their chances.

    Raises:
        UsageError: an impairment is written wrongly, or two contradict each other.
    """
    if settings.seed is not None and settings.seed < 0:
        raise UsageError(f"--seed {settings.seed}: 0 or more")
    if settings.seed is not None and not settings.impair:
        raise UsageError("--seed is of the chances of --impair; name one, or leave it out")
    seed = settings.seed
    found: dict[tuple[int, str], Impairment] = {}
    for text in settings.impair:
        *words, spec = text.split(":")
        where = place(text, words, settings.ports)
        spec, named = named_seed(spec)
        if named is not None and seed not in (None, named):
            raise UsageError(
                f"--impair {text}: the seed is {seed} already; all chances have one, so name it "
                "once, by seed=N in an --impair or by --seed N"
            )
        seed = seed if named is None else named
        try:
            impairment = Impairment.parse(spec)
        except QuantityError as error:
            raise UsageError(f"--impair {text}: {error}") from None
        for direction in where.directions:
            if (where.port, direction) in found:
                raise UsageError(
                    f"--impair {text}: that direction is impaired already; write all of it in one "
                    "--impair, with commas"
                )
            found[where.port, direction] = impairment
    return found, seed or 0


def shm_links(settings: Settings) -> dict[int, Impairment]:
    """Read the links with a rate that packets in shared memory cross, by port.

    Raises:
        UsageError: a link is written wrongly, or has no rate or other faults.
    """
    found: dict[int, Impairment] = {}
    for text in settings.shm_links:
        ifname, _, spec = text.partition(":")
        try:
            link = Impairment.parse(spec)
        except QuantityError as error:
            raise UsageError(f"--shm-link {text}: {error}") from None
        if ifname not in settings.ports:
            raise UsageError(
                f"--shm-link {text}: name one of --ports first, as in "
                f"{settings.ports[0]}:rate=10Gbit"
            )
        if link != Impairment(rate=link.rate, queue=link.queue) or link.rate is None:
            raise UsageError(
                f"--shm-link {text}: such a link has a rate, and perhaps a queue; all else is "
                "--impair's"
            )
        found[settings.ports.index(ifname)] = link
    return found


def place(text: str, words: list[str], ports: Sequence[str]) -> Where:
    """Read the port and the direction before a SPEC.

    Args:
        text: the whole option, for messages.
        words: the words before the SPEC.
        ports: the names of the switch's ports; none: it has a UDP socket.

    Raises:
        UsageError: they name no port or no direction.
    """
    port = 0
    directions: tuple[str, ...] = DIRECTIONS
    if ports:
        if not words or words[0] not in ports:
            raise UsageError(
                f"--impair {text}: name one of --ports {','.join(ports)} first, such as "
                f"--impair {ports[0]}:loss=1%"
            )
        port, words = ports.index(words[0]), words[1:]
    if words and words[0] in DIRECTIONS:
        directions, words = (words[0],), words[1:]
    if words:
        raise UsageError(
            f"--impair {text}: {':'.join(words)!r} is no direction; write in, out, or neither "
            "for both, such as --impair out:loss=1%"
        )
    return Where(port, directions)


def named_seed(spec: str) -> tuple[str, int | None]:
    """Split a SPEC into the text without `seed=N`, and N.

    Raises:
        UsageError: there are several seeds, or nothing else.
    """
    parts = spec.split(",")
    seeds = [part for part in parts if part.partition("=")[0].strip() == "seed"]
    if not seeds:
        return spec, None
    text = seeds[0].partition("=")[2].strip()
    if len(seeds) > 1 or not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        raise UsageError(f"--impair {spec}: write one seed=N, N a whole number of 0 or more")
    rest = [part for part in parts if part not in seeds]
    if not rest:
        raise UsageError(f"--impair {spec} impairs nothing; write loss=1%,{seeds[0]}, or --seed")
    return ",".join(rest), int(text)
