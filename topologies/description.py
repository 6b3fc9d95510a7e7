"""The description of a network that can be built: read, checked, written and drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from .drawing import draw
from .errors import TopologyError
from .parts import Link, Switch
from .plan import Plan, spanning_tree
from .specs import parse
from .toml import dumps, loads

if TYPE_CHECKING:
    from rich.text import Text

FALLBACK = "fallback"  # the name of a switch above the root
PARTS_MTU = 1600  # bytes: contributions in parts are longer than others


@dataclass(frozen=True)
class Topology(Plan):
    """The description of a network; the constructor checks that the network can be built.

    Raises:
        TopologyError: no builder could build it; the message names the fault and the mend.
    """

    def __post_init__(self) -> None:
        from .validation import check  # brings NumPy

        check(self)

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Read a short form such as `rack:2x3,rate=1Gbit`, or a .toml file at a path.

        Raises:
            TopologyError: the text is neither, or the file cannot be read; the message lists the
                short forms.
        """
        if text.endswith(".toml"):
            return cls.from_toml(text)
        return parse(text, cls)

    @classmethod
    def from_toml(cls, path: str | Path) -> Topology:
        """Read a file in the format of docs/topologies.md.

        Raises:
            TopologyError: the file cannot be read, is not TOML, or describes no topology that could
                be built.
        """
        from iswitch.system.files import read_text

        return loads(read_text(str(path), TopologyError), cls, str(path))

    def to_toml(self) -> str:
        """Write the text of a file from which `from_toml` makes an equal topology."""
        return dumps(self)

    def describe(self) -> str:
        """Draw the tree, a node a line, for people."""
        return draw(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.describe())}</pre>"

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(self.describe())

    def with_fallback(self, rate: int | None = None, delay: float = 0.0) -> Topology:
        """Return this network with one more switch, FALLBACK, above its root.

        Args:
            rate: bit/s of the link between them; None: as fast as the machine is.
            delay: of this link, in seconds.
        """
        root = self.root.name
        switches = [replace(s, parent=FALLBACK) if s.name == root else s for s in self.switches]
        link = Link(FALLBACK, root, rate, delay, mtu=PARTS_MTU)
        return replace(self, switches=(*switches, Switch(FALLBACK)), links=(*self.links, link))

    def rooted_at(self, root: str) -> Topology:
        """Return this network with another tree: that of the shortest paths to `root`.

        Raises:
            TopologyError: there is no such switch, or not every host can reach it.
        """
        switches = spanning_tree(self.switches, self.links, root)
        return replace(self, switches=switches)
