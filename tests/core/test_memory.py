"""No memory: whatever cannot be had, no sum is wrong, and the switch goes on.

In the pure object every line that handles data may lack memory, and every buffer of a Join; as a
process the switch meets limits on addresses and of a control group.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import re
import resource
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import Mock

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
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums.buffers import HEADROOM, REQUEST, Buffers
from iswitch.core.sums.numpy_plane import memory_needed
from iswitch.core.switch import Switch
from iswitch.ports import reserved
from iswitch.ports.reserved import SLACK, SMALL, UNLIMITED, SystemBuffers, room
from iswitch.ports.udp import UdpPort
from tests.commands.test_switch_command import PATIENCE, end, resident, switch
from tests.fuzz.invariants import check_state
from tests.support.parts import packets_of, peer, rows_of, segments_of
from worker_lib import Refused, Worker
from worker_lib.protocol.session import Session

WORKERS = 3
ROUNDS = 4
STEP = int(os.environ.get("ISWITCH_MEMORY_STEP", "149"))  # lines; `make fuzz` takes all of them
MODULES = (
    "accelerator.py",
    "synchronous.py",
    "asynchronous.py",
    "packets.py",
    "job.py",
    "switch.py",
)
# What may not be interrupted, and needs nothing but small objects, for which a Join has left room.
INDIVISIBLE = {"_count_in", "_keep", "write", "_add", "_given_up", "_count_in_each"}
# Not for data: what is called there belongs to members, not to packets.
OUTSIDE = {
    "begin",
    "join",
    "__init__",
    "receive",
    "_control",
    "handle_timer",
    "deadline",
    "not_below",
}


class Lines:
    """Counts lines that handle data, and lacks memory at one of them."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.count = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.endswith(MODULES) or "iswitch" not in code.co_filename:
            return None
        if code.co_name in INDIVISIBLE | OUTSIDE:
            return None
        if event == "line":
            self.count += 1
            if self.count == self.fails_at:
                raise MemoryError
        return self

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)


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
        for who in range(WORKERS):
            value = Join.for_shape(self.shape, expected=WORKERS, flags=flags)
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
    [(Mode.SYNCHRONOUS, 0), (Mode.SYNCHRONOUS, FLAG_REPRODUCIBLE), (Mode.ASYNCHRONOUS, 0)],
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
            join = Join.for_shape(large, flags=flags)
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


# Processes


@contextmanager
def a_running_job(where: tuple[str, int]) -> Iterator[Callable[[], int]]:
    """Two workers that sum up all the time; how many rounds they have done, each exact."""
    stop, done, wrong = threading.Event(), [0, 0], []

    def work(i: int) -> None:
        with Worker(where, 7, 50_000, 2, dtype="int32", timeout=PATIENCE) as worker:
            total = 1
            while total > 0:  # the last round is one of both
                vector = np.full(50_000, done[i] % 1000 + 1, np.int32)
                if stop.is_set():
                    vector[:] = -1_000_000
                total = int(worker.allreduce(vector)[0])
                if total > 0 and total != 2 * (done[i] % 1000 + 1):
                    wrong.append(total)
                done[i] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield lambda: min(done)
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert not wrong
        assert min(done) > 3


def refused_and_served(process: Any, where: tuple[str, int]) -> None:
    """A large job is refused, smaller ones are taken in, and one that runs does not notice."""
    with a_running_job(where) as rounds_done:
        for numel in (100_000_000, 60_000_000):
            with pytest.raises(Refused, match="memory") as raised:
                Worker(where, 8, numel, timeout=PATIENCE)
            assert raised.value.status is Status.FULL
        before = rounds_done()
        with Worker(where, 8, 1_000_000, timeout=PATIENCE) as worker:
            assert worker.allreduce(np.ones(1_000_000, np.float32)).sum() == 1_000_000
        while rounds_done() < before + 3:
            assert process.poll() is None
    process.send_signal(2)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "joins_without_memory" in out
    assert "job 8: a Join is answered FULL" in err
    assert "smaller --memory" in err
    assert "Traceback" not in err


def test_a_limit_on_addresses() -> None:
    """RLIMIT_AS, as `ulimit -v` sets it."""
    with switch("--memory", "8192") as (process, where):
        limit = resident(process, "VmSize") + (240 << 20)
        resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))
        refused_and_served(process, where)


@contextmanager
def a_control_group(most: int) -> Iterator[Path]:
    """A control group of memory, of version 1 or 2, with a limit."""
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = root / f"iswitch-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            with suppress(OSError):
                (group / limit).write_text(str(most))
            if (group / limit).exists() and (group / limit).read_text().strip() == str(most):
                yield group
                return
        finally:
            group.rmdir()
    pytest.skip("no control group of memory can be made here: run this as root, outside containers")


def test_a_control_group_with_a_limit() -> None:
    """The kernel would end a process that uses more: so it is asked first."""
    with a_control_group(400 << 20) as group, switch("--memory", "8192") as (process, where):
        (group / "cgroup.procs").write_text(str(process.pid))
        refused_and_served(process, where)
        process.wait()


def test_small_and_short_packets_in_a_control_group_with_a_limit() -> None:
    """What a job needs beside its sums counts, and many small jobs as much as a large one."""
    with a_control_group(400 << 20) as group, switch("--memory", "8192") as (process, where):
        (group / "cgroup.procs").write_text(str(process.pid))
        with a_running_job(where) as rounds_done:
            with pytest.raises(Refused, match="memory"):
                Worker(where, 8, 4_000_000, elements_per_segment=1, timeout=PATIENCE)
            with ExitStack() as small:
                jobs = iter(range(10, 400))

                def begin_all() -> None:
                    for job in jobs:
                        small.enter_context(Worker(where, job, 300_000, timeout=PATIENCE))

                with pytest.raises(Refused, match="memory"):
                    begin_all()
                assert 40 < next(jobs) < 390
                before = rounds_done()
                while rounds_done() < before + 3:
                    assert process.poll() is None
        process.send_signal(2)
        assert process.wait(PATIENCE) == 0


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


def test_what_is_reserved_is_in_memory_before_it_is_used() -> None:
    numel = 30_000_000
    with switch("--memory", "1024") as (process, where):
        before = resident(process)
        with Worker(where, 8, numel, timeout=PATIENCE):
            wanted = before + 2 * 4 * numel
            for _ in range(600):
                if resident(process) >= wanted:
                    break
                threading.Event().wait(0.05)
            assert resident(process) >= wanted
        end(process)


def test_system_buffers_are_zero_and_touched() -> None:
    system = SystemBuffers()
    small, large = system.take(1000), system.take(SMALL + 4096)
    assert not small.any()
    assert not large.any()
    large[:] = 7
    for _ in range(200):
        if not system.pending:
            break
        threading.Event().wait(0.05)
    assert system.pending == 0
    assert (large == 7).all()  # the thread has changed nothing


@pytest.mark.parametrize(
    ("error", "calls"), [(errno.EINTR, 1 + 3 + 1), (errno.ENOMEM, 1 + 3 + 1), (errno.EINVAL, 1)]
)
def test_pages_that_the_kernel_does_not_make_at_once(
    monkeypatch: pytest.MonkeyPatch, error: int, calls: int
) -> None:
    """They are asked for again, and the next ones, too; an older kernel is asked only once."""
    monkeypatch.setattr(reserved, "TRY_PAUSE", 0.0)
    system = SystemBuffers()
    asked_for: list[int] = []

    def refuses(at: int, _: int, advice: int) -> int:
        assert advice == reserved.POPULATE_WRITE
        asked_for.append(at)
        if len(asked_for) > 3 and error != errno.EINVAL:
            return 0
        ctypes.set_errno(error)
        return -1

    monkeypatch.setattr(system, "_madvise", refuses)
    buffer = np.zeros(2 * reserved.SLICE, np.uint8)
    system._touch(buffer)
    assert len(asked_for) == calls
    start = buffer.ctypes.data
    assert set(asked_for) <= {start, start + reserved.SLICE}
    assert system.pending == -buffer.nbytes  # whatever became of it, it is not waited for


def test_more_than_the_machine_has() -> None:
    lines: list[str] = []
    system = SystemBuffers(lines.append)
    with pytest.raises(MemoryError):
        system.take(room() + SLACK)
    with pytest.raises(MemoryError):
        system.take(1 << 62)
    for _ in range(3):
        system.refused(7, 1 << 40)
    assert len(lines) == 1
    assert "job 7" in lines[0]
    assert "1,099,511,627,776 bytes" in lines[0]


@pytest.mark.parametrize("version", [1, 2])
def test_the_room_of_control_groups(tmp_path: Path, version: int) -> None:
    """Of a group and those above it the smallest counts; pages of files make room."""
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    1000 kB\n")
    line, root, limit, usage, prefix = {
        1: ("4:memory:/a/b", groups / "memory", "limit_in_bytes", "usage_in_bytes", "total_"),
        2: ("0::/a/b", groups, "max", "current", ""),
    }[version]
    (proc / "self/cgroup").write_text(f"{line}\n3:cpu:/x\n")
    assert room(proc, groups) == 1000 * 1024
    for at, most, used in ((root / "a", 500_000, 100_000), (root / "a/b", 900_000, 450_000)):
        at.mkdir(parents=True)
        (at / f"memory.{limit}").write_text(f"{most}\n")
        (at / f"memory.{usage}").write_text(f"{used}\n")
        (at / "memory.stat").write_text(f"{prefix}inactive_file 0\n{prefix}active_file 0\n")
    assert room(proc, groups) == 400_000
    (root / "a/b/memory.stat").write_text(f"{prefix}inactive_file 5000\n{prefix}active_file 0\n")
    (root / f"a/b/memory.{usage}").write_text("900000\n")
    assert room(proc, groups) == 5000
    if version == 2:
        (root / "a/b/memory.max").write_text("max\n")
        assert room(proc, groups) == 400_000


def test_no_descriptor_to_look_at_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is taken in all the same: the switch must not end."""
    monkeypatch.setattr(Path, "read_text", Mock(side_effect=OSError(errno.EMFILE, "Too many")))
    assert room() == UNLIMITED
    assert SystemBuffers().take(SMALL).nbytes == SMALL


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
