"""Makes a topology real in one of the worlds: where its nodes are, how its switches start."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from iswitch.core.format.wire import MAX_MEMBERS, PORT
from iswitch.outside import UsageError, reading
from iswitch.ports.rings.meeting import PREFIX, VARIABLE
from iswitch.system.private import folder

from .cables import check_shm
from .world import World, check_policy, more_options

if TYPE_CHECKING:
    from topologies import Topology
    from topologies.children import Nodes

    from .simulated import Virtual

LOCALHOST = "127.0.0.1"
WORLDS = {
    "loopback": "processes on this machine, no privileges",
    "netns": "a network namespace for each host and switch; needs root",
    "mininet": "such namespaces, built by Mininet; needs root",
    "bmv2": "netns with --switch bmv2",
    "sim": "virtual time, at any rate; no privileges",
}
KINDS = ("iswitch", "bmv2")  # of switches
WITH_FALLBACK = "instead, --fallback {policy}:{slots} puts one above"
MOST_P4_WORKERS = 32  # of a tree; of 80 below three bmv2 one lost its rank while they joined


class Loopback(World):
    """All nodes are this machine; switches are told apart by their UDP ports."""

    def __init__(self, topology: Topology, offload: bool) -> None:
        from topologies.description import FALLBACK

        super().__init__(topology, offload)
        for link in topology.links:
            if link.a != FALLBACK and (settings := link.settings()):
                said = ", ".join(f"{name}={value}" for name, value in settings.items())
                raise UsageError(
                    f"link {link.a}-{link.b} has {said}, and the loopback world has no links; "
                    "leave that out, or use --world netns (as root)"
                )

    def switch_options(self, name: str, listening: Mapping[str, str]) -> list[str]:
        """Choose any free port; after a restart, the former port."""
        options = ["--listen", listening.get(name, f"{LOCALHOST}:0")]
        if (parent := self.topology.parents[name]) is not None:
            options += ["--parent", listening[parent]]
        return options if self.offload else [*options, "--no-offload"]

    def address(self, host: str) -> str:  # noqa: ARG002
        """Return this machine's address."""
        return LOCALHOST


class Namespaces(World):
    """Nodes are network namespaces, built by either builder.

    Args:
        network: the builder.
        bmv2: the switches that are P4 programs.
        shm: packets between a worker and its switch go through shared memory.
    """

    def __init__(self, network: Nodes, bmv2: Collection[str] = (), shm: bool = False) -> None:
        super().__init__(network.topology, network.offload)
        self.network = network
        self.bmv2 = bmv2
        self.shm = shm

    def __enter__(self) -> Self:
        self.network.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.network.close()

    def place(self, node: str) -> AbstractContextManager[None]:
        """Enter the node's namespace."""
        return self.network.inside(node)

    def switch_options(self, name: str, listening: Mapping[str, str]) -> list[str]:  # noqa: ARG002
        """Name its ports and addresses, as in the topology."""
        from topologies.commands import switch_options

        options = switch_options(self.topology, name, offload=self.offload, bmv2=self.bmv2)
        hosts = {host.name for host in self.topology.hosts}
        ports = [port for port in self.topology.ports(name) if port.peer in hosts]
        if self.shm and ports:
            placed = [f"{self.address(port.peer)}={port.ifname}" for port in ports]
            options += ["--shm-at", self._meeting(name), "--shm-hosts", ",".join(placed)]
            for port in ports:
                if pace := port.link.pace:
                    options += ["--shm-link", f"{port.ifname}:{pace}"]
        return options

    def _meeting(self, switch: str) -> str:
        """Return the path of a switch's UNIX socket for rings."""
        return str(folder() / f"{PREFIX}{os.getpid()}-{id(self):x}-{switch}")

    def address(self, host: str) -> str:
        """Return its address in the topology's subnet."""
        return str(self.topology.address(host))

    def environment(self, host: str) -> dict[str, str]:
        """Name the interface, too, for libraries that would choose another."""
        (port,) = self.topology.ports(host)
        found = {**super().environment(host), "GLOO_SOCKET_IFNAME": port.ifname}
        if self.shm:
            found[VARIABLE] = self._meeting(self.topology.switch_of(host))
        return found

    def entry(self, node: str) -> str:
        """Return the command that enters the node's namespace."""
        return f"ip netns exec {self.network.namespace(node)}"


def made_folder(path: str | None, option: str) -> Path | None:
    """Make the folder that an option names, unless it exists; None: the option is not given.

    Raises:
        OutsideError: the folder cannot be made.
    """
    if path is None:
        return None
    with reading("that folder", lambda said: UsageError(f"{option} {path}: {said}"), "make"):
        with suppress(PermissionError):
            os.makedirs(path, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise UsageError(f"{option} {path}: you may not write there; name a folder of your own")
    return Path(path)


def read_topology(text: str, option: str = "--topology") -> Topology:
    """Read the topology that an option names.

    Raises:
        UsageError: the text names no topology.
    """
    from topologies import Topology, TopologyError

    try:
        with reading(text, TopologyError):
            return Topology.parse(text)
    except TopologyError as error:
        raise UsageError(f"{option}: {error}") from None


def check_link(name: str, value: str, **beside: str) -> None:
    """Refuse a value that an option such as --loss cannot give to links.

    Args:
        name: name of the setting, and of the option.
        value: value as the user wrote it.
        beside: other settings that it goes with.

    Raises:
        UsageError: no link can have that value.
    """
    from topologies import Link, TopologyError

    try:
        Link.of("h1", "s1", **{**beside, name: value})
    except TopologyError as error:
        said = str(error).removeprefix("link h1-s1: ")
        raise UsageError(refused(f"--{name}", name, value, said)) from None


def refused(option: str, quantity: str, value: str, said: str) -> str:
    """Word the refusal of a setting for an option.

    Args:
        option: such as --rate.
        quantity: the name of the setting.
        value: the refused value.
        said: the refusal, which speaks of QUANTITY=VALUE.
    """
    return f"{option} {value}: " + said.replace(f"write {quantity}=", f"write {option} ")


def chosen_topology(form: str | None, workers: int | None, trees: bool = True) -> Topology:
    """Make the network of `--topology`, or a star of `--workers` (default: 4).

    Args:
        form: value of --topology.
        workers: value of --workers.
        trees: whether a tree of switches could take more workers.

    Raises:
        UsageError: there is no such network, or both options are given.
    """
    if form is None:
        workers = 4 if workers is None else workers
        if not 1 <= workers <= MAX_MEMBERS:
            mend = f"{MAX_MEMBERS} or fewer" if workers > 0 else "1 or more"
            if trees and workers > 0:
                mend += ", or switches below one: --topology rack:2x48"
            raise UsageError(
                f"--workers {workers}: a switch takes 1 to {MAX_MEMBERS} workers a job; take {mend}"
            )
        return read_topology(f"star:{workers}")
    if workers is not None:
        raise UsageError("--topology says how many workers there are; leave --workers out")
    return read_topology(form)


def group_variables(
    world: World, hosts: Sequence[str], job: int, port: int | str, per_host: int = 1
) -> dict[str, str]:
    """Make the environment that all workers of a group share, by torchrun's names.

    Args:
        world: world of the workers.
        hosts: the host of each rank.
        job: the number of the job.
        port: the TCP port of the first host at which they meet.
        per_host: workers on each host.
    """
    return {
        "ISWITCH_JOB": str(job),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_WORLD_SIZE": str(per_host),
        "MASTER_ADDR": world.address(hosts[0]),
        "MASTER_PORT": str(port),
        "ISWITCH_NETWORK": world.topology.network_of(hosts),
        "ISWITCH_HOSTS": ",".join(f"{h}={world.address(h)}" for h in dict.fromkeys(hosts)),
    }


def p4_switches(
    kind: str, topology: Topology, chosen: Sequence[str], capture: str | None = None
) -> frozenset[str]:
    """Choose the switches that are P4 programs, by name.

    Args:
        kind: kind of the world.
        topology: has the switches.
        chosen: the texts of `--switch`.
        capture: file to which frames are written; None: no file.

    Raises:
        UsageError: there is no such switch or kind, or the switch cannot be of that kind.
    """
    kinds = dict.fromkeys((s.name for s in topology.tree), "bmv2" if kind == "bmv2" else "iswitch")
    for text in chosen:
        if text.startswith("-"):
            continue  # options
        name, _, wanted = text.rpartition("=")
        if wanted not in KINDS or (name and name not in kinds):
            raise UsageError(
                f"--switch {text}: write {' or '.join(KINDS)}, or NAME= before it, of "
                f"{', '.join(kinds)}"
            )
        kinds |= dict.fromkeys([name] if name else kinds, wanted)
    found = frozenset(name for name, is_ in kinds.items() if is_ == "bmv2")
    if found and kind in ("loopback", "sim"):
        raise UsageError("--switch bmv2: a P4 program has ports; use --world netns (as root)")
    in_a_tree = len(topology.tree) > 1  # else the protocol's own limit holds
    if found and in_a_tree and len(topology.hosts) > MOST_P4_WORKERS:
        raise UsageError(
            f"{len(topology.hosts)} hosts: the P4 program's control plane keeps up with "
            f"{MOST_P4_WORKERS} in a tree (docs/p4.md); take fewer, a star, or iswitch switches"
        )
    if found and capture is not None:
        raise UsageError(
            f"{capture}: frames of a P4 program are not captured (docs/p4.md); leave the capture "
            "out, or make the switches iswitches"
        )
    impaired = [p.link for name in found for p in topology.ports(name) if p.link.impairment]
    if impaired:
        raise UsageError(
            f"link {impaired[0].a}-{impaired[0].b} is impaired, and the P4 program has sound links "
            "only (docs/p4.md); leave that out, or make the switch an iswitch"
        )
    return found


def check_members(topology: Topology, per_host: int) -> None:
    """Refuse more workers at a switch than it takes.

    Raises:
        UsageError: a switch would have too many.
    """
    if per_host < 1:
        raise UsageError(f"--workers-per-host {per_host}: at least 1")
    hosts = Counter(topology.switch_of(host.name) for host in topology.hosts)
    children = Counter(switch.parent for switch in topology.tree)
    for switch in topology.tree:
        members = hosts[switch.name] * per_host + children[switch.name]
        if members > MAX_MEMBERS:
            raise UsageError(
                f"switch {switch.name} would have {members} workers and child switches, "
                f"{MAX_MEMBERS} at most; take fewer --workers-per-host, or put switches between, "
                "such as rack:2x48"
            )


def compile_beforehand() -> None:
    """Compile the P4 program before the switches start.

    Raises:
        UsageError: there is no compiler, or no bmv2.
    """
    from p4 import tools

    try:
        tools.compile_program(PORT, tools.cache_folder())
        for tool in (tools.SWITCH, tools.CLI):
            tools.find(tool)
    except (tools.ToolMissing, tools.CompilationFailed) as error:
        raise UsageError(f"--switch bmv2: {error}") from None


def make_world(
    kind: str,
    topology: Topology,
    *,
    offload: bool = True,
    switches: Sequence[str] = (),
    virtual: Virtual | None = None,
    cable: str = "veth",
    fallback: tuple[str, int] | None = None,
) -> World:
    """Prepare a world of one of the kinds in WORLDS; entering it builds it.

    Args:
        kind: one of WORLDS.
        topology: topology to build.
        offload: send super-frames whole.
        switches: the texts of `--switch`.
        virtual: how virtual time passes in the world sim; None: as computing is measured.
        cable: one of CABLES.
        fallback: puts a switch above the root, to which the root passes on, by this policy, what
            has none of this many slots; None: there is none.

    Raises:
        UsageError: the world cannot be built here; the message names the mend.
    """
    bmv2 = p4_switches(kind, topology, switches)
    options = more_options(kind, bmv2, switches)
    of = {switch.name: options for switch in topology.tree} if options else {}
    if fallback is None:
        check_policy(options, topology, WITH_FALLBACK)
    else:
        policy, slots = fallback
        if topology.root.name in bmv2:
            raise UsageError(f"--fallback {policy}: a P4 program passes nothing on; leave it out")
        of[topology.root.name] = [*options, "--policy", policy, "--slots", str(slots)]
        topology = topology.with_fallback()
    built = _made(kind, topology, bmv2, offload, virtual, cable)
    built.of, built.title = of, f"{topology.name} ({kind})"
    return built


def _made(
    kind: str,
    topology: Topology,
    bmv2: frozenset[str],
    offload: bool,
    virtual: Virtual | None,
    cable: str,
) -> World:
    if bmv2:
        compile_beforehand()
        offload = False  # the P4 program takes frames as they are on a wire
    if shm := cable == "shm":
        check_shm(kind, bmv2)
    if kind == "loopback":
        return Loopback(topology, offload)
    if kind == "sim":
        from .simulated import Simulated, Virtual

        return Simulated(topology, virtual or Virtual())
    if kind == "mininet":
        from topologies.mininet import Network as Mininet

        return Namespaces(Mininet(topology, offload=offload), bmv2, shm)
    from topologies.netns import Network

    return Namespaces(Network(topology, offload=offload), bmv2, shm)
