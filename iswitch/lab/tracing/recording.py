"""`iswitch record`: `iswitch run` with a trace of every switch."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path

from iswitch.lab.launch.command import run_everywhere
from iswitch.outside import UsageError
from iswitch.traces.reader import Reader


def record(args: argparse.Namespace) -> int:
    """Run the command and say where the traces are; return the exit status of the run.

    Raises:
        UsageError: the folder has traces already.
    """
    folder = Path(args.to)
    former: list[Path] = []
    with suppress(PermissionError):  # told below, as of all folders
        former = sorted(folder.glob("*.pcapng"))
    if former:
        raise UsageError(f"--to {folder} has {former[0].name} already; name another folder")
    args.capture = args.to
    status = run_everywhere(args, "--to")
    for path in sorted(folder.glob("*.pcapng")):
        print(f"iswitch record: {path}{_what_is_in(path)}", file=sys.stderr)
    return status


def _what_is_in(path: Path) -> str:
    if not (size := path.stat().st_size):  # its switch could not write it, and has said why
        return " is empty"
    with Reader(path) as reader:
        if next(reader.batches(), None) is None:
            return " holds no packets: no worker has joined"
    return f", {size:,} bytes"
