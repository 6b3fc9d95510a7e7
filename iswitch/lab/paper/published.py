"""What three papers have published, where it was read, and why ours differs.

Each input and each headline has a mark:

    paper       read in the paper, its abstract, or its authors' pages
    data sheet  read in the public description of a device
    derived     worked out from other publications
    estimate    neither is public
    memory      remembered from the paper; its text could not be opened to verify it
    measured    measured here
    choice      chosen here
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

ISWITCH, SWITCHML, ATP = "iswitch", "switchml", "atp"
TITLES: Mapping[str, str] = {
    ISWITCH: "Li et al., Accelerating Distributed Reinforcement Learning with In-Switch Computing, "
    "ISCA 2019",
    SWITCHML: "Sapio et al., Scaling Distributed Machine Learning with In-Network Aggregation, "
    "NSDI 2021",
    ATP: "Lao et al., ATP: In-network Aggregation for Multi-tenant Learning, NSDI 2021",
}
REASONS: Mapping[str, str] = {
    "computing": "The computing times decide the shares, and the paper's own are not public.",
    "transport": "ring and ps have an ideal transport here: no slow start, no loss, no "
    "acknowledgements. The paper's went through TCP and a framework, which use only a part of a "
    "link and take time for each message.",
    "server": "A server adds in no time here.",
    "returns": "The paper's asynchronous speedup is of the time to a return, to which fresher "
    "gradients contribute; the one here is of iterations (iswitch paper --returns).",
    "hosts": "What a packet costs a host is an estimate; it weighs most with small vectors.",
    "headers": "The last packets of a vector wait for their way to the switch and back; a link is "
    "idle meanwhile.",
    "training": "The paper compares whole trainings, which gain no more than aggregation alone, "
    "compared here. So the paper's NCCL used its links less well than our ring does.",
    "sharing": "The paper's jobs compete with each other for links and servers; here each job has "
    "links of its own, and a fixed part of the switch's slots.",
}


class Headline(NamedTuple):
    """A published number.

    Attributes:
        paper: a key of TITLES.
        key: which of our values stands beside it.
        what: what it is, in words.
        value: the number; a share is between 0 and 1.
        unit: "x" or "%".
        mark: where it was read.
        reasons: keys of REASONS.
    """

    paper: str
    key: str
    what: str
    value: float
    unit: str
    mark: str
    reasons: tuple[str, ...]


class Input(NamedTuple):
    """Something that our values depend on: what, its value in words, its mark, its source."""

    paper: str
    what: str
    value: str
    mark: str
    source: str


_SLOW = ("computing", "transport", "hosts", "server")
_ALL = ("computing", "transport", "server", "returns")
_GRADIENTS = {"dqn": "6.41 MB", "a2c": "3.31 MB", "ppo": "40.02 KB", "ddpg": "157.52 KB"}
_SYNC = {"dqn": 3.66, "a2c": 2.55, "ppo": 1.72, "ddpg": 1.83}
_RING = {"dqn": 1.97, "a2c": 1.62, "ppo": 0.91, "ddpg": 0.90}
_ASYNC = {"dqn": 3.71, "a2c": 3.14, "ppo": 1.92, "ddpg": 1.56}

HEADLINES: tuple[Headline, ...] = (
    Headline(ISWITCH, "sync", "largest synchronous speedup", 3.66, "x", "paper", _SLOW),
    Headline(ISWITCH, "async", "largest asynchronous speedup", 3.71, "x", "paper", _ALL),
    Headline(ISWITCH, "share", "largest share of communication", 0.832, "%", "paper",
             ("computing", "transport", "hosts")),
    *(Headline(ISWITCH, f"sync {name}", f"synchronous over ps, {label}", _SYNC[name], "x",
               "memory", _SLOW) for name, label in _GRADIENTS.items()),
    *(Headline(ISWITCH, f"ring {name}", f"ring over ps, {label}", _RING[name], "x", "memory",
               _SLOW) for name, label in _GRADIENTS.items()),
    *(Headline(ISWITCH, f"async {name}", f"asynchronous over ps, {label}", _ASYNC[name], "x",
               "memory", _ALL) for name, label in _GRADIENTS.items()),
    Headline(SWITCHML, "over rdma", "8 workers, 100 Gbit/s, largest over NCCL, RDMA", 2.27,
             "x", "paper", ("training", "transport")),
    Headline(SWITCHML, "over tcp", "8 workers, 100 Gbit/s, largest over NCCL, TCP", 5.55, "x",
             "paper", ("training", "transport")),
    *(Headline(SWITCHML, f"line {workers} {rate}",
               f"{workers} workers, {rate[:-4]} Gbit/s: of the line rate", 1.0, "%", "paper",
               ("headers",)) for rate in ("10Gbit", "100Gbit") for workers in (8, 16)),
    Headline(ATP, "throughput least", "8 workers, 100 Gbit/s, largest over one system", 1.38,
             "x", "paper", ("computing", "sharing", "transport")),
    Headline(ATP, "throughput most", "8 workers, 100 Gbit/s, largest over another", 1.66, "x",
             "paper", ("computing", "sharing", "transport")),
)  # fmt: skip
