"""Puts together a switch of the bmv2 world: data plane, control plane, and the wire between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from iswitch.core.format.keys import Keys
from iswitch.core.format.packets import Address
from iswitch.core.jobs.limits import Limits
from iswitch.ports.engine import Engine
from p4.sizes import SIZES

from .link import CpuLink
from .pipeline import Own, Pipeline
from .port import CpuPort
from .process import start
from .switch import PipelineChassis, PipelineSwitch


def build(
    ports: Sequence[str],
    own: Own,
    limits: Limits,
    keys: Keys,
    cache: Path,
    parent: Address | None = None,
    incarnation: int = 0,
) -> Engine[Any, Any]:
    """Start a switch with these interfaces as its ports; its counters are `machine.counters`.

    Args:
        ports: the interfaces, in the order of the ports' numbers.
        own: the switch's addresses.
        limits: limits of what members may reserve.
        keys: keys of the keyed jobs.
        cache: the folder that keeps compiled programs.
        parent: the switch above.
        incarnation: incarnation of this switch, as a member of jobs there.

    Raises:
        ToolMissing: the compiler or the switch is not installed.
        CompilationFailed: the program is refused.
        Bmv2Failed: the switch does not start.
    """
    bmv2 = start(ports, own.port, SIZES["CPU_PORT"], cache)
    link = CpuLink(bmv2.wire)
    pipeline = Pipeline(link, bmv2.cli, own, len(ports), parent)
    switch = PipelineSwitch(pipeline, limits, keys, incarnation)
    chassis = PipelineChassis(switch, pipeline, len(ports))
    pipeline.start()

    def close() -> None:
        pipeline.fates.count(switch.counters)
        bmv2.close()

    return Engine(chassis, CpuPort(link, bmv2.wire.socket.fileno(), close))
