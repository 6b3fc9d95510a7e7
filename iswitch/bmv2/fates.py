"""The counters of the data plane: the fate of each packet, under the core's names."""

from __future__ import annotations

from iswitch.core.format.counters import Counters

from .runtime import Runtime, packets

FATES = (  # of p4/headers.p4
    None,
    "accumulated",
    "duplicate",
    "late",
    "out_of_window",
    "before_join",
    "halted",
    "stranger",
    "malformed",
    "bad_checksum",
    "aggregates",
    "retransmitted",
    "forwarded",
    "same_port",
    "from_parent",
    "repeated",
    "to_parent",
)
DATA_FATES = {*FATES[1:9], "from_parent", "repeated"}
SENT_FATES = {"aggregates", "retransmitted", "to_parent"}


class FateCounters:
    """Reads the counters of the data plane.

    Args:
        runtime: the data plane's tables and counters.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._counted = [0] * len(FATES)

    def count(self, counters: Counters) -> None:
        """Add to `counters` the packets that the data plane has counted since the last call."""
        lines = [f"counter_read fates {fate}" for fate in range(1, len(FATES))]
        lines += ["counter_read sent 0", "counter_read sent 1"]
        *fates, aggregates, ordinary = map(packets, self._runtime.run(lines))
        for fate, (name, total) in enumerate(zip(FATES[1:], fates, strict=True), 1):
            new, self._counted[fate] = total - self._counted[fate], total
            assert name is not None
            counters[name] += new
            if name in DATA_FATES:
                counters["data"] += new
                counters["rx_packets"] += new
            if name not in SENT_FATES:
                counters["rx_frames"] += new
        counters["tx_packets"] += aggregates
        counters["copies"] += ordinary
        counters["tx_frames"] += aggregates + ordinary
