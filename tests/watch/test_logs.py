"""The log names the mend of what it warns of, and stays small whatever is sent."""

from __future__ import annotations

import io
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from iswitch.core.format.counters import Counters
from iswitch.core.format.wire import TOS_DATA
from iswitch.lab.top.watching import show
from iswitch.serving.parent import unheard
from iswitch.serving.warnings import MANY, MENDS, PAUSE, Watchman
from iswitch.system.logs import LONGEST, Json, Sparing, Text, log
from tests.support import ROOT
from tests.support.parts import JOB, Below
from tests.support.tree import SHAPE

UDP_SEGMENT = 103  # linux/udp.h
AT_ONCE, LENGTH = 60, 100  # datagrams a call, and their bytes
LIMIT = 100_000  # bytes that an attack may add to the log


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def written(clock: Clock, form: logging.Formatter) -> tuple[logging.Handler, io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(Sparing(clock))
    handler.setFormatter(form)
    return handler, stream


@pytest.mark.parametrize("form", [Text(), Json()], ids=["text", "json"])
def test_a_day_of_attacks_of_every_kind_is_a_small_log(form: logging.Formatter) -> None:
    clock, counters = Clock(), Counters()
    handler, stream = written(clock, form)
    watchman = Watchman(counters)
    log.addHandler(handler)
    try:
        while clock.now < 86_400:
            for name in MENDS:
                counters[name] += 10 * MANY
            watchman.look()
            clock.now += PAUSE if clock.now < 3600 else 60 * PAUSE
        first_day = len(stream.getvalue())
        while clock.now < 30 * 86_400:
            for name in MENDS:
                counters[name] += 10 * MANY
            watchman.look()
            clock.now += LONGEST / 2
    finally:
        log.removeHandler(handler)
    assert len(MENDS) * 200 < first_day < LIMIT / 2
    assert len(stream.getvalue()) - first_day < 30 * LIMIT / 10


def test_each_warning_names_its_mend() -> None:
    counters = Counters()
    handler, stream = written(Clock(), Text())
    watchman = Watchman(counters)
    log.addHandler(handler)
    try:
        watchman.look()
        counters["stranger"] += MANY - 1
        watchman.look()
        assert stream.getvalue() == ""
        for name in MENDS:
            counters[name] += MANY
        watchman.look()
    finally:
        log.removeHandler(handler)
    lines = stream.getvalue().splitlines()
    assert len(lines) == len(MENDS)
    for name, mend in MENDS.items():
        assert any(f"x {name}: " in line and line.endswith(f"; {mend}") for line in lines)


def test_a_parent_that_does_not_answer_is_named() -> None:
    one = Below()
    assert unheard(None) == unheard(one.switch.control.hierarchy) == []
    (join,) = one.comes(0, SHAPE)
    told: list[list[int]] = []
    while one.now < 4.0:
        one.now = one.switch.deadline() or 0.0
        one.switch.handle_timer(one.now)
        told.append(unheard(one.switch.control.hierarchy))
    assert told == [[]] * 6 + [[JOB]] * (len(told) - 6)
    assert one.now > 2
    handler, stream = written(Clock(), Text())
    log.addHandler(handler)
    try:
        Watchman(Counters(), lambda: unheard(one.switch.control.hierarchy)).look()
    finally:
        log.removeHandler(handler)
    assert "the switch above (--parent) does not answer, so nobody can join job 7; start it" in (
        stream.getvalue()
    )
    one.answers(join)
    assert unheard(one.switch.control.hierarchy) == []


def test_what_is_left_out_is_counted() -> None:
    clock = Clock()
    handler, stream = written(clock, Json())
    log.addHandler(handler)
    try:
        for second in range(100):
            clock.now = float(second)
            log.warning("a line\nof %d", second)
        clock.now = LONGEST
        log.warning("a line\nof %d", 7)
    finally:
        log.removeHandler(handler)
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [one["message"] for one in told] == [
        "a line of 0",
        "a line of 10 (9 more like it were left out)",
        "a line of 50 (39 more like it were left out)",
        "a line of 7 (49 more like it were left out)",
    ]
    assert {one["level"] for one in told} == {"warning"}


def test_a_switch_under_a_flood_is_readable_and_logs_little(tmp_path: Path) -> None:
    place, view = str(tmp_path / "s1.sock"), io.StringIO()
    command = [
        sys.executable, "-m", "iswitch", "switch", "--listen", "127.0.0.1:0", "--log-json",
        "--watch", place,
    ]  # fmt: skip
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS_DATA)
            sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, LENGTH)  # many datagrams a call
            ended = threading.Event()

            def flood() -> None:
                while not ended.is_set():
                    sock.sendto(bytes(AT_ONCE * LENGTH), ("127.0.0.1", port))

            stranger = threading.Thread(target=flood)
            stranger.start()
            show(place, 1.0, True, Console(file=view, width=100, height=30, color_system=None))
            ended.set()
            stranger.join()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert any(line.startswith("! FLOOD") for line in view.getvalue().splitlines()[:4])
    told = [json.loads(line) for line in errors.splitlines()]
    assert len(errors) < 2000
    assert any("x stranger: " in one["message"] for one in told)
    assert all("; " in one["message"] for one in told)  # and the mend
