"""A replay in layers gives what one in the order of the trace gives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from iswitch.cli import main
from iswitch.traces import replay as replaying
from iswitch.traces.groups import PacketGroup
from iswitch.traces.observed import Watch
from iswitch.traces.reader import Reader
from iswitch.traces.replay import Replayer
from iswitch.traces.report import replay
from iswitch.traces.rounds import AGGREGATE
from iswitch.traces.survey import survey
from iswitch.traces.writing import TraceWriter
from tests.traces.test_replay import all_equal, data_packets, generate, tampered

pytestmark = pytest.mark.unit

FORMS = [
    "star:4,rate=1Gbit,seed=1",
    "star:4,rate=1Gbit,loss=0.1%,seed=3",
    "star:4,loss=2%,delay=300us,jitter=200us,duplicate=1%,reorder=2%,seed=5",
    "star:8,delay=400us,jitter=400us,reorder=20%,seed=4",
    "rack:2x3,rate=1Gbit,seed=6",  # below another switch
    "rack:2x3,loss=2%,delay=300us,jitter=200us,duplicate=1%,reorder=2%,seed=7",
]


Made = Callable[[str, int], Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Traces by form and number of elements, each made once."""
    folder = tmp_path_factory.mktemp("traces")

    def make(form: str, numel: int) -> Path:
        path = folder / f"{form}.{numel}"
        switch = "tor1" if form.startswith("rack") else "s1"
        return path if path.exists() else generate(path, form, switch, numel=numel)

    return make


class Counting(Replayer):
    """Counts the groups that are handled."""

    handled = 0

    def _handle(self, group: PacketGroup, time_ns: int) -> None:
        self.handled += 1
        super()._handle(group, time_ns)


def report(path: Path, ordered: bool) -> dict[str, Any]:
    with Reader(path) as reader:
        setting = survey(reader)
        setting.ordered = ordered
        return replay(reader, setting)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_layers_change_nothing(
    made: Made, monkeypatch: pytest.MonkeyPatch, form: str, ordered: bool
) -> None:
    """Sums, what was dropped and why, and what is told of rounds: all of the report."""
    path = made(form, 9001)
    monkeypatch.setattr(replaying, "LEAST", 2)
    layered = report(path, ordered)
    all_equal(layered)
    monkeypatch.setattr(replaying, "LEAST", 1 << 60)
    assert report(path, ordered) == layered


def test_what_differs_is_named_with_its_own_time(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with that of the group it was in."""
    path = made("star:4,rate=1Gbit,seed=1", 9001)
    aggregates = [place for place in data_packets(path) if place.direction == 2]
    wrong = aggregates[30::80]

    def change(content: bytearray) -> None:
        for place in wrong:
            content[place.payload + 100] ^= 1

    damaged = tampered(path, tmp_path / "x", change)
    whole = list(frames(path))
    for least in (2, 1 << 60):
        monkeypatch.setattr(replaying, "LEAST", least)
        told = report(damaged, ordered=True)["compared"]["differences"]
        found = {each["packet"]: each["time"] for each in told}
        assert found == {
            place.number: round((whole[place.number - 1][0] - whole[0][0]) / 1e9, 9)
            for place in wrong
        }


@pytest.mark.parametrize("form", FORMS)
def test_what_would_be_sent_is_the_same(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """To each worker the same datagrams, in the same order; and in the order of time."""
    path = made(form, 9001)
    sent: list[dict[bytes, list[bytes]]] = []
    for least in (2, 1 << 60):
        monkeypatch.setattr(replaying, "LEAST", least)
        out = tmp_path / f"{least}.pcapng"
        assert main(["replay", str(path), "--out", str(out)]) == 0
        flows: dict[bytes, list[bytes]] = defaultdict(list)
        times: list[int] = []
        for time, frame in frames(out):
            times.append(time)
            flows[frame[30:34] + frame[36:38]].append(frame)
        assert times == sorted(times)
        sent.append(flows)
    assert len(sent[0]) >= 4
    assert sent[0] == sent[1]


def frames(path: Path) -> Iterator[tuple[int, bytes]]:
    with Reader(path) as reader:
        for batch in reader.batches():
            for at, size, time in zip(batch.at, batch.sizes, batch.times, strict=True):
                yield int(time), reader.data[at : at + size].tobytes()


@pytest.mark.parametrize("writes", [False, True])
def test_interleaved_packets_are_handled_in_groups(
    made: Made, tmp_path: Path, writes: bool
) -> None:
    path = made("star:4,rate=1Gbit", 100_000)
    writer = TraceWriter(tmp_path / "out") if writes else None
    with Reader(path) as reader:
        replayer = Counting(reader, survey(reader), watch=Watch(), sink=writer)
        replayer.run()
    tally = replayer.comparison.tally
    assert tally.equal == tally.captured >= 4 * 4 * 274
    assert replayer.handled < replayer.passed["packets"] / 50
    if writer:
        writer.close()
        assert writer.frames == replayer.switch.counters["tx_frames"] > tally.captured


def test_a_round_in_detail_is_handled_in_the_order_of_the_trace(made: Made) -> None:
    """And the others in groups."""
    path = made("star:4,rate=1Gbit", 100_000)
    with Reader(path) as reader:
        replayer = Counting(reader, survey(reader), watch=Watch({(1, 2)}))
        replayer.run()
    events = replayer.watch.jobs[1].rounds.events
    assert list(events) == [2]
    sent = [event for event in events[2] if event.what != AGGREGATE]
    assert [event.begin for event in sent] == sorted(event.begin for event in sent)
    assert sum(event.stop - event.start for event in sent) == 4 * 274
    packets = replayer.passed["packets"]
    assert packets / 5 < replayer.handled < packets / 2
