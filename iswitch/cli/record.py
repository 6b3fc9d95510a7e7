"""Record the packets at all switches while a command runs on every host.

iswitch record --to traces --topology star:4 -- python train.py

Runs the command as `iswitch run` does, whose options it takes. For every switch it writes a file
DIR/SWITCH.pcapng, which Wireshark opens and `iswitch replay` puts through the switch again. In the
loopback world packets are written with made-up Ethernet headers.
"""

from __future__ import annotations

import argparse

from . import run as running
from .switches import check_switches


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--to", required=True, metavar="DIR", help="where the traces are written")
    running.configure(parser, captures=False)
    parser.usage = "%(prog)s --to DIR [options] --topology FORM -- COMMAND..."


def run(args: argparse.Namespace) -> int:
    """Run the command, and say where the traces are."""
    from iswitch.lab.tracing.recording import record

    check_switches(args.switch)
    return record(args)
