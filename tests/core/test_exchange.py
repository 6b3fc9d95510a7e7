"""The engine of requests, and relays that are executed once."""

from __future__ import annotations

from itertools import pairwise

import pytest

from iswitch.core.exchange.relayed import REMEMBERED, Relayed
from iswitch.core.exchange.requests import Backoff, Numbers, Requests
from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import (
    FLAG_NEW,
    ROUND_MASK,
    Ack,
    Action,
    Control,
    Join,
    MemberType,
    Round,
    Threshold,
)
from tests.support.parts import packets_of, peer

JOB = 7


def asker(backoff: Backoff | None = None, last: int = 100) -> Requests:
    return Requests(peer(0), Numbers(last), backoff or Backoff(0.05, 1.0))


def sent(*sends: Outgoing) -> list[Control]:
    return [Control.parse(payload) for out in sends for payload in packets_of(out)]


def join(number: int, flags: int = 0) -> Control:
    return Control(Action.JOIN, JOB, number, Join(MemberType.WORKER, flags=flags))


def ack(action: Action, number: int, job: int = JOB, known: int = 0) -> Control:
    return Control(Action.ACK, job, number, Ack(action, known))


@pytest.mark.parametrize(
    ("backoff", "pauses"),
    [
        (Backoff(0.05, 1.0), [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]),
        (Backoff(0.02), [0.02 * 2**n for n in range(8)]),
        (Backoff(0.5, 0.5), [0.5] * 8),
    ],
)
def test_pauses_double_up_to_the_longest(backoff: Backoff, pauses: list[float]) -> None:
    requests = asker(backoff)
    number, first = requests.ask_next(JOB, Action.SETH, Threshold(2), 3.0)
    assert sent(first) == [Control(Action.SETH, JOB, number, Threshold(2))]
    times = [3.0]
    for _ in pauses:
        due = requests.deadline()
        assert due is not None
        assert requests.repeat(due - 1e-9) == []
        assert sent(*requests.repeat(due)) == sent(first)
        times.append(due)
    assert [b - a for a, b in pairwise(times)] == pytest.approx(pauses)


def test_a_request_is_given_up_after_its_last_pause() -> None:
    requests = asker(Backoff(0.02, sends=3))
    requests.ask_next(JOB, Action.HALT, None, 0.0)
    requests.ask_next(JOB, Action.HALT, None, 0.01)
    for now in (0.03, 0.08):
        assert requests.give_up(now) == 0
        assert len(requests.repeat(now)) == 2
    assert requests.give_up(0.15) == 0
    assert requests.give_up(0.16) == 2
    assert not requests
    assert requests.deadline() is None


def test_a_join_and_another_request_may_have_one_number() -> None:
    requests = asker()
    requests.ask(join(101), 0.0)
    assert requests.ask_next(JOB, Action.SETH, Threshold(1), 0.0)[0] == 101
    assert requests.answered_by(ack(Action.LEAVE, 101)) is None
    assert requests.answered_by(ack(Action.SETH, 102)) is None
    assert requests.answered_by(ack(Action.SETH, 101, job=8)) is None
    joined, was_set = (
        requests.answered_by(ack(action, 101)) for action in (Action.JOIN, Action.SETH)
    )
    assert joined is not None
    assert was_set is not None
    assert (joined.packet.action, was_set.packet.action) == (Action.JOIN, Action.SETH)
    requests.close(was_set)
    assert requests.packets() == [joined.packet]
    requests.forget(101)
    assert requests.has(101)
    requests.forget_joins()
    assert not requests.has(101)


def test_the_answer_to_an_earlier_process_is_none_to_its_successor() -> None:
    requests = asker()
    requests.ask(join(100, FLAG_NEW), 0.0)
    assert requests.answered_by(ack(Action.JOIN, 100, known=1)) is None
    assert requests.answered_by(ack(Action.JOIN, 100)) is not None
    requests.ask(join(100), 0.0)
    assert requests.answered_by(ack(Action.JOIN, 100, known=1)) is not None


def test_asked_anew_a_request_begins_its_pauses_again_under_a_later_number() -> None:
    requests = asker()
    number, _ = requests.ask_next(JOB, Action.SETH, Threshold(1), 0.0)
    requests.repeat(0.05)
    one = requests.find(number)
    assert one is not None
    requests.numbers.exceed(500)
    (packet,) = sent(requests.ask_anew(one, 0.06))
    assert packet == Control(Action.SETH, JOB, 501, Threshold(1))
    assert requests.packets() == [packet]
    assert requests.deadline() == pytest.approx(0.11)
    again = requests.find(501)
    assert again is not None
    assert again.asked == number  # its asker knows it by the first


def test_numbers_wrap_and_never_fall() -> None:
    numbers = Numbers(ROUND_MASK)
    assert numbers.next() == 0
    numbers.exceed(ROUND_MASK)
    assert numbers.last == 0
    numbers.exceed(9)
    assert numbers.next() == 10


def test_what_is_asked_once_is_not_repeated() -> None:
    requests = asker()
    number, out = requests.ask_once(JOB, Action.HALT, None)
    assert (number, sent(out)[0].request) == (101, 101)
    assert not requests


def test_only_requests_of_the_job_are_forgotten() -> None:
    requests = asker()
    for job in (7, 8, 7):
        requests.ask_next(job, Action.HALT, None, 0.0)
    requests.forget_job(7)
    assert [packet.job for packet in requests.packets()] == [8]


def test_relays_are_new_once() -> None:
    relayed = Relayed()
    reset = Control(Action.RESET, JOB, 5, Round(3))
    assert relayed.is_new(reset)
    assert not relayed.is_new(reset)
    relayed.begin_anew()
    assert relayed.is_new(reset)


def test_an_old_halt_is_not_new_however_long_ago_it_came() -> None:
    relayed = Relayed()
    old, newest = (Control(Action.HALT, JOB, number, None) for number in (5, 6))
    assert relayed.is_new(old)
    assert relayed.is_new(newest)
    for number in range(10, 10 + REMEMBERED):
        assert relayed.is_new(Control(Action.RESET, JOB, number, Round(3)))
    assert not relayed.is_new(old)
    assert not relayed.is_new(newest)
    assert relayed.is_new(Control(Action.HALT, JOB, 7, None))
