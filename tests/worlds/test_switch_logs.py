"""What `iswitch run` tells of switches: what they log, and how one dies that does not listen."""

from __future__ import annotations

import re
from itertools import chain

import pytest

from iswitch.fast import loading
from iswitch.lab.launch import switches as launched
from iswitch.lab.launch.processes import LONGEST_LINE, Child, Fleet
from iswitch.lab.launch.switches import REMEMBERED, Switches, SwitchFailed
from iswitch.lab.launch.worlds import Loopback
from topologies import Topology

pytestmark = pytest.mark.serial


def test_a_line_that_is_too_long_is_cut_and_the_next_ones_are_told() -> None:
    sizes = 1, LONGEST_LINE - 1, LONGEST_LINE, 3 * LONGEST_LINE + 7, 2 * LONGEST_LINE - 1, 1
    script = "for size in sys.argv[1:]: print('warning: '.ljust(int(size), 'x'), file=sys.stderr)"
    with Fleet() as fleet:
        child = fleet.start("s1", ["-c", f"import sys\n{script}", *map(str, sizes)])
        while child.status() is None:
            list(fleet.listen(0.1))
        told = list(chain.from_iterable(child.news() for _ in range(20)))
    assert [len(line) for line in told] == [min(max(9, size), LONGEST_LINE) for size in sizes]
    assert all(line.startswith("warning: ") for line in told)


def test_lines_are_told_once_and_few_are_kept() -> None:
    said: list[str] = []

    class Told:
        name = "switch s1"

        @staticmethod
        def news() -> list[str]:
            return [f"warning: {number}" for number in range(3 * REMEMBERED) for _ in range(2)]

    with Fleet() as fleet:
        switches = Switches(
            fleet, Loopback(Topology.parse("star:1"), offload=True), say=said.append
        )
        switches._up["s1"] = Told()  # type: ignore[assignment]
        switches.tell_news()
    assert said == [f"switch s1: warning: {number}" for number in range(3 * REMEMBERED)]
    assert len(switches._logged) == REMEMBERED


@pytest.mark.parametrize("ends", ["killed", "killed too often", "by itself"])
def test_a_switch_that_dies_before_it_listens(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is restarted if it was killed; its last words are told."""
    said: list[str] = []
    act = "sys.exit(3)" if ends == "by itself" else "os.kill(os.getpid(), 9)"
    words = f"import os, sys; sys.stderr.write('warning: last\\n'); sys.stderr.flush(); {act}"
    if ends == "killed too often":
        monkeypatch.setattr(launched, "MOST_RESTARTS", 0)
    with Fleet() as fleet:
        start = fleet.start

        def dies(name: str, *_: object, **__: object) -> Child:
            monkeypatch.undo()
            return start(name, ["-c", words])

        monkeypatch.setattr(fleet, "start", dies)
        monkeypatch.setattr(loading, "available", lambda: False)
        switches = Switches(
            fleet, Loopback(Topology.parse("star:1"), offload=True), say=said.append
        )
        how = r"the switch \(process \d+\) "
        if ends == "killed":
            switches.start()
            assert switches.listening
            assert re.fullmatch(
                how + "was killed by SIGKILL: warning: last; starting it again", said[1]
            )
        else:
            ended = "ended with status 3" if ends == "by itself" else "was killed by SIGKILL"
            with pytest.raises(SwitchFailed, match=how + ended + ": warning: last"):
                switches.start()
        assert said[0] == "switch: warning: last"
