"""Keyed jobs: what a switch, a child switch and a session take from whom, and what of replays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from iswitch.core.format.keys import Key, Keys, KeyUnusable, secret_of
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import (
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    Join,
    MemberType,
    Segments,
    Threshold,
    Value,
)
from iswitch.core.format.wire import Action as A
from iswitch.core.format.wire import Status as S
from iswitch.core.jobs.answers import REMEMBERED, Answers, Former, FormerMembers
from iswitch.core.switch import Switch
from tests.support.keyed import KEY, MAC, ONES, SHAPE, mac
from tests.support.parts import JOB, assert_accounted, packets_of, peer, segments_of

pytestmark = pytest.mark.unit


# Keys


@pytest.mark.parametrize("secret", [b"", b"x" * 65, "text", None])
def test_a_key_has_1_to_64_bytes(secret: bytes) -> None:
    with pytest.raises(KeyUnusable, match="1 to 64 bytes"):
        Key(secret)


def test_keys_of_text() -> None:
    assert secret_of("hex:00ff") == b"\0\xff"
    assert secret_of("k\xf6") == "k\xf6".encode()
    for bad in ("hex:0", "hex:xy"):
        with pytest.raises(KeyUnusable, match="pairs of digits"):
            secret_of(bad)
    for bad in ("", "hex:", "hex:" + 65 * "00", 33 * "\xf6"):
        with pytest.raises(KeyUnusable, match="1 to 64 bytes"):
            secret_of(bad)


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(Key(b"secret")) + str(Key(b"secret"))


def test_a_default_key_alone_seals_what_is_sent() -> None:
    out = Outgoing.control(peer(0), Control(A.HALT, JOB, 9).build())
    for keys in (Keys(default=KEY), Keys({JOB: KEY})):
        (sealed,) = keys.sealed([out])
        assert packets_of(sealed) == [packets_of(out)[0] + mac(packets_of(out)[0])]
    assert packets_of(*Keys().sealed([out])) == packets_of(out)


def test_the_largest_request_stays_the_largest() -> None:
    """Also when an older one is answered later: its answer was the parent's."""
    answers = Answers()
    for request in (5, 9, 7):
        answers.put(request, b"answer")
    assert answers.last == 9


def test_a_packet_is_opened_by_its_key_only() -> None:
    sealed = b"packet" + mac(b"packet")
    assert Key(KEY).opened(sealed) == b"packet"
    assert Key(KEY + b"!").opened(sealed) is None
    assert all(Key(KEY).opened(sealed[:n]) is None for n in range(len(sealed)))
    for bit in range(8 * len(sealed)):
        wrong = bytearray(sealed)
        wrong[bit // 8] ^= 1 << bit % 8
        assert Key(KEY).opened(bytes(wrong)) is None


def test_jobs_have_keys_of_their_own_or_the_default() -> None:
    keys = Keys({7: b"seven"}, b"others")
    seven, eight = keys.of(7), keys.of(8)
    assert seven is not None
    assert eight is not None
    assert seven.mac(b"") == mac(b"", b"seven")
    assert eight.mac(b"") == mac(b"", b"others")
    assert Keys({7: b"seven"}).of(8) is None
    assert not Keys()
    with pytest.raises(KeyUnusable):
        Switch(keys={7: b""})


# A switch


class Keyed:
    """A switch with a keyed job, and what it sends, MACs checked and taken off."""

    def __init__(self, switch: Switch | None = None, members: int = 2) -> None:
        self.switch = switch or Switch(keys={JOB: KEY})
        self.now = 0.0
        for who in range(members):
            join = Join.for_shape(SHAPE, MemberType.WORKER, members)
            assert self.ask(who, A.JOIN, 1000, join).status == S.OK

    def raw(self, who: int, payload: bytes, tos: int = TOS_CONTROL) -> list[Outgoing]:
        sends = self.switch.receive(Burst.single(peer(who), tos, payload), self.now)
        assert_accounted(self.switch.counters)
        return sends

    def send(self, who: int, packet: Control, key: bytes = KEY) -> list[tuple[Address, Control]]:
        payload = packet.build()
        return self.opened(self.raw(who, payload + mac(payload, key)))

    def opened(self, sends: list[Outgoing]) -> list[tuple[Address, Control]]:
        found = []
        for out in sends:
            for payload in packets_of(out):
                assert out.tos == TOS_CONTROL
                assert payload[-MAC:] == mac(payload[:-MAC])
                found += [(to, Control.parse(payload[:-MAC])) for to in out.peers]
        return found

    def ask(self, who: int, action: Action, request: int, value: Value = None) -> Control:
        to, answer = self.send(who, Control(action, JOB, request, value))[0]
        assert (to, answer.action, answer.request) == (peer(who), A.ACK, request)
        return answer

    def state(self) -> object:
        """All that a packet might change."""
        job = self.switch.jobs[JOB]
        members = job.members.by_address.values()
        return (
            [(m.address, m.rank, m.incarnation, m.last_seen, m.answers.last) for m in members],
            [list(m.answers._payloads) for m in members],
            (job.threshold, job.halted, job.window.high, job.members.expected),
            len(self.switch.record.former),
            {to: one.packets() for to, one in self.switch.control.relays._unanswered.items()},
        )


ALL = Segments(0, 0, 3)
REQUESTS = [
    Control(A.JOIN, JOB, 1000, Join.for_shape(SHAPE)),
    Control(A.JOIN, JOB, 2000, Join.for_shape(SHAPE)),
    Control(A.LEAVE, JOB, 1001),
    Control(A.RESET, JOB, 1001),
    Control(A.SETH, JOB, 1001, Threshold(1)),
    Control(A.FBCAST, JOB, 1001, ALL),
    Control(A.HELP, JOB, 1001, ALL),
    Control(A.HALT, JOB, 1001),
]
FORGERIES: dict[str, Callable[[bytes], bytes]] = {
    "none": lambda packet: packet,
    "cut": lambda packet: (packet + mac(packet))[:-1],
    "longer": lambda packet: packet + mac(packet) + b"\0",
    "of another key": lambda packet: packet + mac(packet, b"another"),
    "without a key": lambda packet: packet + hashlib.blake2b(packet, digest_size=MAC).digest(),
    "of another packet": lambda packet: packet + mac(packet + b"\0"),
    "zeros": lambda packet: packet + bytes(MAC),
}


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: f"{r.action.name}-{r.request}")
@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("who", [0, 5])
def test_a_wrong_mac_changes_nothing(
    request_: Control, forge: Callable[[bytes], bytes], who: int
) -> None:
    """It is answered DENIED without a MAC; of a member, of a stranger."""
    bench = Keyed()
    bench.now = 1.0
    before = bench.state()
    (out,) = bench.raw(who, forge(request_.build()))
    denied = Control(A.ACK, JOB, request_.request, Ack(request_.action), S.DENIED)
    assert packets_of(out) == [denied.build()]
    assert out.peers == (peer(who),)
    assert bench.state() == before
    assert bench.switch.counters["bad_mac"] == 1
    if request_.action is not A.JOIN and who == 0:  # not even the answer is kept
        assert bench.ask(0, request_.action, 1001, request_.value).status == S.OK


def test_an_ack_with_a_wrong_mac_is_dropped() -> None:
    bench = Keyed()
    bench.send(0, Control(A.HALT, JOB, 1001))
    bench.now = 0.01
    before = bench.state()
    assert bench.raw(1, Control(A.ACK, JOB, 2, Ack(A.HALT)).build()) == []
    assert bench.state() == before
    assert bench.switch.counters["bad_mac"] == 1


def test_nonsense_with_the_right_mac_is_a_bad_request() -> None:
    bench = Keyed()
    payload = Control(A.LEAVE, JOB, 1001).build() + b"\0"
    ((_, answer),) = bench.opened(bench.raw(0, payload + mac(payload)))
    assert answer.status == S.BAD_REQUEST


def test_relays_and_their_repeats_have_macs() -> None:
    bench = Keyed()
    sent = bench.send(0, Control(A.HALT, JOB, 1001))
    assert [(to, packet.action) for to, packet in sent] == [
        (peer(0), A.ACK),
        (peer(0), A.HALT),
        (peer(1), A.HALT),
    ]
    bench.now = 0.02
    assert bench.opened(bench.switch.handle_timer(bench.now)) == sent[1:]


def test_other_jobs_are_not_keyed() -> None:
    bench = Keyed()
    packet = Control(A.JOIN, JOB + 1, 1000, Join(MemberType.CONTROLLER))
    (out,) = bench.raw(8, packet.build())
    assert Control.parse(packets_of(out)[0]).status == S.OK
    (out,) = bench.raw(9, packet.build() + mac(packet.build()))
    assert Control.parse(packets_of(out)[0]).status == S.BAD_REQUEST


def test_data_has_no_mac() -> None:
    bench = Keyed()
    sums = []
    for who in (0, 1):
        for payload in segments_of(SHAPE, 0, ONES):
            sums += bench.raw(who, payload, TOS_DATA)
    assert b"".join(p[8:] for out in sums for p in packets_of(out)) == (2 * ONES).tobytes()


# Replays


def test_numbers_must_grow() -> None:
    bench = Keyed()
    assert bench.ask(0, A.SETH, 1005, Threshold(1)).status == S.OK
    bench.now = 1.0
    before = bench.state()
    for request in (1004, 1001, 1000, 1):
        answer = bench.ask(0, A.SETH, request, Threshold(2))
        assert answer.status == S.DENIED
        assert isinstance(answer.value, Ack)
        assert answer.value.round == 1005  # from where to go on
    assert bench.state() == before
    assert bench.switch.counters["replayed"] == 4
    assert bench.ask(0, A.SETH, 1006, Threshold(2)).status == S.OK


def test_a_repeat_is_answered_not_executed_and_renews_nothing() -> None:
    bench = Keyed()
    first = bench.ask(0, A.RESET, 1001)
    bench.now = 1.0
    before = bench.state()
    assert bench.ask(0, A.RESET, 1001) == first
    assert bench.state() == before


@pytest.mark.parametrize(
    "old",
    [
        Control(A.LEAVE, JOB, 1001),
        Control(A.HALT, JOB, 1001),
        Control(A.RESET, JOB, 1001),
        Control(A.SETH, JOB, 1001, Threshold(1)),
    ],
    ids=lambda r: r.action.name,
)
def test_a_request_of_the_process_before_is_not_executed(old: Control) -> None:
    """Also when the new one's numbers have not come so far: its own go on from there."""
    bench = Keyed()
    assert bench.ask(0, A.SETH, 1900, Threshold(0)).status == S.OK  # the old one was busy
    assert bench.ask(0, A.JOIN, 1100, Join.for_shape(SHAPE, expected=2)).status == S.OK
    bench.send(0, old._replace(request=1800))
    assert not bench.switch.jobs[JOB].halted
    assert bench.switch.jobs[JOB].threshold == 0
    assert peer(0) in bench.switch.jobs[JOB].members.by_address
    assert bench.switch.counters["replayed"] == 1
    assert bench.ask(0, A.LEAVE, 1901).status == S.OK


def test_joins_of_those_who_left_are_stale() -> None:
    bench = Keyed()
    bench.ask(0, A.LEAVE, 1001)
    bench.now = 10.0
    old = Control(A.JOIN, JOB, 1000, Join.for_shape(SHAPE))
    for request in (1000, 999):  # the number to go on above is that of the Leave
        answer = bench.ask(0, A.JOIN, request, old.value)
        assert (answer.status, answer.value) == (S.DENIED, Ack(A.JOIN, 0, 0, 1000, 1001, 0))
    assert peer(0) not in bench.switch.jobs[JOB].members.by_address
    assert bench.switch.counters["stale_join"] == 2
    assert bench.ask(0, A.JOIN, 1001, old.value).status == S.OK


def test_who_was_out_by_its_lease_comes_back_older_processes_do_not() -> None:
    bench = Keyed()
    bench.now = 31.0
    while bench.switch.jobs[JOB].members:
        bench.switch.handle_timer(bench.now)
        bench.now += 1.0
    join = Control(A.JOIN, JOB, 1000, Join.for_shape(SHAPE))
    assert bench.ask(0, A.JOIN, 999, join.value).status == S.DENIED
    assert bench.ask(0, A.JOIN, 1000, join.value).status == S.OK


def test_an_ack_renews_a_lease_once() -> None:
    bench = Keyed()
    bench.send(0, Control(A.HALT, JOB, 1001))
    ack = Control(A.ACK, JOB, 2, Ack(A.HALT))
    member = bench.switch.jobs[JOB].members.by_address[peer(1)]
    for bench.now in (5.0, 6.0):
        assert bench.send(1, ack) == []
    assert member.last_seen == 5.0
    assert bench.switch.counters["unmatched_ack"] == 1


def test_what_is_remembered_of_former_members_is_bounded() -> None:
    bench = Keyed(members=1)
    for who in range(10, 30 + REMEMBERED):
        bench.ask(who, A.JOIN, 1000, Join(MemberType.CONTROLLER))
        bench.ask(who, A.LEAVE, 1001)
    assert len(bench.switch.record.former) == REMEMBERED


def test_what_is_not_promised_a_recorded_join_from_another_address() -> None:
    """docs/protocol.md says so: a MAC does not say by whom. Its requests, then, but once each."""
    bench = Keyed()
    reset = bench.ask(0, A.RESET, 1001)
    assert bench.ask(5, A.JOIN, 1000, Join.for_shape(SHAPE, expected=2)).status == S.OK
    assert bench.ask(5, A.RESET, 1001).value != reset.value
    high = bench.switch.jobs[JOB].window.high
    bench.ask(5, A.RESET, 1001)
    assert bench.switch.jobs[JOB].window.high == high


def test_members_of_other_jobs_do_not_have_those_of_keyed_jobs_forgotten() -> None:
    """Who has no key can come and go as often as he likes."""
    former = FormerMembers()
    of_keyed = Former(Answers(7), 1000, 1.0)
    former.put(peer(0), 7, of_keyed, True)
    for number in range(2 * REMEMBERED):
        former.put(peer(number % 50), 1000 + number, Former(), False)
    assert former.get(peer(0), 7) is of_keyed
    assert len(former) == REMEMBERED + 1
