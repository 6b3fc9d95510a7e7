"""Nodes of Mininet that die with their parent and have no IPv6."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from mininet.node import Node, Switch

from iswitch.ports.orphans import DiesWithParent
from topologies.namespaces import inside
from topologies.netns import without_ipv6


class Described(NamedTuple):
    """A topology's description of a node; options given to the node itself override it."""

    address: str
    parent: str  # "": none
    options: Sequence[str]  # of `iswitch switch`


class OwnNode(Node):
    """A namespace and the shell that holds it."""

    def __init__(self, name: str, **params: Any) -> None:
        super().__init__(name, **params | {"inNamespace": True})
        with in_namespace_of(self):
            without_ipv6()

    def _popen(self, cmd: list[str], **params: Any) -> Any:
        return super()._popen(cmd, preexec_fn=DiesWithParent(), **params)


class OwnHost(OwnNode):
    """A host."""


class OwnSwitch(Switch, OwnNode):
    """The namespace of a switch; Mininet does not start the switch process in it.

    Every network has switch interfaces named s1-eth1 and so on. In a namespace of their own the
    names of two networks do not clash.
    """

    controlIntf = None

    def __init__(self, name: str, **params: Any) -> None:
        Switch.__init__(self, name, **params | {"inNamespace": True})
        with in_namespace_of(self):
            without_ipv6()

    def start(self, controllers: list[Any]) -> None:
        """Do nothing; called by Mininet."""


@contextmanager
def in_namespace_of(node: Any) -> Iterator[None]:
    """Move the calling thread into the namespace of a Mininet node for a `with` block."""
    namespace = os.open(f"/proc/{node.pid}/ns/net", os.O_RDONLY)
    try:
        with inside(namespace):
            yield
    finally:
        os.close(namespace)
