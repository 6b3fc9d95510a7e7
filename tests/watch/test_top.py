"""`iswitch top` names what is wrong at first sight, fits its terminal, and asks before it acts."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from iswitch.core.format.wire import (
    FLAG_WHOLE,
    TOS_DATA,
    Action,
    DType,
    Join,
    MemberType,
    Mode,
    Segments,
    Shape,
    Threshold,
)
from iswitch.lab.top import watching
from iswitch.lab.top.acting import Prompt, Target
from iswitch.lab.top.view import KEYS, draw
from iswitch.lab.top.watching import next_job, target_of
from iswitch.watch.change import Change
from iswitch.watch.judging import Scene, findings
from iswitch.watch.places import Network
from tests.support.parts import JOB, Bench, segments_of
from tests.watch.test_snapshot import SHAPE, snapshot, vector

pytestmark = pytest.mark.unit

HOSTS = Network(
    "star:4 (netns)", {f"10.0.0.{i + 1}": f"h{i + 1}" for i in range(64)}, switches={"s1": ""},
    parents={"s1": None}, below={"s1": ["h1", "h2", "h3", "h4"]},
)  # fmt: skip
RACKS = Network(
    "rack:2x3 (netns)", HOSTS.hosts, switches={"core1": "", "tor1": "", "tor2": "10.0.0.2:40001"},
    parents={"core1": None, "tor1": "core1", "tor2": "core1"},
    below={"core1": [], "tor1": ["h1", "h2", "h3"], "tor2": ["h4", "h5", "h6"]},
)  # fmt: skip


def looked(bench: Bench, before: dict[str, Any] | None, network: Network = HOSTS) -> Scene:
    """What top sees of this switch, 2 seconds after the snapshot `before`."""
    return Scene(network, {"s1": Change.of(snapshot(bench, network), before)})


def rounds(bench: Bench, count: int, lags: Sequence[float], first: int = 0) -> None:
    """Rounds of workers that begin this late, ten a second."""
    for round_ in range(first, first + count):
        began = bench.now
        for who in sorted(range(len(lags)), key=lambda who: lags[who]):
            bench.now = began + lags[who]
            bench.contribute(who, SHAPE, round_, vector())
        bench.now = began + 0.1


def drawn(scene: Scene, width: int = 80, height: int = 24, foot: str = KEYS) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, color_system=None)
    console.print(draw(scene, (width, height), foot))
    lines = file.getvalue().rstrip("\n").split("\n")
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert lines[-1].rstrip() == foot
    return lines


def first_words(scene: Scene) -> list[str]:
    return [one.what for one in findings(scene)]


def test_idle() -> None:
    bench = Bench()
    bench.gather(SHAPE, 4)
    before = snapshot(bench, HOSTS)
    bench.now = 2.0
    lines = drawn(looked(bench, before))
    assert lines[0].startswith("iswitch top: star:4 (netns), 1 switch")
    assert lines[1].strip() == "+ idle: no rounds; nothing is wrong"


def test_training() -> None:
    bench = Bench()
    bench.gather(SHAPE, 4)
    rounds(bench, 5, (0.0, 0.001, 0.0, 0.002))
    before = snapshot(bench, HOSTS)
    rounds(bench, 20, (0.0, 0.001, 0.0, 0.002), first=5)
    lines = drawn(looked(bench, before))
    assert lines[1].strip() == "+ nothing is wrong"
    job = lines[3].split()
    assert job[:6] == [str(JOB), "running", "4/4", "4", "24", "10.0"]
    assert [line.split()[:2] for line in lines[5:9]] == [[f"h{i + 1}", str(i)] for i in range(4)]


def test_straggler_and_lossy_link() -> None:
    bench = Bench()
    bench.gather(SHAPE, 4)
    before = snapshot(bench, HOSTS)
    rounds(bench, 20, (0.0, 0.001, 0.040, 0.001))
    for _ in range(5):  # h4's aggregates are lost: it contributes to the last round again
        bench.contribute(3, SHAPE, 19, vector())
    scene = looked(bench, before)
    straggler, lossy = (next(f for f in findings(scene) if f.what == what)
                        for what in ("straggler", "lossy link"))  # fmt: skip
    assert straggler.told == "h3 (rank 2): begins 40 ms late, last in 100%; rounds 40 ms"
    assert lossy.told == "the way to h4 (rank 3): 20.0% of its packets again"
    assert first_words(scene) == ["lossy link", "straggler"]
    for member in scene.changes["s1"].now["jobs"][0]["members"]:
        member["host"] = "127.0.0.1"  # where no link loses anything
    assert first_words(scene) == ["busy machine", "straggler"]
    assert [line.split()[0] for line in drawn(scene)[6:8]] == ["h3", "h4"]  # the worst first


def test_members_of_several_jobs_are_told_with_their_jobs() -> None:
    bench = Bench()
    bench.gather(SHAPE, 4)
    before = snapshot(bench, HOSTS)
    rounds(bench, 20, (0.0, 0.001, 0.040, 0.001))
    alone = looked(bench, before)
    assert drawn(alone)[4].split()[:3] == ["member", "rank", "at"]
    bench.join(5, Shape.of(40, DType.INT32, elements=4), job=9)
    scene = looked(bench, before)
    assert findings(scene)[0].told.startswith("h3 (rank 2 of job 7): begins 40 ms late")
    head, *rows = (line.split()[:4] for line in drawn(scene)[5:11])
    assert head == ["member", "rank", "job", "at"]
    assert [row[:3] for row in rows] == [
        ["h3", "2", "7"], *([f"h{i}", str(i - 1), "7"] for i in (1, 2, 4)), ["h6", "0", "9"],
    ]  # fmt: skip


def test_one_view_for_no_terminal_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.gather(SHAPE, 40)
    before = snapshot(bench, HOSTS)
    for reason in ("late", "duplicate", "stranger", "unmatched_ack", "no_turn", "ordinary"):
        bench.counters["rx_packets"] += 12_345
        bench.counters[reason] += 12_345
    scene, file = looked(bench, before), io.StringIO()
    monkeypatch.setattr(watching, "Eye", lambda _: Mock(look=lambda: scene))
    console = Console(file=file, width=60, height=10)
    assert watching.show(str(Path(__file__).parent), 0.0, True, console) == 0
    lines = file.getvalue().splitlines()
    assert sum(line.startswith("h") for line in lines) == 40
    assert "…" not in file.getvalue()
    assert not any(line.startswith("and ") for line in lines)


def test_one_of_two_that_are_alike_is_no_straggler() -> None:
    bench = Bench()
    bench.gather(SHAPE, 2)
    before = snapshot(bench, HOSTS)
    for first in range(0, 20, 5):  # h1 ends 13 of 20 rounds, by a little
        rounds(bench, 3 + (first == 0), (0.016, 0.015), first)
        rounds(bench, 2 - (first == 0), (0.015, 0.016), first + 3 + (first == 0))
    scene = looked(bench, before)
    (job,) = scene.changes["s1"].jobs()
    assert [member.last for member in job.members()] == [0.65, 0.35]
    assert "straggler" not in first_words(scene)


def test_who_is_often_last_on_loopback_but_hardly_late_is_no_straggler() -> None:
    """Of processes that share cores; over links, one that ends late has a slow one."""
    bench = Bench()
    bench.gather(SHAPE, 4)
    before = snapshot(bench, HOSTS)
    rounds(bench, 20, (0.0, 0.0194, 0.0195, 0.020))
    scene = looked(bench, before)
    assert first_words(scene) == ["straggler"]
    for member in scene.changes["s1"].now["jobs"][0]["members"]:
        member["host"] = "127.0.0.1"
    assert first_words(looked_again(scene)) == []


def looked_again(scene: Scene) -> Scene:
    """The same snapshots, compared anew."""
    changes = {
        name: Change(one.now, one.before, one.seconds) for name, one in scene.changes.items()
    }
    return Scene(scene.network, changes)


def test_impaired_port_is_named() -> None:
    bench = Bench()
    found = snapshot(bench, HOSTS)
    found["links"][0] |= {"name": "s1-eth2", "peer": "h2", "offered_in": 1000, "lost_in": 31}
    found["links"][0] |= {"rate": 1e6, "rx_bytes": 120_000}
    bench.now = 1.0
    scene = Scene(HOSTS, {"s1": Change({**found, "uptime": 1.0}, {}, 1.0)})
    assert [one.told for one in findings(scene)] == [
        "h2 - s1 (s1-eth2) loses 3.1% in; 0 packets/s again",
        "h2 - s1 (s1-eth2): 96% of its rate",
    ]
    assert any("s1-eth2" in line and "3.1%" in line and "96%" in line for line in drawn(scene))


def test_rack_lost() -> None:
    bench = Bench()
    for who in (0, 1):
        bench.join(who, SHAPE, MemberType.SWITCH, expected=2)
    bench.contribute(0, SHAPE, 0, vector())
    before = snapshot(bench, RACKS)
    bench.now = 9.0
    scene = Scene(RACKS, {"core1": Change.of(snapshot(bench, RACKS), before)}, {"tor2": 8.0})
    lines = drawn(scene)
    assert "2 switches, 1 not answering" in lines[0]
    assert lines[1].strip() == "x RACK LOST tor2 has not answered for 8 s; behind it: h4, h5, h6"
    assert any("switch tor2" in line for line in lines[2:6])


def test_whom_a_halted_and_a_waiting_job_wait_for() -> None:
    bench = Bench()
    bench.gather(SHAPE, 3)
    bench.contribute(0, SHAPE, 0, vector())
    bench.send(1, TOS_DATA, segments_of(SHAPE, 0, vector())[0])
    before = snapshot(bench, HOSTS)
    bench.now = 2.0
    (waits,) = findings(looked(bench, before))
    assert waits.told == f"job {JOB}: segments missing from h2 (rank 1) (2), h3 (rank 2) (3)"
    bench.control(0, Action.HELP, Segments(0, 0, 3))
    bench.control(0, Action.HALT)
    assert "halted" in first_words(looked(bench, before))


def test_a_job_that_a_worker_has_left_waits() -> None:
    bench = Bench()
    bench.gather(SHAPE, 2, FLAG_WHOLE)
    rounds(bench, 5, (0.0, 0.0))
    bench.control(1, Action.LEAVE)
    before = snapshot(bench, HOSTS)
    bench.now += 2.0
    bench.control(5, Action.JOIN, Join(MemberType.CONTROLLER))  # which contributes nothing
    (waits,) = findings(looked(bench, before))
    said = "nothing completes until 2 members are there; H is 2, and 1 of them is there"
    assert waits == (True, "waits", f"job {JOB}: {said}")
    bench.control(5, Action.SETH, Threshold(1))
    assert first_words(looked(bench, before)) == []


def test_an_asynchronous_job_needs_no_more_members_than_one() -> None:
    bench = Bench()
    shape = Shape.of(12, DType.INT32, elements=4, mode=Mode.ASYNCHRONOUS)
    bench.join(0, shape)
    before = snapshot(bench, HOSTS)
    bench.control(0, Action.SETH, Threshold(3))
    assert first_words(looked(bench, before)) == []


def test_flood_of_strangers_is_readable() -> None:
    bench = Bench()
    bench.gather(SHAPE, 64 - 1)
    before = snapshot(bench, HOSTS)
    rounds(bench, 20, [0.0] * 63)
    bench.counters["rx_packets"] += 200_000
    bench.counters["data"] += 200_000
    bench.counters["stranger"] += 200_000
    scene = looked(bench, before)
    assert [one.what for one in findings(scene)] == ["flood"]
    lines = drawn(scene)
    assert lines[1].startswith("! FLOOD 100,000 packets/s that are no member's, dropped (stranger)")
    assert any(line.strip().endswith("drops/s: stranger 100,000") for line in lines)
    assert any(line.startswith("and 4") for line in lines)  # members for which there is no room
    drawn(scene, 160, 50)
    drawn(scene, 60, 10)


def test_the_share_that_a_switch_adds() -> None:
    bench = Bench()
    bench.gather(SHAPE, 2)
    before = snapshot(bench, HOSTS)
    rounds(bench, 2, [0.0] * 2)
    assert not any("added here" in line for line in drawn(looked(bench, before)))
    bench.counters["passed_on"] = 3 * bench.counters["accumulated"]
    assert any("; added here: 25%; drops/s: " in line for line in drawn(looked(bench, before)))
    scene, other = looked(bench, before), Bench()
    empty = snapshot(other, HOSTS)
    other.counters["rx_packets"] = other.counters["late"] = 1000
    scene.changes["other"] = looked(other, empty).changes["s1"]
    assert any("added here: 25%" in line for line in drawn(scene))  # beside one that drops


def test_restarted_switch_counts_from_its_start() -> None:
    bench = Bench()
    bench.gather(SHAPE, 2)
    rounds(bench, 10, (0.0, 0.0))
    old = {**snapshot(bench, HOSTS), "clock": 100.0}
    change = Change.of({**snapshot(bench, HOSTS), "clock": 102.0, "uptime": 1.0}, old)
    assert (change.seconds, change.part("counters").rate("aggregates")) == (1.0, 30)


def test_every_key_asks_back() -> None:
    ran: list[Sequence[str]] = []
    prompt = Prompt(lambda words: ran.append(words) or "done")  # type: ignore[func-returns-value]
    target = Target(7, 41, 3, "10.0.0.9:26963", ["ip", "netns", "exec", "x"])
    for key, question in (("h", "Halt job 7"), ("r", "Reset job 7"), ("f", "send round 41 now")):
        prompt.key(key, target)
        assert question in prompt.line()
        prompt.key("n", target)
        assert (prompt.line(), ran) == ("nothing was done", [])
    for key in "t3\x7f2\r":
        prompt.key(key, target)
    assert prompt.line() == "SetH of job 7 to 2? y/n"
    prompt.key("y", target)
    assert prompt.line() == "done"
    (words,) = ran
    assert words[:4] == ["ip", "netns", "exec", "x"]
    assert words[words.index("ctl") :][:8] == [
        "ctl", "seth", "2", "--job", "7", "--switch", "10.0.0.9:26963", "--timeout",
    ]  # fmt: skip
    for key in "fy":
        prompt.key(key, target)
    assert [ran[-1][i] for i in (-10, -9, -8, -7)] == ["fbcast", "41", "0", "3"]
    prompt.key("h", None)
    assert prompt.line() == "there is no job to command"


def test_keys_act_on_the_chosen_job() -> None:
    bench = Bench()
    bench.gather(SHAPE, 2)
    bench.join(5, Shape.of(40, DType.INT32, elements=4), job=9)
    scene = looked(bench, None)
    first, second = target_of(scene, None), target_of(scene, 9)
    assert first is not None
    assert second is not None
    assert (first.job, second.job, second.segments) == (7, 9, 10)
    assert [next_job(scene, job) for job in (None, 7, 9)] == [7, 9, 7]


def test_a_view_is_drawn_when_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine has better things to do than to draw the same view five times a second."""
    bench = Bench()
    bench.gather(SHAPE, 2)
    eye, live = Mock(look=Mock(return_value=looked(bench, None))), Mock()
    live.console.size = 80, 24
    keys = iter(["", "", "h", "", "n", "", "", "q"])
    monkeypatch.setattr(watching, "next_key", lambda _: next(keys))
    watching.watch(eye, live, 3600.0)
    assert live.update.call_count == 3  # at first, with a question, with its answer
    monkeypatch.setattr(watching, "next_key", lambda _: next(keys, "q"))
    keys = iter(["", ""])
    live.update.reset_mock()
    watching.watch(eye, live, 0.0)
    assert live.update.call_count == 3  # after each look
