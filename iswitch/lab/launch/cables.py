"""How packets between workers and their switch travel in a network of namespaces."""

from __future__ import annotations

from collections.abc import Collection

from iswitch.outside import UsageError
from iswitch.ports.rings.meeting import VARIABLE, is_wanted

CABLES = {
    "veth": "all packets cross the links",
    "shm": "packets of workers and their switch go through shared memory, all others over links",
}


def check_shm(kind: str, bmv2: Collection[str]) -> None:
    """Refuse `--cable shm` where packets in shared memory would skip what the user asks for.

    Raises:
        UsageError: the message names it.
    """
    if kind == "loopback":
        raise UsageError(
            "--cable shm: the loopback world has no cables, and uses shared memory by itself; "
            "leave it out, or take --world netns"
        )
    if kind == "sim":
        raise UsageError("--cable shm: in virtual time there are no cables; leave it out")
    if bmv2:
        raise UsageError("--cable shm: a P4 program has ports only; take --cable veth")
    if not is_wanted():
        raise UsageError(
            f"--cable shm: {VARIABLE}=0 switches shared memory off; unset it, or take --cable veth"
        )
