"""Run a command on every host of a network whose switches are iSwitches.

iswitch run --topology rack:2x3 --world netns -- python train.py

Builds the network, starts a switch process for every switch, and runs the command on every host,
with ISWITCH_SWITCH (HOST:PORT of the host's switch), ISWITCH_JOB, RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment: `Worker.from_env` reads these.
Lines of output begin with the host's name. A switch that dies is started again, and so is a command
that fails, with --max-restarts. When the commands have ended, or one of them has failed for good,
everything is ended and removed. The exit status is that of the first that failed, 128 + n if it was
killed by signal n.
"""

from __future__ import annotations

import argparse

from iswitch.lab.launch.worlds import WORLDS, add_capture, add_switch_kind


def configure(parser: argparse.ArgumentParser, captures: bool = True) -> None:
    """Add the options; without `captures` the one for them is left out."""
    kinds = "; ".join(f"{name}: {meaning}" for name, meaning in WORLDS.items())
    parser.add_argument(
        "--topology",
        required=True,
        metavar="FORM",
        help="such as star:4, rack:2x3, tree:2x2x3, leafspine:2x4x4, or a .toml file",
    )
    parser.add_argument(
        "--world", choices=WORLDS, default="loopback", help=f"{kinds} (default: %(default)s)"
    )
    parser.add_argument(
        "--workers-per-host", type=int, default=1, metavar="N", help="processes on each host (1)"
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="start a command that fails again, so many times, as the same RANK (0)",
    )
    parser.add_argument(
        "--job", type=int, default=1, metavar="N", help="ISWITCH_JOB (default: %(default)s)"
    )
    parser.add_argument(
        "--no-offload",
        action="store_true",
        help="all packets one by one: no segmentation offload in switches, nor in links",
    )
    if captures:
        add_capture(parser)
    add_switch_kind(parser)
    parser.add_argument(
        "--key-file",
        metavar="FILE",
        help="a key of all jobs, for switches and commands (ISWITCH_KEY_FILE in their environment)",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write how each worker ended, and the switches' counters"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND...", help="what to run"
    )
    # argparse would write "..." for what follows the options.
    parser.usage = "%(prog)s [options] --topology FORM -- COMMAND..."


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from iswitch.lab.launch.command import run_everywhere

    return run_everywhere(args)
