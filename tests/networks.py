"""What tests of real networks look at: what there is of them, and what is left."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from topologies.children import Nodes
from topologies.namespaces import CLAIMS, NAMESPACES

DIGITS = str.maketrans("0123456789", "abcdefghij")
PREFIX = f"t{os.getpid()}".translate(DIGITS)  # this run's own: another one may run beside it


def left() -> set[str]:
    """What there is of the tests' networks."""
    return {path.name for place in (CLAIMS, NAMESPACES) for path in place.glob(f"{PREFIX}-*")}


def links(net: Nodes, node: str) -> dict[str, Any]:
    from pyroute2 import IPRoute

    with net.inside(node), IPRoute() as ip:
        return {link.get("ifname"): link for link in ip.get_links()}


def gone(pid: int) -> bool:
    """Whether a process has ended, or does so soon."""
    for _ in range(500):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False
