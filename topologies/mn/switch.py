"""The iSwitch as a switch of Mininet's: `mn --switch iswitch`."""

from __future__ import annotations

import json
import select
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import total_ordering
from ipaddress import IPv4Address, IPv4Interface
from itertools import count
from typing import IO, Any, NamedTuple

from mininet.log import error
from mininet.node import Host

from iswitch.ports.kernel.ethtool import offloads_off
from iswitch.ports.orphans import DiesWithParent
from topologies.children import end
from topologies.commands import options
from topologies.errors import NetworkError

from .cables import check_in_force
from .nodes import Described, OwnHost, OwnSwitch, in_namespace_of

START_TIMEOUT = 20.0  # seconds for a switch process to listen
COMPILE_TIMEOUT = 180.0  # seconds for one that first compiles its program
FIRST = "first"  # the tree's root is the switch that was made first
DEFAULT_NETWORK = "10.0.0.0/8"  # Mininet's


OPTIONS = ("address", "parent", "offload", "opts", "batch")  # of ISwitch
MININETS = frozenset(  # what Mininet gives every switch, or takes for one
    ("dpid", "listenPort", "inNamespace", "isSwitch", "cls", "ip", "mac", "defaultRoute", "lo")
)


class Tree(NamedTuple):
    """The switches that are connected, in the order in which they were made."""

    switches: list[ISwitch]
    hosts: list[Any]
    parents: dict[str, tuple[str, str]]  # by switch: its parent, the interface that leads there


@total_ordering
class ISwitch(OwnSwitch):
    """Runs one switch process in its namespace, from `start` to `stop`.

    The switch sums what workers send to its `address`, and forwards all other packets. Linked
    switches make a tree; its root is the switch made first. They are bridges without a
    spanning-tree protocol: links must not make a circle.

    Args:
        name: such as s1.
        address: its IP address; default: the last of the hosts' network, counted down by the order
            in which the switches were made.
        parent: the name of the switch above, "" or its own for none; default: the next one towards
            the root.
        offload: let super-frames pass whole.
        opts: more options of `iswitch switch`, in a string.
        described: a topology's description, for the arguments that are not given.
        batch: have `batchStartup` wait until the process listens, rather than `start`.

    Raises:
        NetworkError: there is no such option.
    """

    world = "raw"
    patience = START_TIMEOUT
    _made = count()

    def __init__(
        self,
        name: str,
        address: str | None = None,
        parent: str = FIRST,
        offload: bool = True,
        opts: str = "",
        batch: bool = False,
        described: Described | None = None,
        **params: Any,
    ) -> None:
        if unknown := params.keys() - MININETS:
            raise NetworkError(
                f"switch {name}: there is no option {', '.join(sorted(unknown))}; the options are "
                f"{', '.join(OPTIONS)}"
            )
        self.own_opts = opts
        if described is not None:
            address = address or described.address
            parent = described.parent if parent == FIRST else parent
            opts = f"{shlex.join(described.options)} {opts}"
        super().__init__(name, opts=opts, **params)
        self.wanted_address = address
        self.wanted_parent = parent
        self.offload = offload
        self.batch = batch
        self.order = next(ISwitch._made)
        self.process: subprocess.Popen[bytes] | None = None
        self.counters: dict[str, int] = {}  # when it has stopped
        self._errors: IO[bytes] | None = None

    def __lt__(self, other: ISwitch) -> bool:
        return self.order < other.order

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    @property
    def address(self) -> IPv4Address:
        """Return the address at which workers reach the switch, at UDP port 26963."""
        return address_in(self, surroundings(self))

    def start(self, controllers: list[Any]) -> None:  # noqa: ARG002  (it needs none)
        """Start the process; called by Mininet.

        Raises:
            NetworkError: links make a circle, or an option of a link is not in force; or, unless
                `batch`, it does not listen.
        """
        if self.process is not None:
            return
        tree = surroundings(self)
        check_addresses(tree)
        interfaces = [port for port in self.intfList() if port.link is not None]
        for port in interfaces:
            check_in_force(port.link.intf1)
            check_in_force(port.link.intf2)
        above = uplink = None
        if self.name in tree.parents:
            name, uplink = tree.parents[self.name]
            (parent,) = (switch for switch in tree.switches if switch.name == name)
            above = address_in(parent, tree)
        names = [port.name for port in interfaces]
        self.prepare(interfaces)
        words = options(
            names, address_in(self, tree), above, uplink, offload=self.offload, world=self.world
        )
        command = [sys.executable, "-P", "-m", "iswitch", "switch", "--json", *words]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop)
        with in_namespace_of(self):
            self.process = subprocess.Popen(
                [*command, *shlex.split(self.opts)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
                preexec_fn=DiesWithParent(),
            )
        if not self.batch:
            self.await_listening()

    def prepare(self, interfaces: Sequence[Any]) -> None:
        """Prepare the ports, and the interfaces that they are linked to, for the process."""

    def await_listening(self) -> None:
        """Wait until the switch listens.

        Raises:
            NetworkError: the switch does not listen in time.
        """
        assert self.process is not None
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], self.patience)
        if readable and self.process.stdout.readline():
            return
        complaint = self._complaint() or "it does not listen"
        self.stop()
        given = f" (opts={self.own_opts})" * bool(self.own_opts)
        raise NetworkError(f"switch {self.name}: {complaint}{given}")

    @classmethod
    def batchStartup(cls, switches: Sequence[ISwitch]) -> Sequence[ISwitch]:
        """Wait until these switches listen; Mininet calls this after it has started all."""
        for switch in switches:
            if switch.batch:
                switch.await_listening()
                switch.batch = False  # when it is started again, it is by itself
        return switches

    @classmethod
    def batchShutdown(cls, switches: Sequence[ISwitch]) -> Sequence[ISwitch]:
        """End the processes, side by side; called by Mininet."""
        halt(switches)
        for switch in switches:
            switch.stop(deleteIntfs=False)
        return switches

    def stop(self, deleteIntfs: bool = True) -> None:
        """End the process and keep its counters; called by Mininet."""
        halt([self])
        super().stop(deleteIntfs)

    def terminate(self) -> None:
        """Remove the namespace; called by Mininet."""
        self.stop(deleteIntfs=False)
        super().terminate()

    def _complaint(self) -> str:
        """Take what the process wrote to stderr, once."""
        errors, self._errors = self._errors, None
        if errors is None:
            return ""
        with errors:
            errors.seek(0)
            return errors.read().decode(errors="replace").strip()

    def _ended(self, early: bool) -> None:
        """Keep the counters of a process that has ended; `early`: it ended by itself."""
        assert self.process is not None
        assert self.process.stdout is not None
        with self.process.stdout as output:
            lines = output.read().splitlines()
        self.counters = json.loads(lines[-1]) if lines else {}
        status, self.process = self.process.returncode, None
        failed = (early or status) and self._errors is not None  # else its error has told already
        complaint = self._complaint()
        if failed:
            when = "before it was stopped " if early else ""
            error(f"*** switch {self.name} ended {when}with status {status}\n")
            error(f"{complaint}\n" if complaint else "")


class P4Switch(ISwitch):
    """A switch that runs the P4 program in a bmv2: `mn --switch bmv2` (docs/p4.md).

    Links to it carry frames as they are on a wire: a bmv2 knows no offload.
    """

    world = "bmv2"
    patience = COMPILE_TIMEOUT

    def prepare(self, interfaces: Sequence[Any]) -> None:
        """Switch the offloads off, at both ends of its links."""
        for interface in interfaces:
            for end_ in (interface.link.intf1, interface.link.intf2):
                with in_namespace_of(end_.node):
                    offloads_off(end_.name)


def halt(switches: Sequence[ISwitch]) -> None:
    """End the processes of switches at once, and name those that failed."""
    running = {switch: switch.process for switch in switches if switch.process is not None}
    early = {switch for switch, process in running.items() if process.poll() is not None}
    end([*running.values()])
    for switch in running:
        switch._ended(switch in early)


def surroundings(switch: ISwitch) -> Tree:
    """Find all switches and hosts that a switch can reach, and the tree of these switches.

    Raises:
        NetworkError: the links make a circle.
    """
    around = neighbours(switch)
    switches = sorted(node for node in around if isinstance(node, ISwitch))
    hosts = [node for node in around if isinstance(node, Host | OwnHost)]
    cables = sum(isinstance(far, ISwitch) for s in switches for _, far in around[s]) // 2
    if cables >= len(switches):
        raise NetworkError(
            f"the links of {', '.join(s.name for s in switches)} make a circle, and these switches "
            "have no spanning-tree protocol; take a topology that is a tree, such as tree,2,3"
        )
    parents: dict[str, tuple[str, str]] = {}
    reached = [switches[0]]
    for near in reached:
        for _, far in around[near]:
            if isinstance(far, ISwitch) and far not in reached:
                reached.append(far)
                parents[far.name] = near.name, port_to(far, near)
    for one in switches:
        wanted = one.wanted_parent
        if wanted == FIRST:
            continue
        parents.pop(one.name, None)
        if wanted in ("", one.name):
            continue
        beside = {far.name: far for _, far in around[one] if isinstance(far, ISwitch)}
        if wanted not in beside:
            raise NetworkError(
                f"switch {one.name} has no link to its parent {wanted!r}; it has to "
                f"{', '.join(beside) or 'no switch'}: name one of these, or leave parent= out"
            )
        parents[one.name] = wanted, port_to(one, beside[wanted])
    return Tree(switches, hosts, parents)


def check_addresses(tree: Tree) -> None:
    """Refuse two switches at one address.

    Raises:
        NetworkError: two nodes have one address.
    """
    owners: dict[str, str] = {}
    addresses = [(switch.name, str(address_in(switch, tree))) for switch in tree.switches]
    for name, address in [(host.name, host.IP()) for host in tree.hosts] + addresses:
        if address and owners.setdefault(address, name) != name:
            raise NetworkError(
                f"{owners[address]} and {name} have the same address {address}; give each switch "
                "one of its own, or leave address= out"
            )


def neighbours(start: Any) -> dict[Any, list[tuple[str, Any]]]:
    """List, by reachable node, its interfaces and the nodes at their other ends."""
    found: dict[Any, list[tuple[str, Any]]] = {}
    todo = [start]
    while todo:
        node = todo.pop()
        if node in found:
            continue
        found[node] = []
        for interface in node.intfList():
            link = interface.link
            if link is not None:
                far = link.intf2 if link.intf1 is interface else link.intf1
                found[node].append((interface.name, far.node))
                todo.append(far.node)
    return found


def port_to(switch: ISwitch, far: Any) -> str:
    """Return the interface of a switch that leads to a neighbour."""
    ((interface, _),) = switch.connectionsTo(far)
    name: str = interface.name
    return name


def address_in(switch: ISwitch, tree: Tree) -> IPv4Address:
    """Return the address of a switch in a tree: its own, or the default for its position."""
    if switch.wanted_address is not None:
        return IPv4Address(switch.wanted_address)
    network = IPv4Interface(DEFAULT_NETWORK).network
    for host in tree.hosts:
        if host.IP():
            network = IPv4Interface(f"{host.IP()}/{host.defaultIntf().prefixLen}").network
            break
    return network[-2 - tree.switches.index(switch)]
