"""Strangers in random histories, keys, ports, and who is lost: broken doors are caught."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from iswitch.core.format.keys import MAC_SIZE, Key
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA
from iswitch.core.jobs.answers import Answers
from iswitch.core.jobs.membership import Membership
from iswitch.core.switch import Switch
from iswitch.ethernet import guard
from iswitch.ethernet.claims import TAGS, Inner, innermost
from iswitch.ethernet.frame import IP
from iswitch.ethernet.guard import SourceGuard
from iswitch.lab.soak.absence import TOLD, Absences
from iswitch.lab.soak.drawing import LEASE
from iswitch.lab.soak.generate import generate
from iswitch.lab.soak.lives import Life
from iswitch.lab.soak.run import History, outcome, run
from iswitch.lab.soak.scenario import ELASTIC, STRANGE, WHOLE, Event, Job, Scenario
from iswitch.lab.soak.strangers import Stranger
from iswitch.sim.host import HostStack
from iswitch.sim.trace import Trace
from worker_lib.errors import MemberLost
from worker_lib.waiting import Waiting

pytestmark = pytest.mark.unit

CAUGHT = 200  # seeds in which a broken door must be caught

Break = Callable[[pytest.MonkeyPatch], None]


def any_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members are known by address and UDP port, wherever a packet comes in."""
    original = Switch._data

    def data(self: Switch, peer: Address, *rest: object) -> list[Outgoing]:
        names = (member for member in self.record.by_source if member[:2] == peer[:2])
        return original(self, next(names, peer), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Switch, "_data", data)


def no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that claim a member's address behind another port are let in."""
    monkeypatch.setattr(SourceGuard, "is_spoofed", lambda *_: False)


def outermost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard does not look behind tags."""
    monkeypatch.setattr(guard, "innermost", lambda row: Inner(row[IP - 2 : IP], IP))


def one_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks behind one tag, or none."""

    def wrong(row: bytes) -> Inner:
        at = IP + 4 if row[IP - 2 : IP] in TAGS else IP
        return Inner(row[at - 2 : at], at)

    monkeypatch.setattr(guard, "innermost", wrong)


def too_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes what it does not look behind for harmless."""
    monkeypatch.setattr(guard, "innermost", lambda row: innermost(row) or Inner(b"", IP))


def unjudged(*kinds: str) -> Break:
    """The guard does not judge what is forwarded by these addresses."""

    def broken(monkeypatch: pytest.MonkeyPatch) -> None:
        original = SourceGuard._index

        def index(self: SourceGuard) -> None:
            original(self)
            for kind in kinds:
                setattr(self, kind, {})

        monkeypatch.setattr(SourceGuard, "_index", index)

    broken.__name__ = "unjudged" + "".join(kinds)
    return broken


def no_arp(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard does not look into ARP."""
    monkeypatch.setattr(guard, "ETHERTYPE_ARP", b"")


def any_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """A MAC is cut off and not looked at."""
    monkeypatch.setattr(Key, "opened", lambda _, payload: payload[:-MAC_SIZE])


def no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody remembers which requests were executed."""
    monkeypatch.setattr(Answers, "get", lambda *_: None)
    monkeypatch.setattr(Answers, "last", property(lambda _: -1, lambda *_: None), raising=False)


def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What strangers send is dropped without a word."""
    original = Switch.receive

    def receive(self: Switch, burst: Burst, now: float) -> list[Outgoing]:
        before = self.counters["stranger"]
        sends = original(self, burst, now)
        self.counters["stranger"] = before
        return sends

    monkeypatch.setattr(Switch, "receive", receive)


def nobody_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch does not say whose lease has run out."""
    monkeypatch.setattr(Membership, "lost", lambda *_: 0)


def the_wrong_one_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the next one at its switch, or nobody if there is none."""
    original = Membership.lost
    monkeypatch.setattr(Membership, "lost", lambda *given: original(*given) << 1)


def no_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody who is silent is taken out."""
    monkeypatch.setattr(Membership, "silent", lambda *_: [])


def is_attacked(scenario: Scenario) -> bool:
    return scenario.has("replay", "forge") and any(job.keyed for job in scenario.jobs)


def has_ports(scenario: Scenario) -> bool:
    return scenario.ports and scenario.has("spoof")


def has_impostors(scenario: Scenario) -> bool:
    return scenario.ports and scenario.has("impostor")


def somebody_is_missed(scenario: Scenario) -> bool:
    """For longer than the others may wait until they are told."""
    longest = scenario.lease + TOLD
    away = [event for event in scenario.events if event.what == "pause" and event.lasting > longest]
    return bool(scenario.lease and away) and any(job.tells for job in scenario.jobs)


def somebody_dies(scenario: Scenario) -> bool:
    return scenario.has("die") and any(job.mode == ELASTIC for job in scenario.jobs)


def has_strangers(scenario: Scenario) -> bool:
    return scenario.has("stranger", "spoof")


# Each with the histories that can show it, and the violations by which it must be caught: what
# strangers are let in with is counted twice, or by nobody's books.
BROKEN: dict[Break, tuple[Callable[[Scenario], bool], set[str]]] = {
    any_port: (has_strangers, {"not accounted for", "counted twice"}),
    no_guard: (has_ports, {"not accounted for", "counted twice"}),
    outermost: (has_impostors, {"not accounted for", "obeyed", "wrong sum"}),
    one_tag: (has_impostors, {"not accounted for", "obeyed", "wrong sum"}),
    too_deep: (has_impostors, {"not accounted for", "obeyed", "wrong sum"}),
    no_arp: (has_impostors, {"not accounted for", "obeyed"}),
    unjudged("_ips"): (has_impostors, {"not accounted for", "obeyed", "wrong sum"}),
    unjudged("_macs"): (has_impostors, {"not accounted for"}),
    any_mac: (is_attacked, {"obeyed"}),
    no_numbers: (is_attacked, {"obeyed", "executed again"}),
    uncounted: (has_strangers, {"not accounted for"}),
    nobody_is_lost: (somebody_is_missed, {"not told"}),
    the_wrong_one_is_lost: (somebody_is_missed, {"lost in error", "not told"}),
    no_lease_ends: (somebody_dies, {"no progress"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_door_is_caught(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    shows, kinds = BROKEN[broken]
    broken(monkeypatch)
    scenarios = filter(shows, map(generate, range(CAUGHT)))
    found = ((scenario, run(scenario)) for scenario in scenarios)
    scenario, result = next(both for both in found if both[1].violation)
    assert result.violation in kinds, result.message
    monkeypatch.undo()
    assert not run(scenario).violation


def only_data(self: Stranger, job: Job, _node: Address) -> tuple[int, bytes]:
    return TOS_DATA, self.rng.choice(self._data(job))


def only_control(self: Stranger, job: Job, node: Address) -> tuple[int, bytes]:
    return TOS_CONTROL, self._order(job, node)


HARM = {
    "aggregates": (
        only_data,
        {"wrong sum", "counted twice", "not entitled", "not made"},
        " (got|hears of) ",
    ),
    "control": (only_control, {"obeyed"}, "has heard "),
}


@pytest.mark.slow
@pytest.mark.parametrize("packets", HARM)
def test_what_an_impostor_does_is_seen_by_what_comes_of_it(
    packets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody looks whether the frames were counted, and ARP does no harm."""
    outermost(monkeypatch)
    monkeypatch.setattr(Stranger, "_count", lambda *_: None)
    monkeypatch.setattr(HostStack, "_learn", lambda *_: None)
    forged, kinds, message = HARM[packets]
    monkeypatch.setattr(Stranger, "_as_of_switch", forged)
    found = map(run, filter(has_impostors, map(generate, range(CAUGHT))))
    result = next(result for result in found if result.violation)
    assert result.violation in kinds
    assert re.search(message, result.message)


def test_arp_that_turns_a_worker_away_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    outermost(monkeypatch)
    monkeypatch.setattr(Stranger, "_count", lambda *_: None)
    monkeypatch.setattr(HostStack, "_datagram", lambda *_: None)
    found = map(run, filter(has_impostors, map(generate, range(CAUGHT))))
    result = next(result for result in found if result.violation)
    assert result.violation == "obeyed"
    assert "has heard that its switch is at" in result.message


# What strangers do


ALONE = Scenario(
    4, "star:2", (Job(1, WHOLE, ("h1", "h2"), numel=40, elements=4, keyed=True),), horizon=0.2
)


def told(scenario: Scenario, event: Event) -> tuple[list[str], dict[str, int]]:
    """Play an event that changes no sum; return the timeline, and the drops of s1."""
    trace = Trace()
    history = History(replace(scenario, events=(event,)), trace)
    result = outcome(history)
    assert not result.violation, result.message
    assert result.rounds == outcome(History(scenario)).rounds
    assert trace.pcapng(history.network.names())
    switch = history.simulation.switch("s1")
    assert switch is not None
    return trace.lines(history.network.names()), switch.counters.drops()


@pytest.mark.slow
@pytest.mark.parametrize("ports", [False, True], ids=["addresses", "ports"])
@pytest.mark.parametrize("what", [what for what in STRANGE if what != "impostor"])
def test_strangers_send_and_the_trace_says_so(what: str, ports: bool) -> None:
    """The timeline has what they send, and what came; and the sums are as they were."""
    lines, counted = told(replace(ALONE, ports=ports), Event(0.05, what, "s1", 0.02))
    sent = [line for line in lines if "  x1 sends to s1 as " in line]
    assert len(sent) == 20
    received = [line for line in lines if " > s1 " in line and "received" in line]
    assert any(("?" in line.split(">")[0]) for line in received) == (what in ("stranger", "spoof"))
    expected = {
        "stranger": "stranger",
        "spoof": "spoofed" if ports else "stranger",
        "garble": "malformed",
        "replay": "out_of_window",
        "forge": "bad_mac",
    }
    assert counted[expected[what]] > 0


def test_an_impostor_sends_and_the_trace_says_so() -> None:
    """What claims to be the switch goes no further; what does not comes to the host."""
    event = Event(0.05, "impostor", "h1", 0.03)
    lines, counted = told(replace(ALONE, ports=True), event)
    lies = [line for line in lines if "  x1 sends to h1 as s1?: " in line]
    rest = [line for line in lines if "  x1 sends to h1 as x1?: " in line]
    assert len(lies) + len(rest) == 30
    assert all(" tags" in line for line in lies)
    deep = [line for line in rest if "20 tags" in line]
    assert counted["spoofed"] == len(lies) + len(deep)
    bridged = [line for line in lines if "s1 > h1 " in line and "a frame of" in line]
    assert len(bridged) == 2 * (len(rest) - len(deep)) > 0  # sent, and received
    alone = outcome(History(replace(ALONE, events=(event,))))  # nothing is bridged there
    assert not alone.violation


def test_the_plugged_switch_is_a_switch_with_ports() -> None:
    """What it gives is what the switch inside would give, whatever the frames on the way."""
    scenario = replace(ALONE, topology="rack:2x2", events=())
    scenario = replace(scenario, jobs=(replace(scenario.jobs[0], hosts=("h1", "h2", "h3", "h4")),))
    plain, plugged = (outcome(History(replace(scenario, ports=p))) for p in (False, True))
    assert (plain.violation, plain.rounds, plain.packets) == ("", plugged.rounds, plugged.packets)


# Who is lost

PAUSED = Scenario(
    5, "rack:2x2", (Job(1, WHOLE, ("h1", "h2", "h3", "h4"), tells=True),),
    events=(Event(0.5, "pause", "h4", LEASE + TOLD + 1),), horizon=1.0, lease=LEASE,
)  # fmt: skip


def test_all_are_told_of_exactly_the_lost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rank, at its own switch and at the other; then all go on."""
    told: dict[str, set[tuple[int, ...]]] = {}
    original = Absences.is_told

    def is_told(self: Absences, who: Life, lost: MemberLost) -> None:
        told.setdefault(who.host, set()).add(tuple(lost.ranks))
        original(self, who, lost)

    monkeypatch.setattr(Absences, "is_told", is_told)
    result = run(PAUSED)
    assert not result.violation, result.message
    assert told == {"h1": {(3,)}, "h2": {(3,)}, "h3": {(3,)}}


def test_an_absence_that_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Waiting, "lost", lambda *_: None)
    assert run(PAUSED).violation == "not told"


def test_nobody_misses_who_had_not_joined() -> None:
    """Links bring hardly anything until the process of h4 is paused, for longer than all leases."""
    result = run(replace(PAUSED, links="loss=0.999"))
    assert not result.violation, result.message
