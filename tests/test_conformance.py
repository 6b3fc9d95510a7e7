"""Every conformance case against the switch this package starts, over real sockets."""

import itertools
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.case import run
from tests.conformance.cases import CASES
from tests.conformance.client import Address, CaseSkipped

START = 20.0  # seconds for the switch to say where it listens
STOP = 10.0  # seconds for it to end after SIGINT
COMMAND = [sys.executable, "-m", "iswitch", "switch", "--listen", "127.0.0.1:0"]


def read_address(process: subprocess.Popen[bytes]) -> Address:
    """HOST and PORT from the first line, `listening HOST:PORT`."""
    assert process.stdout is not None
    line, deadline = b"", time.monotonic() + START
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            assert selector.select(deadline - time.monotonic()), f"no first line, only {line!r}"
            piece = os.read(process.stdout.fileno(), 1)
            assert piece, f"the switch ended after {line!r}, exit code {process.wait(STOP)}"
            line += piece
    word, _, where = line.decode().strip().partition(" ")
    host, _, port = where.rpartition(":")
    assert word == "listening", f"first line is {line!r}"
    return host, int(port)


@pytest.fixture(scope="module")
def switch() -> Iterator[Address]:
    """A switch of our own; at the end it must stop on SIGINT with exit code 0."""
    root = Path(__file__).parent.parent
    with subprocess.Popen(COMMAND, cwd=root, stdout=subprocess.PIPE) as process:
        try:
            yield read_address(process)
            process.send_signal(signal.SIGINT)
            assert process.wait(STOP) == 0, "exit code of the switch after SIGINT"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def jobs() -> Iterator[int]:
    """Job numbers, each used once at this switch."""
    return itertools.count(1)


@pytest.mark.parametrize("name", CASES)
def test_conformance(name: str, switch: Address, jobs: Iterator[int]) -> None:
    """The switch keeps the promise this case is about."""
    try:
        run(CASES[name], switch, jobs)
    except CaseSkipped as skipped:
        pytest.skip(str(skipped))
