"""Times that hosts and switches take for packets, to choose from by name, and where they are from.

`--host-overhead` is a time for each message and for each byte, in both directions. A message here
is a datagram. `--switch-latency` delays each packet, and `--switch-rate` is that of the pipeline
which all packets of a switch pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from iswitch.faults.units import DELAY, RATE, QuantityError, whole

from .handling import Handling


class Published(NamedTuple):
    """A time with its source; an estimate says so."""

    handling: Handling
    source: str


HOSTS: Mapping[str, Published] = {
    "kernel-udp": Published(
        Handling(per_packet=5e-6, per_byte=0.1e-9),
        "estimate: a UDP packet costs 1 to 10 us in Linux (M. Bose, Kernel Bypass Networking); "
        "a copy at 10 GB/s",
    ),
    "dpdk": Published(
        Handling(per_packet=0.1e-6, per_byte=8 / 75e9),
        "published: eRPC (NSDI 2019, arXiv 1806.00680): 10 million small messages a second and "
        "75 Gbit/s of large ones, on a core",
    ),
    "rdma": Published(
        Handling(latency=0.4e-6),
        "derived: ib_send_lat measures 0.83 us one way for 32 bytes (D. Potter, master's thesis), "
        "of which each side has half; the card moves the bytes",
    ),
}
SWITCHES: Mapping[str, Published] = {
    "fpga": Published(
        Handling(per_byte=8 / 51.2e9, latency=1e-6),
        "estimate of the paper's NetFPGA-SUME: 256 bits in each cycle of 200 MHz, and 200 cycles "
        "on the way",
    ),
    "tofino": Published(
        Handling(per_packet=1e-9, latency=0.5e-6),
        "estimate: a packet in each cycle of 1 GHz, whatever its length, and 500 cycles on the way",
    ),
}


def host_handling(text: str) -> Handling:
    """Read the time that a host takes: a name of HOSTS, `2us`, or `2us+0.1ns/B`.

    Raises:
        QuantityError: it is none of these.
    """
    if text in HOSTS:
        return HOSTS[text].handling
    each, plus, byte = text.partition("+")
    time, slash, unit = byte.partition("/")
    if plus and (not slash or unit.strip() != "B"):
        raise QuantityError(f"{text!r}: write a time for each byte as in 2us+0.1ns/B")
    try:
        return Handling(_time(each), _time(time) if plus else 0.0)
    except QuantityError as error:
        raise QuantityError(f"{text!r} is none of {', '.join(HOSTS)}; {error}") from None


def _time(text: str) -> float:
    seconds = DELAY.number(text)
    if seconds < 0:
        raise QuantityError(f"{text!r} is a negative time; write 0s or more")
    return seconds


def switch_handling(latency: str | None, rate: str | None = None) -> Handling:
    """Read the time that a switch takes for packets.

    Args:
        latency: a name of SWITCHES, or a time; None: no latency.
        rate: bit/s of the pipeline, such as 51.2Gbit; None: no limit, or the named one's.

    Raises:
        QuantityError: one of them is wrong.
    """
    if latency is not None and latency in SWITCHES:
        handling = SWITCHES[latency].handling
    else:
        try:
            handling = Handling(latency=_time(latency) if latency else 0.0)
        except QuantityError as error:
            raise QuantityError(f"{latency!r} is none of {', '.join(SWITCHES)}; {error}") from None
    if rate is None:
        return handling
    if (bits := whole(RATE, rate)) <= 0:
        raise QuantityError(f"{rate!r} is no rate; write one above 0, such as {RATE.example}")
    return handling._replace(per_byte=8 / bits)
