"""Changes table entries and multicast groups of the data plane to those that are wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .entries import Entry
from .runtime import Runtime, handle


class Tables:
    """Keeps what is installed in the data plane for one job, or for all jobs together.

    Args:
        runtime: takes the lines that change it.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.entries: dict[tuple[str, tuple[str, ...]], tuple[Entry, int]] = {}  # and handle
        self.nodes: dict[int, tuple[int, int]] = {}  # port and handle, by seat

    def install(self, wanted: Iterable[Entry]) -> None:
        """Add, change and delete entries, so that exactly the wanted ones are installed."""
        target = {entry.key: entry for entry in wanted}
        gone = [key for key, (entry, _) in self.entries.items() if target.get(key) != entry]
        deleted = [f"table_delete {key[0]} {self.entries.pop(key)[1]}" for key in gone]
        new = [entry for key, entry in target.items() if key not in self.entries]
        if deleted or new:
            answers = self._runtime.run([*deleted, *(entry.line for entry in new)])
            for entry, answer in zip(new, answers[len(deleted) :], strict=True):
                self.entries[entry.key] = (entry, handle(answer))

    def replicate(self, group: int, wanted: Mapping[int, int]) -> None:
        """Make a multicast group send to these seats, each at its port."""
        lines = []
        for seat, (port, node) in list(self.nodes.items()):
            if wanted.get(seat) != port:
                lines += [f"mc_node_dissociate {group} {node}", f"mc_node_destroy {node}"]
                del self.nodes[seat]
        new = [(seat, port) for seat, port in wanted.items() if seat not in self.nodes]
        if not lines and not new:
            return
        made = self._runtime.run([*lines, *(f"mc_node_create {seat} {port}" for seat, port in new)])
        nodes = [handle(answer) for answer in made[len(lines) :]]
        self.nodes |= {r: (p, node) for (r, p), node in zip(new, nodes, strict=True)}
        self._runtime.run([f"mc_node_associate {group} {node}" for node in nodes])
