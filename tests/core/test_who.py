"""For whom a round waits: every worker of a tree that gives up names exactly the silent ones."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from iswitch.core.format import wire
from iswitch.core.format.keys import Keys
from iswitch.core.format.packets import Address
from iswitch.core.format.wire import MOST_NAMED, NO_RANK, Ack, AckWho, Action, Awaited, Present, Who
from iswitch.core.jobs.limits import Limits
from iswitch.core.jobs.who import NOBODY, Awaiting, Neighbours, together
from iswitch.core.switch import Switch
from tests.support.tree import Tree, switch_address
from tests.support.world import SWITCH, Faults, worker_address
from worker_lib.environment import hosts
from worker_lib.errors import AllreduceTimeout, MemberLost
from worker_lib.protocol.session import Answered, Event, Session
from worker_lib.waiting import ELSEWHERE, Waiting

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "8"))  # `make model` takes more
FAN_OUTS = [(4,), (2, 2), (3, 2), (2, 3), (2, 2, 2), (2, 1, 3), (3, 2, 2)]
LOST = "the aggregates are lost on their way"


def has_answer(events: list[Event], request: int) -> bool:
    return any(isinstance(event, Answered) and event.request == request for event in events)


def gives_up(
    tree: Tree,
    session: Session,
    names: dict[str, str] | None = None,
    there: Sequence[Present] = (),
) -> AllreduceTimeout:
    """What a worker says whose time is up, asked as `Worker` does it."""
    waiting = Waiting(session, session.terms.expected, "wait", names)
    waiting.begin(tree.now)
    waiting.there = list(there)
    question = tree.random.getrandbits(32)
    end = tree.now + 0.5
    answers = tree.events[tree.address(session)]
    while not waiting.knows and tree.now < end:
        request = waiting.ask_for_whom(question, tree.now)
        tree.run(partial(has_answer, answers, request))
        for event in answers:
            if isinstance(event, Answered):
                waiting.answered(event)
        answers.clear()
    session.join(tree.now)
    tree.run(partial(has_answer, answers, session.incarnation))
    return waiting.too_late(1.0, tree.now, 0)


def said(error: AllreduceTimeout | MemberLost) -> set[tuple[Address, Address, int]]:
    """Whom it names: worker, switch, rank there."""
    assert all(one.rank != NO_RANK for one in error.awaited), error
    return {
        (Address(one.host, one.port), Address(one.switch_host, one.switch_port), one.rank)
        for one in error.awaited
    }


def silent_ones(tree: Tree, numbers: list[int]) -> set[tuple[Address, Address, int]]:
    workers = [(n, tree.workers[n]) for n in numbers]
    return {(worker_address(n), session.switch, session.rank) for n, session in workers}


class Scene(Tree):
    """A tree in which some workers contribute nothing, or not all."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        faults = Faults(loss=draw.choice([0, 0.05, 0.2]), jitter=draw.choice([0, 300e-6]))
        super().__init__(
            *draw.choice(FAN_OUTS), seed=seed, faults=faults, whole=draw.random() < 0.5
        )
        self.all_there()
        for _ in range(draw.randint(0, 2)):
            self.round_of_all()
        everybody = range(len(self.workers))
        self.left = [draw.choice(everybody)] if draw.random() < 0.2 else []
        rest = [n for n in everybody if n not in self.left]
        self.silent = sorted(draw.sample(rest, draw.randint(0, len(rest) - 1)))
        self.killed = [n for n in self.silent if draw.random() < 0.3]
        self.active = [n for n in rest if n not in self.silent]
        for n in self.left:
            self.workers[n].request(Action.LEAVE, None, self.now)
        self.let_pass(1.0 * bool(self.left))
        for n in [*self.killed, *self.left]:
            del self.sessions[worker_address(n)]
        self.begin(*self.active)
        self.let_pass(draw.uniform(0.3, 3.0))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_who_is_silent_is_named(seed: int) -> None:
    scene = Scene(seed)
    scene.faults = Faults()
    scene.let_pass(1.5)
    missed = silent_ones(scene, scene.silent)
    waiting = [n for n in scene.active if not scene.workers[n].transfer.done]  # type: ignore[union-attr]
    if missed or (scene.left and scene.workers[0].terms.flags):
        assert waiting == scene.active
    for n in waiting:
        error = gives_up(scene, scene.workers[n])
        assert said(error) == missed, error
        assert (LOST in str(error)) == (not missed and not scene.left)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_nobody_else_is_named_while_packets_are_lost(seed: int) -> None:
    scene = Scene(1000 + seed)
    scene.faults = Faults(loss=0.1, duplicate=0.1, jitter=1e-3)
    scene.let_pass(3.0)
    missed = silent_ones(scene, scene.silent)
    for n in scene.active:
        if not scene.workers[n].transfer.done:  # type: ignore[union-attr]
            named = gives_up(scene, scene.workers[n]).awaited
            workers = {Address(one.host, one.port) for one in named if one.rank != NO_RANK}
            assert workers <= {address for address, _, _ in missed}


class Bereft(Tree):
    """A tree in which some workers die, some leave, some are slow, and the others wait for them."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        faults = Faults(loss=draw.choice([0, 0.05]), jitter=draw.choice([0, 300e-6]))
        super().__init__(*draw.choice(FAN_OUTS), seed=seed, faults=faults, lease=5.0, whole=True)
        self.all_there()
        self.rounds = draw.randint(0, 2)
        for _ in range(self.rounds):
            self.round_of_all()
        everybody = range(len(self.workers))
        self.dead = draw.sample(everybody, draw.randint(1, len(everybody) - 1))
        rest = [n for n in everybody if n not in self.dead]
        self.left = draw.sample(rest, draw.randint(0, len(rest) - 1)) if draw.random() < 0.4 else []
        rest = [n for n in rest if n not in self.left]
        self.active = sorted(draw.sample(rest, draw.randint(1, len(rest))))  # the others are slow
        for n in self.left:
            self.workers[n].request(Action.LEAVE, None, self.now)
        self.let_pass(1.0 * bool(self.left))
        for n in [*self.dead, *self.left]:
            del self.sessions[worker_address(n)]
        self.begin(*self.active)
        self.let_pass(15.0)  # the leases, and the heartbeats of switches

    def hears(self, number: int) -> bool:
        """Whether a worker is told how many are there now.

        Before its first contribution a switch is told that all have come, and its workers with it,
        unless it has told that it lacks some itself.
        """
        gone = {*self.dead, *self.left}
        for switch in self.way(number)[:-1]:
            below = {n for n in range(len(self.workers)) if switch in self.way(n)}
            if not self.rounds and not below & gone and not below <= {*self.active}:
                return False
        return True

    def way(self, number: int) -> list[Address]:
        """The switches from a worker to the root."""
        way = [self.workers[number].switch]
        while way[-1] in self.above:
            way.append(self.above[way[-1]])
        return way


def member_lost(tree: Tree, number: int) -> MemberLost:
    """What one is told, asked as `Worker` does it."""
    session = tree.workers[number]
    waiting = Waiting(session, session.terms.expected, "raise")
    waiting.begin(tree.now)
    answers = tree.events[tree.address(session)]
    found: list[MemberLost] = []

    def is_told() -> bool:
        for event in answers:
            if isinstance(event, Answered):
                waiting.answered(event)
        answers.clear()
        lost = waiting.lost(tree.now)
        found.extend([] if lost is None else [lost])
        return bool(found)

    session.join(tree.now)
    tree.run(is_told, limit=10.0)
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_who_is_lost_is_named(seed: int) -> None:
    """Exactly the dead, in the whole tree, and nobody who is slow.

    Where all the workers of a switch are dead or gone, it has left the switch above, and nothing is
    known of them any more.
    """
    scene = Bereft(seed)
    alive = {
        session.switch
        for n, session in enumerate(scene.workers)
        if n not in (*scene.dead, *scene.left)
    }
    known = [n for n in scene.dead if scene.workers[n].switch in alive]
    for n in scene.active:
        if not scene.hears(n):
            awaited = gives_up(scene, scene.workers[n]).awaited
            if all(one.rank != NO_RANK for one in awaited):
                named = {Address(one.host, one.port) for one in awaited}
                assert named >= {worker_address(k) for k in known}
            continue
        error = member_lost(scene, n)
        assert said(error) == silent_ones(scene, known), error
        assert error.ranks == sorted(scene.workers[n].rank for n in known)
        assert ("it has left" in str(error)) == (not known)


def test_who_is_lost_behind_a_switch_that_does_not_answer() -> None:
    """So much is said, within seconds."""
    tree = Tree(2, 2, lease=5.0, whole=True)
    tree.all_there()
    tree.round_of_all()
    del tree.sessions[worker_address(3)]
    tree.let_pass(15.0)  # the lease, and the heartbeats of switches
    dead = switch_address(2)
    home = tree.network.home
    tree.network.lose = lambda source, peer, *_: dead in (home(source), home(peer))
    tree.begin(0, 1)
    began = tree.now
    error = member_lost(tree, 0)
    assert [one[:3] for one in error.awaited] == [(*dead[:2], NO_RANK)]
    assert f"some behind the switch at {dead}, which has not answered are lost" in str(error)
    assert tree.now - began < ELSEWHERE + 1.0


def asked(tree: Tree, number: int) -> AllreduceTimeout:
    tree.let_pass(1.0)
    return gives_up(tree, tree.workers[number])


@pytest.mark.slow
def test_a_switch_that_does_not_answer_is_named() -> None:
    """Its workers cannot be known, so it is named itself."""
    tree = Tree(2, 2)
    tree.all_there()
    dead = switch_address(2)
    del tree.switches[dead]
    tree.begin(0, 1)
    error = asked(tree, 0)
    assert [one[:3] for one in error.awaited] == [(*dead[:2], NO_RANK)]
    assert f"behind the switch at {dead}, which has not answered" in str(error)


def test_a_root_that_does_not_answer_is_named() -> None:
    tree = Tree(2, 2)
    tree.all_there()
    tree.network.lose = lambda _source, peer, _tos, _payload: peer == SWITCH
    tree.begin(0, 1, 2, 3)
    error = asked(tree, 0)
    assert [one[:3] for one in error.awaited] == [(*SWITCH[:2], NO_RANK)]


def test_who_has_lost_its_rank_is_told_who_has_it() -> None:
    """Not that the switch does not answer, nor for whom the others wait."""
    tree = Tree(2, 1)
    tree.all_there()
    tree.begin(0)
    session, other = tree.workers[0], switch_address(2)
    host = int.from_bytes(bytes(map(int, other.host.split("."))), "big")
    session._claim.taken = Ack(
        Action.JOIN, rank=5, threshold=host, round=other.port, contributors=wire.ELSEWHERE
    )
    session.heard, session.waiting_for = tree.now - 60.0, None
    waiting = Waiting(session, session.terms.expected, "wait")
    error = str(waiting.too_late(1.0, tree.now, 0))
    assert "does not take this worker in again: another worker has its rank" in error
    assert f"(rank 5 is that of a worker behind the switch at {other})" in error
    assert "does not answer" not in error


def test_an_answer_is_not_older_than_the_question() -> None:
    """Whoever was missed, and has contributed since, is not named again."""
    tree = Tree(2, 2)
    tree.all_there()
    tree.begin(0, 1)
    both = {worker_address(2), worker_address(3)}
    first = asked(tree, 0)
    assert {Address(one.host, one.port) for one in first.awaited} == both
    tree.begin(2)
    second = gives_up(tree, tree.workers[0])
    assert {Address(one.host, one.port) for one in second.awaited} == {worker_address(3)}


def test_only_who_was_heard_within_a_heartbeat_passes_for_late() -> None:
    tree = Tree(3)
    tree.all_there()
    tree.begin(0)
    tree.let_pass(1.0)
    there = [
        Present(*worker_address(i)[:2], tree.workers[i].rank, silent)
        for i, silent in ((1, 3900), (2, 100))
    ]
    error = str(gives_up(tree, tree.workers[0], there=there))
    late = tree.workers[2].rank
    assert f": rank {late} is in the job, last heard 0.1 s ago" in error
    assert error.endswith("and may only be late; did the other stop, or die?")


def test_more_than_an_ack_names_are_counted() -> None:
    tree = Tree(2, 20)
    tree.all_there()
    tree.begin(0)
    error = asked(tree, 0)
    assert len(error.awaited) == MOST_NAMED
    assert f"and {39 - MOST_NAMED} more: did they stop" in str(error)


def test_switches_are_named_first_and_an_answer_is_kept_until_a_later_one() -> None:
    neighbours, who = Neighbours(), Who(1, 0, 3, 4)
    sent: Any = ["request"]
    at = host, port = switch_address(1)[:2]
    silent, sends = neighbours.ask(at, 7, who, lambda: sent)
    assert (silent.settled, sends) == (False, sent)
    parts = [Awaiting(1, (Awaited(*worker_address(n)[:2], n),)) for n in range(MOST_NAMED)]
    joined = together([*parts, silent])
    assert (joined.total, joined.awaited[0].rank) == (MOST_NAMED + 1, NO_RANK)
    assert together([]) == NOBODY == Awaiting(0, ())
    ack = AckWho(Action.HELP, total=1, awaited=(Awaited("10.0.0.1", 40000, 0),))
    neighbours.answered(at, 7, who, ack)
    told, sends = neighbours.ask(at, 7, who, lambda: sent)
    assert told.awaited == (Awaited("10.0.0.1", 40000, 0, host, port),)
    assert told.settled
    assert not sends
    other, _ = neighbours.ask(at, 7, Who(1, 0, 3, 5), lambda: sent)
    assert not other.settled


class KeyedTree(Tree):
    """A tree in whose switches every job has a key."""

    def __init__(self, *fan_outs: int, key: bytes) -> None:
        self.keys = Keys(default=key)
        super().__init__(*fan_outs, key=key)
        self.switch = Switch(Limits(), keys=self.keys)

    def new_switch(self, address: Address) -> Switch:
        switch = Switch(Limits(), False, self.above[address], 1000, keys=self.keys)
        switch.record.listening = address.port
        return switch


def test_in_a_keyed_job_answers_have_a_mac() -> None:
    tree = KeyedTree(2, 2, 2, key=b"a key of all")
    tree.all_there()
    tree.begin(0, 1, 2, 4, 5, 7)
    error = asked(tree, 7)
    assert said(error) == silent_ones(tree, [3, 6])


def test_a_threshold_that_was_set_changes_nothing() -> None:
    """H of two at a root of three racks: whoever has not contributed is named, as by the map."""
    tree = Tree(3, 1)
    tree.all_there()
    tree.switch.record.jobs[7].threshold = 2
    tree.begin(0)
    error = asked(tree, 0)
    assert said(error) == silent_ones(tree, [1, 2])
    tree.begin(1)
    tree.run(lambda: all(tree.workers[n].transfer.done for n in (0, 1)))  # type: ignore[union-attr]


def test_names_of_hosts_are_used_where_an_address_has_one() -> None:
    two = hosts({"ISWITCH_HOSTS": "h1=10.0.0.1,h2=10.0.0.2"})
    assert two == {"10.0.0.1": "h1", "10.0.0.2": "h2"}
    for text in ("", "h1", "h1=127.0.0.1,h2=127.0.0.1", "=,=", ",h="):
        assert hosts({"ISWITCH_HOSTS": text}) == {}
    assert hosts({}) == {}
    tree = Tree(2, 1)
    tree.all_there()
    tree.begin(0)
    tree.let_pass(1.0)
    error = gives_up(tree, tree.workers[0], {worker_address(1).host: "h2"})
    assert f"rank 0 at switch {switch_address(2)} (h2, {worker_address(1)})" in str(error)
