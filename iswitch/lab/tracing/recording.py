"""`iswitch record`: `iswitch run` with a trace of every switch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from iswitch.lab.launch.command import run_everywhere
from iswitch.outside import UsageError
from iswitch.traces.reader import Reader


def record(args: argparse.Namespace) -> int:
    """Run the command and say where the traces are; returns the exit status of the run.

    Raises:
        UsageError: the folder has traces already.
    """
    folder = Path(args.to)
    if former := sorted(folder.glob("*.pcapng")):
        raise UsageError(f"--to {folder} has {former[0].name} already; name another folder")
    args.capture = args.to
    status = run_everywhere(args)
    for path in sorted(folder.glob("*.pcapng")):
        with Reader(path) as reader:
            holds = f", {path.stat().st_size:,} bytes"
            if next(reader.batches(), None) is None:
                holds = " holds no packets: no worker has joined"
        print(f"iswitch record: {path}{holds}", file=sys.stderr)
    return status
