"""Hosts of several accelerators, links of their own rates, and links that jobs share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from iswitch.faults.impairment import READERS
from iswitch.faults.units import QuantityError
from iswitch.outside import UsageError
from iswitch.sim.model.fabric import Fabric
from topologies import Host, Link, Switch, Topology, TopologyError

ACCELERATOR = "gpu"
USUAL = "nvlink2"
# Bit/s of an accelerator's link, in one direction, from public data sheets.
LOCAL: Mapping[str, int] = {
    "pcie3": 126_000_000_000,  # 16 lanes of 8 GT/s, 128 of 130 bits
    "pcie4": 252_000_000_000,
    "nvlink2": 1_200_000_000_000,  # of a V100: six of 25 GB/s
}
MOST = 64  # accelerators of a host: as many as a switch has members


def with_accelerators(topology: Topology, count: int, rate: int, delay: float) -> Topology:
    """Put accelerators in all hosts, each on a link to its host, which adds as a switch does.

    Args:
        topology: the network of the hosts.
        count: accelerators of each host.
        rate: bit/s of their links.
        delay: seconds of their links, one way.

    Raises:
        UsageError: there are too many of them.
    """
    gpus = [f"{ACCELERATOR}{i + 1}" for i in range(count * len(topology.hosts))]
    inside = [
        Link(gpu, topology.hosts[i // count].name, rate=rate, delay=delay)
        for i, gpu in enumerate(gpus)
    ]
    adding = [Switch(host.name, topology.switch_of(host.name)) for host in topology.hosts]
    try:
        return replace(
            topology,
            hosts=tuple(map(Host, gpus)),
            switches=(*topology.switches, *adding),
            links=(*inside, *topology.links),
            name=f"{topology.name}, {count} accelerators a host",
        )
    except TopologyError as error:
        raise UsageError(f"--accelerators {count}: {error}") from None


@contextmanager
def naming(option: str, more: str = "") -> Iterator[None]:
    """Name an option in the error about its value, and say more.

    Raises:
        UsageError: the block raised a QuantityError.
    """
    try:
        yield
    except QuantityError as error:
        text = re.sub(r"write \w+=", f"write --{option} ", str(error))
        raise UsageError(f"--{option}: {text}{more}") from None


def accelerated(args: argparse.Namespace, topology: Topology) -> Topology:
    """Return the network with the accelerators that the options put in its hosts.

    Raises:
        UsageError: an option has a wrong value.
    """
    if args.accelerators is None:
        for option in ("local_rate", "local_delay"):
            if getattr(args, option) is not None:
                name = option.replace("_", "-")
                raise UsageError(f"--{name} is of --accelerators; say how many hosts have")
        return topology
    text = args.local_rate or USUAL
    with naming("local-rate", f"; or take {', '.join(LOCAL)}"):
        rate = LOCAL[text] if text in LOCAL else int(READERS["rate"](text) or 0)
    with naming("local-delay"):
        delay = float(READERS["delay"](args.local_delay or "0s"))
    if rate <= 0 or delay < 0:
        raise UsageError(
            "--local-rate, --local-delay: write a rate above 0, and a delay of 0 or more"
        )
    return with_accelerators(topology, args.accelerators, rate, delay)


def kinds(
    fabric: Fabric, accelerators: bool
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return for the link above each node whether it is in a host, and whether between switches."""
    inside, trunk = np.zeros((2, len(fabric.parent)), bool)
    below = fabric.hosts
    if accelerators:
        inside[below] = True
        below = np.unique(fabric.parent[below])
    trunk[1:] = ~inside[1:]
    trunk[below] = False
    return inside, trunk


def with_links(args: argparse.Namespace, network: str, fabric: Fabric) -> Fabric:
    """Return what workers use of a network, with the rates and delays of the options.

    Raises:
        UsageError: an option has a wrong value, or nothing takes time; it names the network.
    """
    inside, trunk = kinds(fabric, args.accelerators is not None)
    with naming("rate"):
        if args.rate is not None:
            rate = float(READERS["rate"](args.rate))
            fabric = fabric._replace(rate=np.where(inside, fabric.rate, rate))
    with naming("trunk-rate"):
        if args.trunk_rate is not None:
            rate = float(READERS["rate"](args.trunk_rate))
            fabric = fabric._replace(rate=np.where(trunk, rate, fabric.rate))
    with naming("delay"):
        if args.delay is not None:
            delay = float(READERS["delay"](args.delay))
            fabric = fabric._replace(delay=np.where(inside, fabric.delay, delay))
    if not (fabric.rate > 0).all():
        raise UsageError("--rate: a link has a rate above 0, such as 10Gbit")
    if not (fabric.delay >= 0).all():
        raise UsageError("--delay: a link has a delay of 0 or more, such as 1us")
    if np.isinf(fabric.rate[~inside]).all() and not fabric.delay.any():
        raise UsageError(f"{network}: links take no time; say how fast they are: --rate 10Gbit")
    return fabric


def beside_others(args: argparse.Namespace, fabric: Fabric) -> Fabric:
    """Return the network as the traffic of others leaves it.

    Raises:
        UsageError: the option has a wrong value, or does not go with others.
    """
    if args.background in (None, "0"):
        return fabric
    if args.world == "sim":
        raise UsageError("--background: nobody sends it in --world sim; lower --rate instead")
    with naming("background"):
        rate = fabric.rate - float(READERS["rate"](args.background))
    if not (rate[1:] > 0).all():
        raise UsageError(f"--background {args.background}: leave some of each link's rate to us")
    return fabric._replace(rate=rate)


def of_first_job(fabric: Fabric, jobs: int) -> tuple[Fabric, bool]:
    """Return the tree of the first of some jobs, whose workers take turns; and whether it shares.

    A link that several jobs use gives each of them an equal part of its rate.

    Raises:
        UsageError: the workers cannot be dealt out equally.
    """
    workers = len(fabric.hosts)
    if workers % jobs:
        raise UsageError(
            f"--jobs {jobs}: {workers} workers cannot be dealt out equally; choose their numbers so"
        )
    users = np.zeros(len(fabric.parent), int)
    for job in range(jobs):
        users[fabric.part(range(job, workers, jobs))[1]] += 1
    part, left = fabric.part(range(0, workers, jobs))
    rate = part.rate / np.maximum(1, users[left])
    return part._replace(rate=rate), bool((users[left][1:] > 1).any())
