"""Parses the values of options that commands share."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
from collections.abc import Callable, Mapping

from iswitch.faults.units import Unit
from iswitch.hostnames import as_ascii
from iswitch.outside import UsageError, extra

MOST = 1e9  # of any quantity: 31 years, a petabyte
DIGITS = 12  # of a whole number without another limit
MOST_DIGITS = 20  # of one with another: Python refuses to read numbers without end
MAX_JOB = 0xFFFF
FLAGS = {"settings": "set"}  # of options whose names differ
PICTURES = (".png", ".svg", ".pdf")
PIP_DEMO = extra("demo")


def host_port(text: str) -> tuple[str, int]:
    """Parse HOST:PORT, HOST or :PORT."""
    from iswitch.core.format.wire import PORT  # needs NumPy, without which the doctor has to run

    host, _, port = text.rpartition(":") if ":" in text else (text, "", str(PORT))
    if ":" in host:
        raise argparse.ArgumentTypeError(f"{text!r}: IPv4 only, such as 127.0.0.1:26963")
    try:
        host = as_ascii(host)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if not is_port(port):
        example = "write HOST:PORT, such as 127.0.0.1:26963, with a port from 0 to 65535"
        raise argparse.ArgumentTypeError(f"{text!r}: {example}")
    return host or "0.0.0.0", int(port)


def port_here(text: str) -> tuple[str, int]:
    """Parse [HOST:]PORT; the host is this machine unless it is named."""
    if ":" in text:
        return host_port(text)
    if not is_port(text):
        raise argparse.ArgumentTypeError(f"{text!r}: write a port from 0 to 65535, or HOST:PORT")
    return "127.0.0.1", int(text)


def is_port(text: str) -> bool:
    """Return whether a text is a number of a port, or 0 for any."""
    return text.isdecimal() and len(text) <= 5 and int(text) <= 65535


def udp_port(text: str) -> int:
    """Parse a UDP port."""
    if not (text.isdecimal() and len(text) <= 5 and 0 < int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is no UDP port; write 1 to 65535")
    return int(text)


def mac(text: str) -> bytes:
    """Parse the MAC of a single station."""
    try:
        value = bytes.fromhex(text.replace(":", ""))
    except ValueError:
        value = b""
    if len(value) != 6 or value[0] & 1:
        raise argparse.ArgumentTypeError(f"{text!r}: write it as 02:69:0a:1a:ff:fe")
    return value


def integer(text: str) -> int:
    """Parse a whole number, as an argparse type; the command itself checks its range."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number") from None


def whole(least: int = 0, most: int | None = None) -> Callable[[str], int]:
    """Make an argparse type: a whole number from `least` to `most`."""
    top = 10**DIGITS - 1 if most is None else most

    def parse(text: str) -> int:
        if not text.isdecimal() or len(text) > MOST_DIGITS or not least <= int(text) <= top:
            limits = f"of {least} or more" if most is None else f"from {least} to {most}"
            long = f", of {DIGITS} digits at most" * (most is None and len(text) > DIGITS)
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {limits}{long}")
        return int(text)

    return parse


def quantity(least: float | None = None, unit: Unit | None = None) -> Callable[[str], float]:
    """Make an argparse type: a number from `least` (None: above 0) to MOST.

    Args:
        least: the least value.
        unit: reads values that may name a unit; the number is in the one of those that name none.
            None: a bare number.
    """

    def parse(text: str) -> float:
        try:
            value = unit.bare_number(text) if unit else float(text)
        except ValueError:
            value = math.nan
        enough = value > 0 if least is None else value >= least
        if not enough or value > MOST:
            wanted = "above 0" if least is None else f"of {least:g} or more"
            wanted += f", {MOST:g} at most" if value > MOST else ""
            if unit:
                wanted += f" (in {unit.bare}, or with a unit: {', '.join(unit.scales)})"
                helps = least is None or unit.bare_number(unit.example) >= least
                wanted += f"; write {unit.example}" if helps else ""
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {wanted}")
        return value

    return parse


def option_words(text: str) -> list[str]:
    """Split the options of another command, each apart from its value; may raise ValueError."""
    return [
        part
        for word in shlex.split(text)
        for part in (word.split("=", 1) if word.startswith("--") else [word])
    ]


def refuse(
    args: argparse.Namespace,
    options: Mapping[str, object],
    why: str,
    instead: Mapping[str, str] | None = None,
) -> None:
    """Refuse options that are given and mean nothing here.

    Args:
        args: all options.
        options: those that mean nothing, each with what it is if nobody gives it.
        why: what the message says of one.
        instead: what to do instead; of others: leave it out.

    Raises:
        UsageError: the message names the first one, and says why.
    """
    for name, without in options.items():
        if getattr(args, name) != without:
            flag = FLAGS.get(name, name).replace("_", "-")
            raise UsageError(f"--{flag} {why}; {(instead or {}).get(name, 'leave it out')}")


def check_picture(path: str | None) -> None:
    """Refuse a --plot whose name does not say what kind of picture it shall be; None: no --plot.

    Raises:
        UsageError: the message lists the kinds.
    """
    if path and not path.endswith(PICTURES):
        raise UsageError(f"--plot {path}: give a name that ends in {' or '.join(PICTURES)}")


def command() -> str:
    """Return this process's command line as text, quoted for a shell."""
    return shlex.join(["iswitch", *sys.argv[1:]])


def foot(chosen: str | None, page: str, kind: str) -> str:
    """Name the file that a page's link saves: as `chosen`, else as the page, ending in `kind`."""
    return os.path.basename(chosen or f"{os.path.splitext(page)[0]}.{kind}")


def workers(count: int) -> str:
    """Write a number of workers in words."""
    return f"{count or 'no'} worker{'s' * (count != 1)}"
