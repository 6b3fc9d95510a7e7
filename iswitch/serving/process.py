"""Runs a switch until a signal ends it, then prints its counters."""

from __future__ import annotations

import json
import signal

from iswitch.core.format.counters import COUNTERS, DROPS
from iswitch.faults.units import count
from iswitch.outside import IncompleteError, reason
from iswitch.ports.memory import keep_freed, settle
from iswitch.system.interrupts import answered
from iswitch.system.logs import log, logged

from .opening import Opened, opened
from .parent import unheard
from .settings import Settings
from .showing import shown
from .warnings import warned


def serve(settings: Settings) -> int:
    """Open the switch's ports and run it until a signal; return the exit status.

    Raises:
        OutsideError: the settings contradict each other, or this machine refuses them.
        IncompleteError: frames are missing in the capture.
    """
    with logged(settings.log_level, settings.log_json):
        return run(opened(settings), settings)


def run(switch: Opened, settings: Settings) -> int:
    """Run an opened switch until a signal, then print its counters; return the exit status.

    Raises:
        IncompleteError: frames are missing in the capture.
    """
    engine, counters = switch.engine, switch.counters
    keep_freed()
    settle()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:  # nohup
            signal.signal(signum, lambda *_: engine.stop())
    with (
        answered(lambda: as_text(counters, settings.json)),
        shown(switch, settings),
        warned(counters, lambda: unheard(switch.hierarchy)),
    ):
        listening = json.dumps({"listening": switch.where})
        print(listening if settings.json else f"listening {switch.where}", flush=True)
        log.info("listening at %s", switch.where)
        engine.run()
    failed = ""
    counters["given_up"] += engine.given_up
    try:
        engine.port.close()
    except OSError as error:
        failed = reason(error)
    print(as_text(counters, settings.json), end="", flush=True)
    missing = counters.get("capture_full")
    if missing or failed:
        frames = f", {count(missing, 'frame')} missing" if missing else ""
        why = failed or "the disk was too slow, or memory ran out"
        raise IncompleteError(f"{settings.capture} is not complete{frames}: {why}")
    return 0


def as_text(counters: dict[str, int], as_json: bool) -> str:
    """Write the counters that are not zero, with their meanings; as JSON, write all."""
    if as_json:
        return json.dumps(counters.copy()) + "\n"  # another thread may count meanwhile
    lines = []
    for name, meaning in (COUNTERS | DROPS).items():
        value = counters.get(name, 0)
        if value or name in ("rx_packets", "tx_packets"):
            kind = "drop: " if name in DROPS else ""
            lines.append(f"{name:20} {value:>15,}  {kind}{meaning}\n")
    return "".join(lines)
