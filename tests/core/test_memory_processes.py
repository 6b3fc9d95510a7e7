"""No memory for a switch as a process: limits on addresses, control groups, a full machine."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from iswitch.core.format.wire import (
    Status,
)
from iswitch.ports import reserved
from iswitch.ports.reserved import SLACK, SMALL, UNLIMITED, SystemBuffers, room
from tests.commands.test_switch_command import PATIENCE, end, resident, switch
from worker_lib import Refused, Worker


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
