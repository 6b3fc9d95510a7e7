"""Warns in the log of packets that a switch drops, and of a silent parent; says how to mend it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from iswitch.core.format.counters import COUNTERS, DROPS
from iswitch.system.logs import log

PAUSE = 10.0  # seconds between two looks
MANY = 100  # packets of a kind in that time; fewer are not worth a line

MENDS = {
    "stranger": "if their senders should be members, restart them; else filter these packets "
    "(evicted workers send some until they hear of it)",
    "ordinary": "send them elsewhere, or serve with --ports, which forwards them",
    "malformed": "use one numel, dtype and version of iswitch in all workers",
    "throttled": "raise --control-rate if their sender is yours; else filter these packets",
    "bad_mac": "give the job's key to all its workers and switches (--keys, ISWITCH_KEY_FILE)",
    "replayed": "restart the worker whose clock has stepped back, or look for an attacker",
    "rx_overflow": "give the switch a core of its own (--cpu), or raise net.core.rmem_max",
    "rx_no_memory": "free memory on this machine, or start the switch with a smaller --memory",
    "no_memory": "free memory on this machine, or start the switch with a smaller --memory",
    "given_up": "free memory on this machine, or start the switch with a smaller --memory",
    "tx_failed": "look whether a port is down (ip link), or its queue too short (ip -s link)",
    "bad_frame": "look for a faulty device on the links of this switch",
    "bad_checksum": "look for a faulty cable or device (ethtool -S), and replace it",
    "spoofed": "find the port that claims a member's address (--capture), and unplug it",
    "too_large": "give all links of the switch one MTU (ip link set DEV mtu 1500)",
    "unresolved": "look whether the receiver answers ARP (ip neighbour)",
    "leases_run_out": "restart the members that have died; "
    "`iswitch ctl status --job N --switch HOST:PORT` lists those that are left",
}
MEANINGS = COUNTERS | DROPS
AT_ONCE = {"leases_run_out", "no_memory", "given_up", "rx_no_memory"}  # worth a line if one occurs


class Watchman:
    """Compares counters with those of the last look.

    Args:
        counters: those of the switch.
        unheard: lists the jobs that wait for an answer of the switch above.
    """

    def __init__(
        self, counters: Mapping[str, int], unheard: Callable[[], Sequence[int]] = tuple
    ) -> None:
        self._counters, self._unheard = counters, unheard
        self._before = dict.fromkeys(MENDS, 0)

    def look(self) -> None:
        """Warn of what was dropped often since the last look, and of a silent parent."""
        if jobs := self._unheard():
            log.warning(
                "the switch above (--parent) does not answer, so nobody can join job %s; start it, "
                "or name another one",
                jobs[0],
            )
        for name, mend in MENDS.items():
            now = self._counters.get(name, 0)
            grown, self._before[name] = now - self._before[name], now
            if grown >= (1 if name in AT_ONCE else MANY):
                told = f"{name}: {MEANINGS[name]}; {mend}".replace("%", "%%")
                log.warning(f"%s x {told}", f"{grown:,}")


@contextmanager
def warned(
    counters: Mapping[str, int], unheard: Callable[[], Sequence[int]] = tuple
) -> Iterator[None]:
    """Keep a Watchman who looks now and then during the `with` block, and once more at its end."""
    watchman, ended = Watchman(counters, unheard), threading.Event()

    def look() -> None:
        while not ended.wait(PAUSE):
            try:
                watchman.look()
            except Exception as error:  # one of ours: look again
                log.error("the counters were not looked at: %r; please report it", error)

    thread = threading.Thread(target=look, name="warnings", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        watchman.look()
