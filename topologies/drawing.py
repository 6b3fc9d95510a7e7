"""Draws a topology as text, for people."""

from __future__ import annotations

from collections.abc import Iterator

from iswitch.faults.units import count

from .plan import Plan


def draw(topology: Plan) -> str:
    """Draw a line for each node with its address and uplink; then the nodes that stand by."""
    tree, links = len(topology.tree), len(topology.links)
    spare = [link for link in topology.links if not topology.active(link)]
    title = f"{topology.name}: " if topology.name else ""
    lines = [
        f"{title}{count(len(topology.hosts), 'host')}, {count(tree, 'switch', 'es')}, "
        f"{count(links - len(spare), 'link')}; subnet {topology.subnet}",
        *branch(topology, topology.root.name, "", ""),
    ]
    idle = [switch.name for switch in topology.switches if switch not in topology.tree]
    waiting = [*idle, *(f"{link.a}-{link.b}" for link in spare)]
    if waiting:
        lines.append(f"standing by: {', '.join(waiting)}")
    return "\n".join(lines)


def branch(topology: Plan, node: str, first: str, rest: str) -> Iterator[str]:
    """Draw a node and all below it; `first` and `rest` stand before its lines."""
    yield " ".join([f"{first}{node} {topology.address(node)}", *uplink(topology, node)])
    switches = [switch.name for switch in topology.children(node)]
    below = switches + [host.name for host in topology.hosts_at(node)]
    for name in below:
        last = name == below[-1]
        yield from branch(
            topology, name, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")
        )


def uplink(topology: Plan, node: str) -> Iterator[str]:
    """Write the settings of the link that leads up from a node."""
    for port in topology.ports(node):
        if node not in topology.parents or port.peer == topology.parents[node]:
            for key, value in port.link.settings().items():
                yield f"{key}={value}"
