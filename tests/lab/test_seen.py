"""What the page of `iswitch web` draws is what `iswitch top` judges, and each node has its link."""

from __future__ import annotations

from typing import Any

import pytest

from iswitch.core.format.wire import TOS_DATA, MemberType
from iswitch.lab.web.command import is_loopback
from iswitch.lab.web.seen import seen
from iswitch.watch.change import Change
from iswitch.watch.judging import Scene, findings
from iswitch.watch.places import Network
from tests.support.parts import Bench, segments_of
from tests.watch.test_snapshot import LINK, SHAPE, snapshot, vector
from tests.watch.test_top import HOSTS, RACKS, rounds

pytestmark = pytest.mark.unit


def looked(bench: Bench, before: dict[str, Any] | None, network: Network = HOSTS) -> Scene:
    return Scene(network, {"s1": Change.of(snapshot(bench, network, parts=True), before)})


def nodes(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in found["nodes"]}


def test_straggler_and_lossy_way_are_marked() -> None:
    bench = Bench()
    bench.gather(SHAPE, 4)
    before = snapshot(bench, HOSTS)
    rounds(bench, 20, (0.0, 0.001, 0.040, 0.001))
    for _ in range(5):  # h4's aggregates are lost: it contributes to the last round again
        bench.contribute(3, SHAPE, 19, vector())
    scene = looked(bench, before)
    found = seen(scene)
    assert found["findings"] == [one._asdict() for one in findings(scene)]
    by_name = nodes(found)
    assert [name for name, node in by_name.items() if node["late"]] == ["h3"]
    assert [name for name, node in by_name.items() if node["link"] and node["link"]["lossy"]] == [
        "h4"
    ]
    (job,) = found["jobs"]
    assert (job["round"], job["spread"]) == (19, pytest.approx(0.04))
    assert job["rate"] == pytest.approx(9.5)
    assert [one["last"] for one in job["recent"]] == ["h3"] * 20
    assert [one["name"] for one in found["members"][:2]] == ["h3", "h4"]  # the worst first


def test_the_present_round_is_told_by_member() -> None:
    bench = Bench()
    bench.gather(SHAPE, 2)
    for packet in segments_of(SHAPE, 0, vector())[:2]:
        bench.send(1, TOS_DATA, packet)
    (round_,) = seen(looked(bench, None))["rounds"]
    assert (round_["switch"], round_["round"]) == ("s1", 0)
    assert round_["parts"] == {"segments": [1, 1, 1], "complete": [0, 0, 0]}
    assert [(one["name"], one["came"]) for one in round_["members"]] == [
        ("h1", [0, 0, 0]), ("h2", [1, 1, 0]),
    ]  # fmt: skip


def test_a_rack_that_is_lost_keeps_its_place() -> None:
    bench = Bench()
    for who in (0, 1):
        bench.join(who, SHAPE, MemberType.SWITCH, expected=2)
    now = {**snapshot(bench, RACKS, parts=True), "name": "core1"}
    found = seen(Scene(RACKS, {"core1": Change.of(now, None)}, {"tor1": 8.0}))
    by_name = nodes(found)
    assert list(by_name)[:6] == ["core1", "tor1", "tor2", "h1", "h2", "h3"]
    assert [by_name[name]["above"] for name in ("core1", "tor1", "h1")] == [None, "core1", "tor1"]
    gone = [name for name, node in by_name.items() if node["gone"]]
    assert gone == ["tor1", "h1", "h2", "h3"]
    assert found["gone"] == {"tor1": 8.0}


def test_a_link_is_that_of_its_port() -> None:
    bench = Bench()
    bench.gather(SHAPE, 2)
    now = snapshot(bench, HOSTS)
    port = {**LINK, "name": "s1-eth2", "peer": "h2", "rate": 1e6, "rx_bytes": 100_000}
    now["links"] = [{**port, "offered_in": 100, "lost_in": 4, "late": 0, "resent": 0, "asked": 0}]
    by_name = nodes(seen(Scene(HOSTS, {"s1": Change({**now, "uptime": 1.0}, {}, 1.0)})))
    link = by_name["h2"]["link"]
    assert (link["load"], link["lost_in"], link["lossy"]) == (0.8, 0.04, ["in"])
    assert by_name["h1"]["link"]["load"] is None  # no port is known to lead there
    assert by_name["s1"]["link"] is None


def test_nothing_secret_is_shown() -> None:
    """Neither keys, nor the words that run commands in a namespace, get to the page."""
    bench = Bench()
    bench.gather(SHAPE, 2)
    network = Network(entry=["nsenter", "--net=secret"], control="10.9.9.9:1")
    text = str(seen(looked(bench, None, network)))
    assert "nsenter" not in text
    assert "10.9.9.9" not in text


def test_loopback_is_known() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "example.org", "")))
