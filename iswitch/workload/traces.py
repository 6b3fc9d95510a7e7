"""What importers of traces share: files read whole, and what comes of them."""

from __future__ import annotations

import gzip
from collections import Counter
from typing import NamedTuple

from iswitch.outside import UsageError
from iswitch.system.files import open_at_once

from .records import Workload, parse

MOST = 1 << 30  # bytes of a trace, unpacked


class Imported(NamedTuple):
    """A workload, and how many calls of other collectives were left out, by name."""

    workload: Workload
    left_out: Counter[str]


def unpacked(path: str) -> bytes:
    """Read a trace, compressed by gzip or not.

    Raises:
        UsageError: it has more than MOST bytes.
        OSError, EOFError, zlib.error: it cannot be read.
    """
    with open_at_once(path) as file:
        content = file.read(MOST + 1)
        if content[:2] == b"\x1f\x8b":
            file.seek(0)
            with gzip.open(file) as packed:
                content = packed.read(MOST + 1)
    if len(content) > MOST:
        raise UsageError(f"{path} has more than {MOST >> 20} MiB; record fewer steps")
    return content


def checked(workload: Workload, left_out: Counter[str]) -> Imported:
    """Return what was imported, unless it has numbers of a damaged trace, which may be anything.

    Raises:
        UsageError: it has.
    """
    parse(f"the workload of {workload.name}", workload.text())
    return Imported(workload, left_out)
