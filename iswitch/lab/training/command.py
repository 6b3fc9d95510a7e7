"""`iswitch demo` and `iswitch train`, from their options to their files."""

from __future__ import annotations

import argparse
import json
import sys

from iswitch.lab.launch.simulated import virtual_of
from iswitch.lab.launch.worlds import chosen_topology, made_folder, make_world, p4_switches
from iswitch.outside import OutsideError, UsageError
from iswitch.system.files import check_writable, whole, write, write_each
from iswitch.system.interrupts import end_at_once, heed
from iswitch.workload.records import Record, Workload

from .choosing import check_demo, demo_topology, plan_of
from .conduct import Launch, conduct
from .demo import MOST_RESTARTS, DemoRecord, DemoScreen
from .demo import command as demo_command
from .plot import plot
from .sums import any_orders
from .train import ROW_PAUSE, ROW_PAUSE_OF_SIM, TrainRecord, TrainScreen

MOST_ORDERS = 10_000  # in which a sum can have been added up


def demo(args: argparse.Namespace) -> int:
    """Train the demo; return the exit status.

    Raises:
        OutsideError: it cannot run here, or a file cannot be written.
    """
    check_demo(args)
    topology = demo_topology(args)
    is_p4 = bool(p4_switches(args.world, topology, args.switch, args.capture))
    capture = made_folder(args.capture, "--capture")
    if is_p4 and any_orders(topology, topology.root.name) > MOST_ORDERS:
        raise UsageError(
            f"a P4 program adds in any order, and a sum of {len(topology.hosts)} workers cannot "
            "be checked; take 7 at most at a switch, or racks of 3, such as rack:2x3"
        )
    record = DemoRecord(topology, args.iterations, args.seed, any_order=is_p4)
    screen = DemoScreen(record)
    virtual = virtual_of(args, len(topology.hosts))
    world = make_world(
        args.world, topology, switches=args.switch, virtual=virtual, fallback=args.fallback
    )
    launch = Launch(world, demo_command(record), capture, MOST_RESTARTS)
    status = conduct(launch, record, screen)
    if record.failure is None and record.done:
        if args.json:
            write(args.json, json.dumps(screen.report, indent=1))
        if args.plot:
            with whole(args.plot):
                plot(record, args.plot)
    return status


def train(args: argparse.Namespace) -> int:
    """Train; return the exit status.

    Raises:
        OutsideError: the training cannot run here, or a file cannot be written.
    """
    end_at_once()  # loading torch cannot be interrupted otherwise
    topology = chosen_topology(args.topology, args.workers)
    plan = plan_of(args, topology)
    for path in (args.json, args.record_workload):
        check_writable(path, args.topology)
    pause = ROW_PAUSE_OF_SIM if args.world == "sim" else ROW_PAUSE
    record = TrainRecord(plan, len(topology.hosts), args.out, pause)
    screen = TrainScreen(record, args.world)
    heed()
    command = [sys.executable, "-P", "-m", "worker_lib.rl.worker_process", plan.to_json()]
    virtual = virtual_of(args, len(topology.hosts))
    world = make_world(
        args.world, topology, switches=args.switch, virtual=virtual, fallback=args.fallback
    )
    status = conduct(Launch(world, command, prepare=record.prepare), record, screen)
    write_each([
        (args.json, lambda path: write(path, report(record, status))),
        (args.record_workload, lambda path: write(path, workload_of(record, path).text())),
    ])  # fmt: skip
    return status


def report(record: TrainRecord, status: int) -> str:
    """Return all that was measured, as JSON."""
    return json.dumps(record.report() | {"status": status}, indent=1)


def workload_of(record: TrainRecord, name: str) -> Workload:
    """Return what the workers computed, an allreduce in each step.

    Raises:
        OutsideError: nothing has been recorded.
    """
    gaps = [learner.gaps for learner in record.learners]
    steps = min(map(len, gaps))
    if not steps or record.started is None:
        raise OutsideError(f"{name} is not written: no worker has finished an iteration")
    size = int(record.started["message"])
    records = tuple(
        Record(step, rank, own[step], "allreduce", size)
        for step in range(steps)
        for rank, own in enumerate(gaps)
    )
    return Workload(name, len(gaps), records, record.title)
