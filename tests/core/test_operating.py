"""What operators decide: quotas, priorities, drained switches and jobs that are ended."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.core.format.keys import Keys
from iswitch.core.format.wire import (
    FLAG_NEW,
    FLAG_STANDS_AT,
    FLAG_WHOLE,
    PRIORITY_SHIFT,
    Ack,
    Action,
    Control,
    Shape,
    Show,
    Shown,
    Status,
    kib,
    slots_flags,
)
from iswitch.core.jobs.limits import Grants, Limits
from iswitch.core.jobs.operating import Order
from iswitch.core.jobs.record import Elsewhere
from iswitch.core.sums.numpy_plane import memory_needed
from iswitch.core.sums.resized import ResizedAccelerator
from iswitch.core.switch import Switch
from tests.support.parts import JOB, Bench, packets_of, peer
from tests.support.tree import Tree
from worker_lib.errors import Refused
from worker_lib.protocol.events import Answered

pytestmark = pytest.mark.unit

SHAPE = Shape.of(5000)
NEEDED = memory_needed(SHAPE, False, True)
OTHER = Elsewhere("10.9.8.7", 26963)


def bench(grants: Grants, keys: Keys | None = None, **limits: object) -> Bench:
    given = Limits(grants=grants, **limits)  # type: ignore[arg-type]
    return Bench(Switch(given, keys=keys))


def refused(one: Bench, who: int, job: int, flags: int = FLAG_NEW) -> tuple[Status, Refused | None]:
    """Join; the status, and the error that a worker raises."""
    status, ack, _ = one.join(who, SHAPE, flags=flags, job=job, request=1000 + who)
    if status is Status.OK:
        return status, None
    return status, Refused(Action.JOIN, status, job, ack=ack)


def test_a_job_has_no_more_than_its_quota() -> None:
    """Job 1 has a quota of its own, all others that of each; to the byte."""
    one = bench(Grants({1: NEEDED}, each=NEEDED - 1))
    assert refused(one, 0, 1)[0] is Status.OK
    status, error = refused(one, 1, 2)
    assert status is Status.QUOTA
    needed, quota, free = kib(NEEDED), kib(NEEDED - 1), kib(NEEDED - 1, whole=True)
    said = (
        f"needs {needed} KiB of the switch's memory, and of the {quota} KiB that this job may have"
    )
    assert f"{said} (the switch's --quota) {free} KiB are free" in str(error)
    assert one.switch.record.reserved == NEEDED


@pytest.mark.parametrize("slots", [2, 8])
def test_a_pool_refuses_a_job_whose_quota_has_room_for_no_slot(slots: int) -> None:
    """What is left may be anything, as it is of a user's quota."""
    least = ResizedAccelerator.memory(SHAPE, slots)
    each = 2 * ResizedAccelerator.memory_per_slot(SHAPE)
    for room in range(slots + 1):
        one = bench(Grants(each=least - room * each - 1), policy="pool", slots=slots)
        status, error = refused(one, 0, 1, FLAG_NEW | FLAG_WHOLE | slots_flags(slots))
        assert status is Status.QUOTA
        assert f"needs {kib(least)} KiB" in str(error)


def test_all_jobs_of_a_user_share_a_quota() -> None:
    keys = Keys(users={1: "ada", 2: "ada", 3: "bob"})
    one = bench(Grants({"ada": 2 * NEEDED - 1}), keys)
    assert refused(one, 0, 1)[0] is Status.OK
    status, error = refused(one, 1, 2)
    assert status is Status.QUOTA
    assert "this user's jobs may have" in str(error)
    assert refused(one, 2, 3)[0] is Status.OK
    one.control(0, Action.LEAVE, job=1)
    assert refused(one, 1, 2)[0] is Status.OK


def queue(one: Bench) -> list[tuple[int, int]]:
    """The jobs that wait, and their priorities."""
    found: list[tuple[int, int]] = []
    place = 1
    while True:
        status, ack, _ = one.control(60, Action.SHOW, Show(Shown.QUEUE, place))
        if status is not Status.OK:
            return found
        found.append((ack.rank, ack.known))
        place = ack.round + 1


def test_jobs_of_a_higher_priority_come_in_first() -> None:
    """As a Join asks; but as the operator says, if he does: of the job, else of its user."""
    keys = Keys(users={3: "ada", 4: "ada", 5: "ada"})
    grants = Grants(priorities={5: 1, "ada": 6})
    one = bench(grants, keys, policy="lanes:fifo", memory=NEEDED)
    assert refused(one, 0, 1)[0] is Status.OK
    for who, asked in ((1, 0), (2, 2), (3, 7), (4, 0), (5, 7)):
        flags = FLAG_NEW | asked << PRIORITY_SHIFT
        assert refused(one, who, 1 + who, flags)[0] is Status.WAITING
    assert queue(one) == [(6, 7), (3, 6), (4, 6), (5, 1), (2, 0)]


def order(one: Bench, given: Order) -> list[tuple[int, Status, int]]:
    """Give an order; who is answered what, and what `contributors` says."""
    one.switch.record.orders.append(given)
    assert one.switch.deadline() == 0.0
    sends = one.switch.handle_timer(one.now)
    whom = {peer(who): who for who in range(64)}
    found = []
    for out in sends:
        packet = Control.parse(packets_of(out)[0])
        assert isinstance(packet.value, Ack)
        found.append((whom[out.peers[0]], Status(packet.status), packet.value.contributors))
    return found


def test_a_drained_switch_takes_no_new_jobs() -> None:
    """Members of its jobs may come back, jobs that wait are sent away, and drains end."""
    one = bench(Grants(), policy="lanes:fifo", memory=NEEDED)
    assert refused(one, 0, 1)[0] is Status.OK
    assert refused(one, 1, 2)[0] is Status.WAITING
    assert order(one, Order(drain=True, to=OTHER)) == [(1, Status.DRAINED, 0)]
    for who, job in ((1, 2), (2, 3)):
        status, error = refused(one, who, job)
        assert status is Status.DRAINED
        assert error is not None
        assert error.elsewhere == OTHER
        assert "takes no new jobs; use the switch at 10.9.8.7:26963" in str(error)
    assert refused(one, 0, 1)[0] is Status.OK
    assert one.control(60, Action.SHOW, Show(Shown.SWITCH))[1].known == 1
    order(one, Order(drain=False))
    assert refused(one, 1, 2)[0] is Status.WAITING
    assert one.control(60, Action.SHOW, Show(Shown.SWITCH))[1].known == 0


def test_a_job_is_ended_between_two_rounds() -> None:
    """Its members are told why when they come back; a new process begins the job anew."""
    one = Bench()
    one.gather(SHAPE, 2, FLAG_WHOLE)
    ones = np.ones(5000, np.float32)
    one.contribute(0, SHAPE, 0, ones)
    order(one, Order(jobs=frozenset({JOB}), to=OTHER, grace=1.0))
    assert len(one.switch.jobs[JOB].members) == 2  # its round is under way
    assert one.contribute(1, SHAPE, 0, ones)  # which completes it
    one.now = one.switch.deadline() or 0.0
    one.switch.handle_timer(one.now)
    assert not one.switch.jobs[JOB].members
    assert one.switch.record.reserved == 0
    assert one.control(0, Action.LEAVE)[0] is Status.NOT_MEMBER
    status, error = refused(one, 1, JOB, FLAG_WHOLE | FLAG_STANDS_AT)
    assert status is Status.DRAINED
    assert "the operator has ended this job here" in str(error)
    assert str(error).endswith(
        "last checkpoint, at the switch at 10.9.8.7:26963 (ISWITCH_SWITCH=10.9.8.7:26963, if the "
        "environment names it)"
    )
    assert one.join(1, SHAPE, flags=FLAG_WHOLE | FLAG_NEW, request=9000)[0] is Status.OK


def test_a_round_that_does_not_end_ends_with_its_grace() -> None:
    """And nothing of it is sent, though its job would be content with those that are left."""
    one = Bench()
    for who in range(3):
        one.join(who, SHAPE)
    ones = np.ones(5000, np.float32)
    for who in (1, 2):  # so that the first to be taken out is the one for whom they wait
        assert not one.contribute(who, SHAPE, 0, ones)
    order(one, Order(jobs=None, grace=0.5))
    one.now = 0.6
    assert not one.switch.handle_timer(one.now)
    assert not one.switch.jobs[JOB].members


def test_below_a_switch_workers_are_told_what_the_root_says() -> None:
    tree = Tree(2, 2, whole=True)
    sessions = tree.sessions.values()
    tree.run(lambda: all(one.member and one.joined == 4 for one in sessions))
    tree.switch.record.orders.append(Order(jobs=None, to=OTHER))
    end = tree.now + 10.0
    tree.network.at(end, lambda: None)
    tree.run(lambda: tree.now >= end)
    assert not any(one.member for one in sessions)
    assert not any(job.members for one in tree.switches.values() for job in one.jobs.values())
    answers = [event for events in tree.events.values() for event in events]
    said = [one.status for one in answers if isinstance(one, Answered)]
    assert [status for status in said if status is not Status.OK] == 4 * [Status.DRAINED]
