"""Record what passes the switches while a command runs on every host, as `iswitch run` has it.

iswitch record --to traces --topology star:4 -- python train.py

Writes a pcapng file for every switch, DIR/SWITCH.pcapng, to be opened in Wireshark or put through
the switch again by `iswitch replay`. All else is as in `iswitch run`, whose options it takes. In
the loopback world packets are written in the frames that they would be in.
"""

from __future__ import annotations

import argparse

from . import run as running


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--to", required=True, metavar="DIR", help="where the traces are written")
    running.configure(parser, captures=False)
    parser.usage = "%(prog)s --to DIR [options] --topology FORM -- COMMAND..."


def run(args: argparse.Namespace) -> int:
    """Run the command, and say where the traces are."""
    from iswitch.lab.tracing.recording import record

    return record(args)
