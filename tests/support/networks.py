"""What tests of real networks look at: what there is of them, and what is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support import ROOT
from topologies.children import Nodes
from topologies.namespaces import CLAIMS, NAMESPACES

MN_PATIENCE = 60.0  # seconds
DIGITS = str.maketrans("0123456789", "abcdefghij")
PREFIX = f"t{os.getpid()}".translate(DIGITS)  # this run's own: another one may run beside it


def left() -> set[str]:
    """What there is of the tests' networks."""
    return {path.name for place in (CLAIMS, NAMESPACES) for path in place.glob(f"{PREFIX}-*")}


def links(net: Nodes, node: str) -> dict[str, Any]:
    from pyroute2 import IPRoute

    with net.inside(node), IPRoute() as ip:
        return {link.get("ifname"): link for link in ip.get_links()}


def gone(pid: int, tries: int = 500) -> bool:
    """Whether a process has ended, or does so soon."""
    for _ in range(tries):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


SANDBOX = """
set -e
mount -t tmpfs tmpfs /mnt
for kept; do
    shift
    [ "$kept" != -- ] || break
    place="/mnt/${kept#/tmp/}"
    case $kept in /tmp/*) mkdir -p "$place"; mount --rbind "$kept" "$place";; esac
done
mount --rbind /mnt /tmp
ip link set lo up
cd "$ROOT"
exec "$@"
"""


def mn(*words: str, commands: str = "") -> str:
    """What `mn` says, with commands for its CLI.

    It kills processes by name and removes files of /tmp whenever something goes wrong, so here it
    only ever runs where it sees no processes and no /tmp but its own.
    """
    tools = os.environ.get("ISWITCH_P4_HOME", sys.prefix)  # docs/p4.md
    kept = dict.fromkeys((str(ROOT), sys.prefix, sys.base_prefix, tools))
    unshare = ["unshare", "-m", "-n", "-p", "-f", "--mount-proc", "--kill-child"]
    command = [sys.executable, str(Path(sys.executable).with_name("mn")), *words]
    done = subprocess.run(
        [*unshare, "sh", "-c", SANDBOX, "sh", *kept, "--", *command],
        input=commands,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=MN_PATIENCE,
        env={**os.environ, "ROOT": str(ROOT), "PYTHONPATH": str(ROOT)},
    )
    return done.stdout
