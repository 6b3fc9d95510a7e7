"""Run a command on every host of a network whose switches are iSwitches.

iswitch run --topology rack:2x3 --world netns -- python train.py

Builds the network, starts a process for every switch, and runs the command on every host. The
command's environment has ISWITCH_SWITCH (HOST:PORT of the host's switch), ISWITCH_JOB, RANK,
WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT; `Worker.from_env` reads them.
Lines of output begin with the host's name. With --jobs, several commands run side by side, each on
hosts of its own. A switch that dies is started again, and so is a command that fails, with
--max-restarts. When all commands have ended, or one has failed for good, all processes are ended
and the network is removed; of --jobs, only the processes of the job that failed. The exit status is
that of the first command that failed, or 128 + n if signal n killed it.
"""

from __future__ import annotations

import argparse

from iswitch.core.jobs.policies import POLICIES
from iswitch.lab.launch.cables import CABLES
from iswitch.lab.launch.worlds import WORLDS
from iswitch.lab.options import integer, quantity, whole

from .place import add_policy
from .switch import slots
from .switches import add_switches, check_switches


def configure(parser: argparse.ArgumentParser, captures: bool = True) -> None:
    """Add the options; add --capture only if `captures` is true."""
    kinds = "; ".join(f"{name}: {meaning}" for name, meaning in WORLDS.items())
    parser.add_argument(
        "--topology",
        required=True,
        metavar="FORM",
        help="such as star:4, rack:2x3, tree:2x2x3, leafspine:2x4x4, fattree:k=4, or a .toml file",
    )
    parser.add_argument(
        "--world", choices=WORLDS, default="loopback", help=f"{kinds} (default: %(default)s)"
    )
    parser.add_argument(
        "--workers-per-host",
        type=integer,
        default=1,
        metavar="N",
        help="processes on each host (1)",
    )
    parser.add_argument(
        "--max-restarts",
        type=whole(),
        default=0,
        metavar="N",
        help="restart a command that fails up to N times, with its RANK (0)",
    )
    parser.add_argument(
        "--job", type=integer, default=1, metavar="N", help="ISWITCH_JOB (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs", metavar="FILE",
        help="run the commands of these jobs, each on hosts of its own (docs/place.md)",
    )  # fmt: skip
    add_policy(parser, None, "; with --jobs")
    parser.add_argument(
        "--logs",
        metavar="DIR",
        help="write what each job prints to DIR/NAME.log, too (with --jobs)",
    )
    add_cable(parser)
    parser.add_argument(
        "--no-offload",
        action="store_true",
        help="all packets one by one: no segmentation offload in switches, nor in links",
    )
    if captures:
        add_capture(parser)
    add_switch_kind(parser)
    add_virtual(parser)
    add_slow(parser, " (--world sim)")
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
    parser.usage = "%(prog)s [options] --topology FORM (-- COMMAND... | --jobs FILE)"


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add the options for the network of a training."""
    parser.add_argument(
        "--workers", type=integer, metavar="N", help="worker processes (default: 4)"
    )
    parser.add_argument(
        "--topology",
        metavar="FORM",
        help="instead of --workers: a network with a worker on each host, such as star:4, rack:2x3",
    )
    parser.add_argument(
        "--world", choices=WORLDS, default="loopback", help="as for iswitch run (%(default)s)"
    )
    add_switch_kind(parser)
    add_virtual(parser)


def add_slow(options: argparse._ActionsContainer, where: str = "") -> None:
    """Add the option for stragglers; `where` says in which world it is understood."""
    options.add_argument(
        "--slow", action="append", default=[], metavar="RANK=FACTOR",
        help=f"make a worker's computing take FACTOR times as long; may be repeated{where}",
    )  # fmt: skip


def add_virtual(parser: argparse.ArgumentParser) -> None:
    """Add the options of the world in virtual time."""
    options = parser.add_argument_group("virtual time (--world sim; docs/worlds.md)")
    options.add_argument(
        "--compute", metavar="HOW",
        help="what computing between two calls takes: measured (the CPU time; the default), zero, "
        "fixed:3ms, sample:20 (measure 20 times, then their median), or file:TIMES",
    )  # fmt: skip
    options.add_argument(
        "--host-speed", type=quantity(), metavar="X",
        help="multiply measured times by X (1)",
    )  # fmt: skip
    add_jitter(options)
    add_nodes(options)
    options.add_argument(
        "--real-clock", action="store_true",
        help="let programs see real time in `time`; the library's own waits stay virtual",
    )  # fmt: skip


def add_jitter(options: argparse._ActionsContainer) -> None:
    """Add the option for computing times that differ by chance."""
    options.add_argument(
        "--jitter", metavar="lognormal:S",
        help="multiply times by random factors, the deviation of whose logarithm is S",
    )  # fmt: skip


def add_nodes(options: argparse._ArgumentGroup) -> None:
    """Add the options of the nodes of a simulated network."""
    options.add_argument(
        "--grain", metavar="N",
        help="packets that may be one event of the network: 1 is exact, auto is fast (auto)",
    )  # fmt: skip
    add_handling(options)
    options.add_argument(
        "--switch-rate", metavar="RATE", help="rate of each switch's pipeline (no limit)"
    )


def add_handling(options: argparse._ActionsContainer, usual: str = "none") -> None:
    """Add what packets cost hosts and switches; `usual`: what that is without the options."""
    options.add_argument(
        "--host-overhead", metavar="TIME",
        help="what a packet costs a host: kernel-udp, dpdk, rdma, 2us, or 2us+0.1ns/B "
        f"(default: {usual})",
    )  # fmt: skip
    options.add_argument(
        "--switch-latency", metavar="TIME",
        help=f"how long a switch delays a packet: fpga, tofino, or a time (default: {usual})",
    )  # fmt: skip


def add_capture(parser: argparse.ArgumentParser) -> None:
    """Add the option for captures."""
    parser.add_argument(
        "--capture",
        metavar="DIR",
        help="write the frames at each switch's ports to DIR/SWITCH.pcapng, after a restart to "
        "DIR/SWITCH.2.pcapng, ...",
    )


def add_cable(parser: argparse.ArgumentParser) -> None:
    """Add the option that says how packets between workers and their switch travel."""
    ways = "; ".join(f"{name}: {meaning}" for name, meaning in CABLES.items())
    parser.add_argument(
        "--cable", choices=CABLES, default="veth", help=f"{ways} (default: %(default)s)"
    )


def add_switch_kind(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the kinds of switches."""
    add_switches(parser, kinds=True)
    parser.add_argument(
        "--fallback",
        type=fallback,
        metavar="POLICY:N",
        help="put a switch above the root, to which the root passes on what finds none of its N "
        "slots: besteffort:N, or preempt:N (docs/sharing.md)",
    )


def fallback(text: str) -> tuple[str, int]:
    """Parse a policy that passes segments on, and a number of slots."""
    policy, _, number = text.partition(":")
    kinds = [name for name, kind in POLICIES.items() if kind.passes_on]
    if policy not in kinds or not number:
        raise argparse.ArgumentTypeError(f"{text!r} is not {' or '.join(f'{k}:N' for k in kinds)}")
    return policy, slots(number)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from iswitch.lab.launch.command import run_everywhere

    check_switches(args.switch)
    return run_everywhere(args)
