"""No memory: whatever cannot be had, no sum is wrong, and the switch goes on.

In the pure object every line that handles data may lack memory, and every buffer of a Join.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.packets import Address, Burst, Outgoing, Rows
from iswitch.core.format.wire import (
    FLAG_REPRODUCIBLE,
    FLAG_WHOLE,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    DType,
    Join,
    Mode,
    Shape,
    Status,
    slots_flags,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums.buffers import HEADROOM, REQUEST, Buffers
from iswitch.core.sums.numpy_plane import memory_needed
from iswitch.core.switch import Switch
from iswitch.ports import reserved
from iswitch.ports.reserved import SLACK, SystemBuffers
from iswitch.ports.udp import UdpPort
from tests.commands.test_switch_command import PATIENCE, end, switch
from tests.fuzz.invariants import check_state
from tests.support.lines import Lines
from tests.support.parts import packets_of, peer, rows_of, segments_of
from worker_lib import Worker
from worker_lib.protocol.session import Session

WORKERS = 3
ROUNDS = 4
STEP = int(os.environ.get("ISWITCH_MEMORY_STEP", "149"))  # lines; `make fuzz` takes all of them


class History:
    """Workers of one job that send again what was not summed up, in an order drawn by chance.

    Every contribution has a bit of its own, so that a sum says which are in it, and how often.
    """

    def __init__(self, seed: int, mode: Mode, fails_at: int | None, flags: int) -> None:
        self.rng = random.Random(seed)
        self.shape = Shape.of(11, DType.INT32, elements=3, mode=mode)  # the last one is short
        self.switch = Switch()
        self.lines = Lines(fails_at)
        self.now = 0.0
        self.sums: list[dict[tuple[int, int], bytes]] = [{} for _ in range(WORKERS)]
        self.given: dict[tuple[int, int], bytes] = {}
        self.counted: dict[int, int] = defaultdict(int)  # by segment: bits of all versions
        self.reach = 0
        for who in range(WORKERS):
            value = Join.for_shape(self.shape, expected=WORKERS, flags=flags)
            self.reach = value.slots // 2
            packet = Control(Action.JOIN, 7, 1000, value).build()
            self.send(who, TOS_CONTROL, rows_of([packet]), len(packet))

    def send(self, who: int, tos: int, rows: Rows, tail: int) -> None:
        with self.lines.watching() if tos == TOS_DATA else nullcontext():
            sends = self.switch.receive(Burst(peer(who), tos, rows, tail), self.now)
        self.take(sends)

    def take(self, sends: list[Outgoing]) -> None:
        for out in sends:
            if out.tos != TOS_DATA:
                continue
            for payload in packets_of(out):
                round_, index = int.from_bytes(payload[:4]), int.from_bytes(payload[4:8])
                self.check(round_, index, payload[8:])
                for to in out.peers:
                    self.sums[to.port - 40000][round_, index] = payload[8:]

    def check(self, round_: int, index: int, total: bytes) -> None:
        known = self.given.setdefault((round_, index), total)
        assert known == total, "two aggregates of one segment"

    def contribute(self, who: int, round_: int, bit: int) -> None:
        """Segments that lack a sum (asynchronous: all), or some of them, in one or two bursts."""
        payloads = segments_of(self.shape, round_, np.full(11, 1 << bit, np.int32))
        wanted = [i for i in range(len(payloads)) if (round_, i) not in self.sums[who]]
        if self.reach:
            wanted = [i for i in wanted if i < wanted[0] + self.reach]
        if self.rng.random() < 0.3:
            wanted = sorted(self.rng.sample(wanted, self.rng.randint(0, len(wanted))))
        size = self.shape.packet_size
        cut = self.rng.randint(0, len(wanted))
        for some in (wanted[:cut], wanted[cut:]):
            if some:
                rows = rows_of([payloads[i].ljust(size, b"\0") for i in some])
                self.send(who, TOS_DATA, rows, len(payloads[some[-1]]))
                check_state(self.switch, self.now)

    def pass_time(self) -> None:
        self.now += 0.2
        due = self.switch.deadline()
        if due is not None and due <= self.now:
            self.take(self.switch.handle_timer(self.now))
            check_state(self.switch, self.now, timer_handled=True)


def run_rounds(seed: int, fails_at: int | None, flags: int = 0) -> History:
    """Rounds to their end; every sum is checked."""
    history = History(seed, Mode.SYNCHRONOUS, fails_at, flags)
    for round_ in range(ROUNDS):
        exact = sum(1 << (WORKERS * round_ + who) for who in range(WORKERS))
        for _ in range(40):
            late = [
                who
                for who in range(WORKERS)
                if sum(r == round_ for r, _ in history.sums[who]) < history.shape.segments
            ]
            if not late:
                break
            history.rng.shuffle(late)
            for who in late:
                history.contribute(who, round_, WORKERS * round_ + who)
            history.pass_time()
        else:
            raise AssertionError(f"round {round_} is not done")
        for (of, _), total in history.given.items():
            assert of != round_ or set(np.frombuffer(total, np.int32).tolist()) == {exact}
    return history


def run_versions(seed: int, fails_at: int | None) -> History:
    """Contributions without an order; each is in one version at most, and three are in each."""
    history = History(seed, Mode.ASYNCHRONOUS, fails_at, 0)
    for number in range(1, 9):
        for who in history.rng.sample(range(WORKERS), WORKERS):
            history.contribute(who, number, WORKERS * (number - 1) + who)
            history.pass_time()
    found: dict[int, int] = defaultdict(int)
    for (_, index), total in history.given.items():
        (bits,) = set(np.frombuffer(total, np.int32).tolist())
        assert bits.bit_count() == WORKERS
        assert not found[index] & bits, "a contribution counted twice"
        found[index] |= bits
    assert found
    return history


RUNS: dict[str, Callable[[int, int | None], History]] = {
    "arrival order": run_rounds,
    "rank order": lambda seed, at: run_rounds(seed, at, FLAG_REPRODUCIBLE),
    "slots": lambda seed, at: run_rounds(seed, at, FLAG_WHOLE | slots_flags(2)),
    "asynchronous": run_versions,
}


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("seed", range(4))
def test_memory_that_lacks_at_any_line_makes_no_sum_wrong(kind: str, seed: int) -> None:
    """Wherever data is handled, over random histories against an oracle of the sums."""
    history = RUNS[kind](seed, None)
    assert not history.switch.counters["no_memory"]
    dropped = 0
    for fails_at in range(1 + seed, history.lines.count, STEP):
        failed = RUNS[kind](seed, fails_at)
        dropped += failed.switch.counters["no_memory"]
    assert dropped


class Scarce(Buffers):
    """Gives so many buffers, and no more until it is told to."""

    def __init__(self) -> None:
        self.left = 1 << 30
        self.said: list[tuple[int, int]] = []

    def take(self, nbytes: int) -> Rows:
        self.leave_room(0)
        return super().take(nbytes)

    def leave_room(self, segments: int, nbytes: int = HEADROOM) -> None:  # noqa: ARG002
        if nbytes == REQUEST:
            return
        if not self.left:
            raise MemoryError
        self.left -= 1

    def refused(self, job: int, nbytes: int) -> None:
        self.said.append((job, nbytes))


def asked(machine: Switch, who: Address, job: int, join: Join, incarnation: int = 1000) -> Status:
    packet = Control(Action.JOIN, job, incarnation, join).build()
    (out,) = machine.receive(Burst.single(who, TOS_CONTROL, packet), 0.0)
    answer = Control.parse(packets_of(out)[0])
    assert isinstance(answer.value, Ack)
    told_by[:] = [answer.value]
    return Status(answer.status)


told_by: list[Ack] = []  # the last of them


@pytest.mark.parametrize(
    ("mode", "flags"),
    [
        (Mode.SYNCHRONOUS, 0),
        (Mode.SYNCHRONOUS, FLAG_REPRODUCIBLE),
        (Mode.SYNCHRONOUS, FLAG_WHOLE | FLAG_REPRODUCIBLE | slots_flags(512)),
        (Mode.ASYNCHRONOUS, 0),
    ],
)
def test_a_join_that_lacks_any_buffer_changes_nothing(mode: Mode, flags: int) -> None:
    """The first and the second member of a job lack each buffer in turn, and get it at last."""
    scarce = Scarce()
    machine = Switch(Limits(memory=1 << 20, buffers=scarce))
    small, large = Shape.of(5), Shape.of(5000, mode=mode)
    assert asked(machine, peer(0), 1, Join.for_shape(small)) is Status.OK
    before = machine.record.reserved
    refusals = 0
    for who in (1, 2):
        for lacking in range(20):
            scarce.left = lacking
            join = Join.for_shape(large, expected=2, flags=flags)
            status = asked(machine, peer(who), 2, join)
            check_state(machine, 0.0)
            if status is Status.OK:
                break
            assert status is Status.FULL
            assert told_by[0].threshold >= 1, "how much it lacked, be it next to nothing"
            assert told_by[0].round >= told_by[0].threshold, "of the machine, not of --memory"
            refusals += 1
            assert machine.counters["joins_without_memory"] == len(scarce.said) == refusals
            assert scarce.said[-1][0] == 2
            assert machine.record.reserved == before
            assert (2 in machine.jobs) == (who == 2)
            scarce.left = 1 << 30
            number = 1000 + 10 * refusals
            status = asked(machine, peer(7), 3, Join.for_shape(small), number)
            assert status is Status.OK  # a smaller one
            leave = Control(Action.LEAVE, 3, number + 1).build()
            machine.receive(Burst.single(peer(7), TOS_CONTROL, leave), 0.0)
        else:
            raise AssertionError("it is never let in")
        assert lacking >= 1
        before = machine.record.reserved
    assert refusals >= 3


def test_nobody_makes_room_for_one_that_is_refused() -> None:
    """A silent member stays in a whole job if the newcomer's Join is answered FULL."""
    scarce = Scarce()
    machine = Switch(Limits(memory=1 << 20, buffers=scarce))
    join = Join.for_shape(Shape.of(5000), expected=2, flags=FLAG_REPRODUCIBLE | FLAG_WHOLE)
    for who in range(2):
        assert asked(machine, peer(who), 2, join) is Status.OK
    job = machine.jobs[2]
    lost = job.members.by_address[peer(1)]
    job.members.by_address[peer(0)].last_seen = 50.0
    del job.accelerator._contributions[lost.rank]  # type: ignore[union-attr]
    scarce.left = 0
    packet = Control(Action.JOIN, 2, 1000, join).build()
    (answer,) = machine.receive(Burst.single(peer(2), TOS_CONTROL, packet), 50.0)
    assert Control.parse(packets_of(answer)[0]).status == Status.FULL
    assert list(job.members.by_address) == [peer(0), peer(1)]
    check_state(machine, 50.0)


def test_all_that_a_job_needs_is_looked_at_before_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With E = 1 tables and headers are most of it, and none of them is a large buffer."""
    monkeypatch.setattr(reserved, "room", lambda: SLACK + (20 << 20))
    said: list[str] = []
    machine = Switch(Limits(memory=1 << 30, buffers=SystemBuffers(said.append)))
    large = Shape.of(200_000, elements=1)
    assert memory_needed(large, False, True) > 20 << 20
    assert asked(machine, peer(0), 1, Join.for_shape(large)) is Status.FULL
    assert "job 1" in said[0]
    small = Shape.of(100_000, elements=1)
    assert asked(machine, peer(0), 2, Join.for_shape(small)) is Status.OK


# Workers


@pytest.mark.parametrize("kind", ["Worker", "AsynchronousWorker"])
def test_a_vector_too_large_for_a_worker(kind: str) -> None:
    """In a process of its own, whose addresses are limited: one sentence that names the mend."""
    extra = "num_workers=1, update=print, state=[np.zeros(1)]" if kind != "Worker" else ""
    script = f"""
import resource, sys
import numpy as np
from worker_lib import {kind}
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
try:
    {kind}(("127.0.0.1", 9), 7, 900_000_000, {extra})
except MemoryError as error:
    sys.exit(str(error))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE
    )
    assert re.fullmatch(r"no memory for packets of 900,000,\d+ elements .*smaller.*\n", done.stderr)


@pytest.mark.parametrize("where", ["receive", "handle_timer", "transmissions", "push"])
def test_packets_for_which_a_worker_has_no_memory(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """They count as lost, and are asked for or sent again; its own thread goes on, too."""
    owner: Any = UdpPort if where == "push" else Session
    lacks = random.Random(5)
    real, likely = getattr(owner, where), 0.2
    monkeypatch.setenv("ISWITCH_FAST", "0")  # compiled rounds come by none of these

    def scarce(*arguments: Any) -> Any:
        if lacks.random() < likely:
            raise MemoryError
        return real(*arguments)

    with switch() as (process, at):
        with Worker(at, 7, 100_000, 1, timeout=PATIENCE) as worker:
            monkeypatch.setattr(owner, where, scarce)
            for i in range(1, 20):
                assert set(worker.allreduce(np.full(100_000, i, np.float32)).tolist()) == {i}
            likely = 1.0  # also while it only attends to the job
            worker._session._next_heartbeat = 0.0
            worker._attend()
            likely = 0.0
            assert worker.stats()["no_memory"]
            assert worker.allreduce(np.ones(100_000, np.float32)).sum() == 100_000
        end(process)
