"""Measure collectives by several strategies on the same hosts and links, in turns (A B A B).

A turn is several rounds without a pause, as training takes them; sums are checked. `iswitch bench
paper` repeats the comparisons of the iSwitch paper, `iswitch bench federated` those of the FedProx
paper (docs/fedprox.md), and `iswitch bench sharing` compares ways to share a switch's memory among
jobs (docs/bench-sharing.md). Ctrl-C ends it with what was measured so far.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from iswitch.core.jobs.policies import POLICIES
from iswitch.faults.units import MILLISECONDS, TIME
from iswitch.lab.bench.plan import P4_SIZES, SIZES
from iswitch.lab.launch.worlds import WORLDS
from iswitch.lab.options import quantity, refuse, whole
from iswitch.outside import UsageError

from .run import add_jitter, add_nodes, add_slow
from .switch import settings
from .switches import add_switches, check_switches, read_options
from .train import add_devices


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    from worker_lib.strategies import STRATEGIES
    from worker_lib.strategies.collectives import NEEDS, OFFERING

    known = ", ".join((*STRATEGIES, "forward"))
    parser.add_argument(
        "what", nargs="?", choices=("paper", "federated", "sharing"),
        help="the paper's comparison; federated trainings; ways to share a switch's memory "
        "(default: strategies side by side)",
    )  # fmt: skip
    parser.add_argument(
        "--sizes", metavar="LIST",
        help="vectors, such as 40kB,1MiB; the paper's gradients are ppo (40.02 KB), ddpg "
        f"(157.52 KB), a2c (3.31 MB), dqn (6.41 MB) (default: {SIZES}; bmv2: {P4_SIZES})",
    )  # fmt: skip
    parser.add_argument(
        "--collective", metavar="LIST",
        help=f"of allreduce, {', '.join(NEEDS)}; all but allreduce are measured of "
        f"{', '.join(OFFERING)} (default: allreduce)",
    )  # fmt: skip
    parser.add_argument(
        "--strategies", metavar="LIST",
        help=f"of {known}; the others are compared with the first; options follow colons, such as "
        "iswitch:offload=false (default: all that can run here)",
    )  # fmt: skip
    parser.add_argument("--workers", metavar="LIST", help="how many (default: 4; paper: 4,6,9,12)")
    parser.add_argument(
        "--topologies", metavar="LIST",
        help="star or rack (three workers each), for every number of workers; or forms such as "
        "tree:2x2x3, or a .toml file (default: star; paper: star:4, else racks)",
    )  # fmt: skip
    parser.add_argument(
        "--world",
        choices=WORLDS,
        help="as for iswitch run; sim: virtual time (default: loopback; paper: netns)",
    )
    parser.add_argument(
        "--rate",
        metavar="LIST",
        help="rate of all links, such as 1Gbit,100Mbit (unlimited; paper: 100Mbit,1Gbit)",
    )
    parser.add_argument("--loss", metavar="LIST", help="loss on all links, such as 0,1%% (0)")
    turns = parser.add_mutually_exclusive_group()
    turns.add_argument(
        "--seconds", type=quantity(unit=TIME), metavar="S",
        help="for each size and network, at least 20 rounds; paper: 3 (default: 5)",
    )  # fmt: skip
    turns.add_argument(
        "--rounds", type=whole(1), metavar="N", help="rounds, instead of seconds (sim: 5)"
    )
    parser.add_argument(
        "--in-a-row", type=whole(1), metavar="N",
        help="rounds in a turn, without a pause, after two that do not count; 1: single rounds "
        "from a common start (default: 10; paper: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--iterations", type=whole(0), metavar="N",
        help="measure also N whole iterations: compute (sleep), aggregate, update (default: 10; "
        "sim: 3; paper: iterations only)",
    )  # fmt: skip
    parser.add_argument(
        "--compute", type=quantity(0, MILLISECONDS), metavar="MS",
        help="milliseconds to compute a gradient (default: the paper's for its sizes)",
    )  # fmt: skip
    parser.add_argument(
        "--no-offload", action="store_true", help="no segmentation offload, as for iswitch run"
    )
    parser.add_argument(
        "--cable", metavar="LIST",
        help="how packets of workers and their switch travel in namespaces: veth (over the links, "
        "the default), shm (through shared memory), or both, measured one after the other",
    )  # fmt: skip
    parser.add_argument(
        "--pin", action="store_true",
        help="keep each process on one core: switches and servers, then workers, in turns",
    )  # fmt: skip
    add_switches(parser, kinds=False)
    virtual = parser.add_argument_group("virtual time (--world sim; docs/worlds.md)")
    add_slow(virtual)
    add_jitter(virtual)
    add_nodes(virtual)
    add_federated(parser)
    add_sharing(parser)
    parser.add_argument("--json", metavar="FILE", help="write all rounds")
    parser.add_argument("--csv", metavar="FILE", help="write the table's numbers")
    parser.add_argument("--html", metavar="FILE", help="write a page with plots")


def add_federated(parser: argparse.ArgumentParser) -> None:
    """Add the options of `iswitch bench federated`."""
    options = parser.add_argument_group("federated (docs/fedprox.md)")
    options.add_argument(
        "--data", metavar="LIST", help="what devices have, as for iswitch train (the paper's)"
    )
    options.add_argument("--stragglers", metavar="LIST", help="per cent (0,50,90)")
    options.add_argument("--mu", metavar="LIST", help="of FedProx, beside 0 (1)")
    options.add_argument("--seeds", type=whole(1), metavar="N", help="train with seeds 1..N (1)")
    options.add_argument(
        "--accuracy", type=quantity(0), metavar="A",
        help="measure time and bytes to this test accuracy; 0: measure none (0.7)",
    )  # fmt: skip
    add_devices(options)


def add_sharing(parser: argparse.ArgumentParser) -> None:
    """Add the options of `iswitch bench sharing`."""
    options = parser.add_argument_group(
        "sharing (docs/bench-sharing.md)",
        "iswitch bench sharing takes these, --world (sim, the default, netns or loopback), --json "
        "and --html, and no others.",
    )
    options.add_argument(
        "--experiments", metavar="LIST",
        help="of long (short jobs come while a long one runs), search (many trials at once), tree "
        "(jobs across racks); default: all",
    )  # fmt: skip
    options.add_argument(
        "--policies", metavar="LIST", help=f"of {', '.join(POLICIES)}; default: all"
    )
    options.add_argument(
        "--trials", type=whole(1, 1000), metavar="N",
        help="jobs of the experiment search (300; in namespaces 6)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Measure."""
    from iswitch.lab.bench.belonging import OF_FEDERATED, OF_SHARING

    if args.what == "sharing":
        from iswitch.lab.sharing.bench import bench as sharing

        return sharing(args)
    refuse(args, OF_SHARING, "is of iswitch bench sharing")
    if args.what == "federated":
        from iswitch.lab.federated.bench import bench as federated

        return federated(args)
    refuse(args, OF_FEDERATED, "is of iswitch bench federated")
    from iswitch.lab.bench.choosing import check_policies, plan_of, virtual_of
    from iswitch.lab.bench.run import bench

    plan = plan_of(args)
    virtual = virtual_of(args, plan)
    options = options_of_switches(args.switch, args.pin, plan.world)
    check_policies(plan, options)
    return bench(args, plan, options, virtual)


def options_of_switches(texts: Sequence[str], pin: bool, world: str) -> list[str]:
    """Read the options for `iswitch switch`.

    Args:
        texts: values of --switch.
        pin: whether processes are kept on cores.
        world: world in which switches run.

    Raises:
        UsageError: they contradict each other, --pin or the world.
    """
    check_switches(texts)
    options, found = read_options(texts)
    if pin and found.cpu is not None:
        raise UsageError("--switch: with --pin every switch has its core; leave out --cpu")
    if world == "bmv2":
        settings(found).check_p4()
    return options
