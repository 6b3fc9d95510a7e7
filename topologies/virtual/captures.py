"""Captures of the switches' ports in a simulated network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from iswitch.outside import writing
from iswitch.sim.tape import Tape
from topologies.simulated import Simulation


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write to; the block's own error is raised before one of closing it.

    Raises:
        OutsideError: it cannot be opened, or written to its end.
    """
    with writing(str(path)):
        file = path.open("wb")
    try:
        yield file
    except BaseException:
        with suppress(OSError):
            file.close()
        raise
    with writing(str(path)):
        file.close()


def capture(simulation: Simulation, folder: Path, files: ExitStack) -> None:
    """Capture the ports of each switch to FOLDER/SWITCH.pcapng."""
    network = simulation.network
    taps: list[tuple[str, Callable[..., None]]] = []
    for switch in simulation.topology.tree:
        peers = [port.peer for port in simulation.topology.ports(switch.name)]
        neighbours = {peer: simulation.address(peer) for peer in peers}
        path = folder / f"{switch.name}.pcapng"
        file = files.enter_context(_written(path))
        Tape(network, simulation.address(switch.name), neighbours, file)
        assert network.tap is not None
        taps.append((str(path), network.tap))

    def tell(*event: Any) -> None:
        for path, tap in taps:
            with writing(path):
                tap(*event)

    network.tap = tell
