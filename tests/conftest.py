"""Switches in processes of their own, and job numbers, for all tests that talk to one."""

from __future__ import annotations

import ast
import functools
import gc
import itertools
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iswitch.fast import loading
from iswitch.fast.keeping import trouble
from p4.tools import CLI, COMPILER, SWITCH, ToolMissing, find
from tests.support import ROOT, machine
from tests.support.networks import left

PATIENCE = 60.0  # seconds for a switch to start, and to end, on a busy machine

Where = tuple[str, int]
Switch = tuple["subprocess.Popen[str]", Where]
StartSwitch = Callable[..., Switch]


def pytest_configure() -> None:
    """Have programs that tests start heed signals, though a shell's background job ignores some.

    They take the Python way, unless the environment or a test says otherwise. What is printed is as
    wide as where nothing says how wide: readline says 80 columns to the processes of xdist.
    """
    os.environ.pop("COLUMNS", None)
    os.environ.setdefault("ISWITCH_FAST", "0")  # Numba takes each process half a second to load
    heed_interrupts()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the fast path before a switch has to start in time; processes of xdist find it.

    The one test of a mutant compiles what it needs by itself.
    """
    plugins = session.config.pluginmanager
    if hasattr(session.config, "workerinput") or plugins.has_plugin("tests.mutants.hurry"):
        return
    if not loading.installed() or trouble():
        return
    if not loading.is_compiled():
        subprocess.run([sys.executable, "-m", "iswitch.fast"], check=True)


def missing_p4() -> str:
    """Say what the P4 program in bmv2 lacks here, a tool or root; nothing: it runs."""
    try:
        for tool in (COMPILER, SWITCH, CLI):
            find(tool)
    except ToolMissing as error:
        return str(error)
    return "" if os.geteuid() == 0 else "namespaces need root"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run; begin with the serial tests, the longest group.

    Units, which are dealt out one by one, come last: no process of `make test` ends long before the
    others.
    """
    items.sort(key=lambda item: ("serial", "", "unit").index(dealt_out(item.path)))
    lacking = missing_p4()
    for item in items:
        root = item.get_closest_marker("root")
        if root and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason=root.kwargs["reason"]))
        if lacking and item.get_closest_marker("p4"):
            item.add_marker(pytest.mark.skip(reason=lacking))


def pytest_collection_finish() -> None:
    """Spare the collector of garbage what stays to the end: tens of thousands of tests."""
    gc.freeze()


@functools.cache
def dealt_out(file: Path) -> str:
    """Say how the tests of a file are dealt out, by its marks: "serial", "unit", or "" by the file.

    The process that deals them out knows tests by their names only. So a mark that decides this is
    one of the whole file.
    """
    marks = marks_of(file.read_text())
    return next((mark for mark in ("serial", "unit") if mark in marks), "")


def marks_of(text: str) -> set[str]:
    """Find the names in the `pytestmark` of a file."""
    named = [
        node.value
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    return {n.attr for value in named for n in ast.walk(value) if isinstance(n, ast.Attribute)}


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist nobody asks
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal tests out to the processes of `make test`.

    All serial tests go to one of them, units one by one, others by the file. (pytest-xdist's own
    groups have no effect with pytest 9.2, where a test cannot be renamed.)
    """
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            how = dealt_out(config.rootpath / file)
            return {"serial": "serial", "unit": nodeid}.get(how, file)

        def remove_node(self, node: Any) -> str | None:
            """Give what a process that died left undone to others, but the test that it died of.

            The one it replaces gives that test out again, and groups that are done, for which a
            process waits without end.
            """
            work = self.assigned_work.pop(node)
            undone = {group: tests for group, tests in work.items() if not all(tests.values())}
            if not undone:
                return None
            tests = next(iter(undone.values()))
            fatal: str = next(name for name, done in tests.items() if not done)
            tests[fatal] = True
            self.workqueue.update((g, t) for g, t in undone.items() if not all(t.values()))
            for other in self.nodes:
                self._reschedule(other)
            return fatal

    return Groups(config, log)


AGAIN = "judged again"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Have a test's report say what the test repeated."""
    report = yield
    report.user_properties += [(AGAIN, told) for told in machine.REPEATED]
    machine.REPEATED.clear()
    return report


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Count tests that passed only when they were judged again, in the last line of all."""
    again = report.when == "call" and report.passed and AGAIN in dict(report.user_properties)
    return (AGAIN, "a", "AGAIN") if again else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say of each what it found before."""
    reports = terminalreporter.getreports(AGAIN)
    if reports:
        terminalreporter.section(AGAIN)
    for report in reports:
        found = [told for name, told in report.user_properties if name == AGAIN]
        terminalreporter.write_line(f"{report.nodeid}: {'; '.join(found)}")


def heed_interrupts() -> None:
    """Heed SIGINT, which a shell's background job ignores, and SIGHUP, which nohup ignores."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def running_switch(listen: str = "127.0.0.1:0", *options: str) -> Iterator[Switch]:
    """A switch: its process and where it listens; if it still runs, it must end on SIGINT."""
    command = [sys.executable, "-m", "iswitch", "switch", "--listen", listen, *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], PATIENCE)[0], "it says nothing"
            line = process.stdout.readline()
            word, _, where = line.strip().partition(" ")
            assert word == "listening", f"first line is {line!r}"
            host, _, port = where.rpartition(":")
            yield process, (host, int(port))
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                assert process.wait(PATIENCE) == 0, "exit status after SIGINT"
        finally:
            process.kill()


def pending(port: int) -> int:
    """Bytes in the receive buffers of the sockets bound to this port."""
    lines = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
    bound = [line for line in lines if int(line[1].rpartition(":")[2], 16) == port]
    assert bound, f"nobody listens on {port}"
    return sum(int(line[4].rpartition(":")[2], 16) for line in bound)


@pytest.fixture(scope="module")
def start_switch() -> Iterator[StartSwitch]:
    """Starts a switch, at any free port or where and how it is told; the module's end ends it."""
    with ExitStack() as running:
        yield lambda *words: running.enter_context(running_switch(*words))


@pytest.fixture(scope="module")
def switch(start_switch: StartSwitch) -> Where:
    """Where the module's own switch listens."""
    return start_switch()[1]


@pytest.fixture(scope="module")
def jobs() -> Iterator[int]:
    """Job numbers, each used once at this switch."""
    return itertools.count(1)


@pytest.fixture
def job(jobs: Iterator[int]) -> int:
    """A number of the test's own."""
    return next(jobs)


@pytest.fixture
def quiet() -> Iterator[None]:
    """NumPy says nothing of overflow and NaN, as inside a Switch."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Networks of a test are gone after it."""
    links, before = set(os.listdir("/sys/class/net")), left()
    yield
    assert left() <= before
    assert set(os.listdir("/sys/class/net")) <= links
