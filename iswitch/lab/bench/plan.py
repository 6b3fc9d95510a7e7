"""Describes a benchmark: its sizes, networks and strategies, and its length."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal, get_args, get_origin

from iswitch.faults.units import BYTES, QuantityError, Unit

ELEMENT = 4  # bytes of a float32
ALLREDUCE = "allreduce"
BARRIER = "barrier"  # which has no vector
FORWARD = "forward"  # no strategy: the switch sends every frame back, and adds nothing
ASYNC = "async"  # no strategy: asynchronous workers of the switch
STREAMS = ("ring", "ps", "tree")  # strategies over Python's TCP sockets
WARM = 2  # rounds before those in a row; they do not count, since caches hold other ways' data
SIZE = Unit("size", BYTES, "40kB")
SIZES = "ppo,ddpg,a2c,dqn"
P4_SIZES = "ppo,ddpg"  # a bmv2 needs seconds for a round of the others
OTHER_LITERALS = {"inf": inf, "true": True, "false": False}
IN_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
NO_LIMIT = ("0", "none", "unlimited")


@dataclass(frozen=True)
class Size:
    """The size of a vector. `compute`: seconds to compute such a gradient, if known."""

    label: str
    numel: int
    compute: float | None = None

    @property
    def bytes(self) -> int:
        """Return the size of all elements in bytes."""
        return self.numel * ELEMENT

    def divisible(self, workers: int) -> Size:
        """Return the size of a vector of equal blocks, one for each worker."""
        return replace(self, numel=-(-self.numel // workers) * workers)

    @classmethod
    def parse(cls, text: str) -> Size:
        """Read a name in PAPER such as `ppo`, or a size such as `40kB` of whole elements.

        Raises:
            QuantityError: the text is neither.
        """
        if text.lower() in PAPER:
            return PAPER[text.lower()]
        size = SIZE.parse(text)
        if not size:
            raise QuantityError(f"{text}: a vector has an element or more")
        return cls(text.strip(), max(1, round(size / ELEMENT)))


NOTHING = Size("no payload", 0)

# The gradients of the paper's four workloads; its KB and MB are of 1024. The computing is that of
# `iswitch train` on one core of a small cloud machine (38, 27, 1400 and 577 gradients a second).
PAPER = {
    "ppo": Size("40.02 KB", 10_247, 1 / 1400),
    "ddpg": Size("157.52 KB", 40_327, 1 / 577),
    "a2c": Size("3.31 MB", 866_439, 1 / 27),
    "dqn": Size("6.41 MB", 1_681_062, 1 / 38),
}


@dataclass(frozen=True)
class Way:
    """A strategy with its options, such as `ps:servers=2`, which is then its `label`."""

    label: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def servers(self) -> int:
        """Return the number of parameter servers, each on a host of its own.

        Raises:
            ValueError: the option has another value.
        """
        count = self.options.get("servers", 1) if self.name == "ps" else 0
        if not isinstance(count, int) or count < 0:
            raise ValueError(f"{self.label}: servers is how many hosts serve, such as ps:servers=2")
        return count

    @property
    def adds(self) -> bool:
        """Return whether all workers get the sum of the round."""
        return self.name not in (FORWARD, ASYNC) and not self.options.get("tau")

    @classmethod
    def parse(cls, text: str) -> Way:
        """Read NAME or NAME:OPTION=VALUE:...; a VALUE is a literal of Python, or text.

        Raises:
            ValueError: an option has no value.
        """
        name, *parts = text.strip().split(":")
        options: dict[str, Any] = {}
        for part in parts:
            key, equals, value = part.partition("=")
            if not equals:
                raise ValueError(f"{text!r}: write {name}:OPTION=VALUE, such as ps:servers=2")
            options[key] = literal(value)
        return cls(text.strip(), name, options)


def literal(text: str) -> Any:
    """Read a literal of Python, true, false or inf; return any other text as it is."""
    if text in OTHER_LITERALS:
        return OTHER_LITERALS[text]
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def fits(value: object, kind: Any) -> bool:
    """Return whether an option of a type can have a value; True and False are no numbers."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if alternatives := get_args(kind):
        return any(fits(value, one) for one in alternatives)
    return type(value) in ((int, float) if kind is float else (kind,))


def in_words(kind: Any) -> str:
    """Say what an option of a type takes, such as "true or false"."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    return " or ".join(IN_WORDS[one] for one in get_args(kind) or [kind] if one in IN_WORDS)


@dataclass(frozen=True)
class Setting:
    """A network: the short form of a topology, and the settings of all of its links."""

    form: str
    rate: str | None = None
    loss: str | None = None
    slowest: float | None = None  # bit/s, of the links of the form, if they have rates
    cable: str = "veth"  # of the switch's workers; one of CABLES

    @property
    def text(self) -> str:
        """Return the form with its settings, as `Topology.parse` takes it."""
        found = self.form
        for name, value in (("rate", self.rate), ("loss", self.loss)):
            found += f",{name}={value}" if value is not None else ""
        return found

    @property
    def said(self) -> str:
        """Return the form with its settings, and the cable if it is not the usual one."""
        return self.text + ("" if self.cable == "veth" else f", cable {self.cable}")


def described(collective: str, size: Size, setting: Setting) -> str:
    """Name what is called, with what, and where; an allreduce goes without saying."""
    what = "" if collective == ALLREDUCE else f"{collective}, "
    return f"{what}{size.label}, {setting.said}"


def networks(
    forms: Sequence[str], workers: Sequence[int], rates: Sequence[str], losses: Sequence[str]
) -> list[Setting]:
    """Combine forms, rates and losses; `star` and `rack` make a network for each number of workers.

    Args:
        forms: star, rack (three workers in each), a short form, or a .toml file.
        workers: numbers of workers.
        rates: rates of the links, as text.
        losses: loss of the links, as text.

    Raises:
        ValueError: a number of workers does not fill racks, or rates or losses are given for a
            .toml file, which sets its own.
    """
    full = []
    for form in forms:
        kind = form.strip()
        if kind == "star":
            full += [f"star:{n}" for n in workers]
        elif kind == "rack":
            for n in workers:
                if n < 6 or n % 3:
                    raise ValueError(
                        f"rack has three workers in each rack, so 6, 9, 12 and so on, not {n}; "
                        "name the form, such as rack:2x2"
                    )
                full.append(f"rack:{n // 3}x3")
        elif kind.endswith(".toml") and not {*rates, *losses} <= {*NO_LIMIT}:
            raise ValueError(
                f"{kind}: leave out --rate and --loss: the file says how its links are"
            )
        else:
            full.append(kind)
    given = [[None if x in NO_LIMIT else x for x in some] for some in (rates, losses)]
    return [Setting(form, rate, loss) for form in full for rate in given[0] for loss in given[1]]


def split(text: str) -> list[str]:
    """Split a list at its commas, except those before the settings of a topology."""
    return [part for part in re.split(r",(?![\w-]+=)", text) if part]


@dataclass(frozen=True)
class Plan:
    """A benchmark: the measurements to make.

    Attributes:
        ways: the strategies; all others are compared with the first.
        rounds: rounds of each way, size and network; None: as many as `seconds` allow.
        in_a_row: rounds of a turn without a pause; 1: single rounds from a common start.
        seconds: seconds to measure each size and network for.
        least: least number of rounds, however long they take.
        warmup: turns before that, which do not count.
        iterations: more rounds of each way, in which workers also compute and update.
        compute: seconds that workers compute (sleep); None: the size's own.
        free: 0: off. Otherwise all turns are iterations. A turn of an asynchronous way is this
            number of iterations without a common start, of which the first ones do not count.
        collectives: what is called; each is measured with every size.
    """

    sizes: Sequence[Size]
    settings: Sequence[Setting]
    ways: Sequence[Way]
    world: str = "loopback"
    rounds: int | None = None
    in_a_row: int = 1
    seconds: float = 5.0
    least: int = 20
    warmup: int = 3
    iterations: int = 0
    compute: float | None = None
    free: int = 0
    collectives: Sequence[str] = (ALLREDUCE,)

    def calls(self, workers: int = 1) -> list[tuple[str, Size]]:
        """Combine collectives and sizes; a barrier has one size.

        Args:
            workers: number of workers, into whose blocks vectors are divided, unless in allreduces.
        """
        found = []
        for collective in self.collectives:
            sizes = self.sizes if collective != BARRIER else [NOTHING]
            n = workers if collective != ALLREDUCE else 1
            found += [(collective, size.divisible(n)) for size in sizes]
        return found

    @property
    def cells(self) -> int:
        """Return the number of combinations of collective, size and network."""
        return len(self.calls()) * len(self.settings)

    def ways_on(self, setting: Setting) -> list[Way]:
        """Choose the strategies for a network: an asynchronous job needs a single switch."""
        one_switch = not self.free or self.world == "sim" or setting.form.startswith("star")
        return [way for way in self.ways if one_switch or way.adds]

    def computing(self, collective: str, size: Size) -> float | None:
        """Find the seconds of an emulated computation; None: no iterations are measured."""
        if collective != ALLREDUCE or not (self.iterations or self.free):
            return None
        return size.compute if self.compute is None else self.compute
