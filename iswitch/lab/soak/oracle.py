"""Checks the sums that workers get; docs/soak.md lists all checks, each with its promise.

The oracle sees the rounds that workers begin and the sums that they get. Of the history it knows
only the workers and the commands. `books.py` checks the switches, and `absence.py` what workers are
told of absent members.
"""

from __future__ import annotations

import numpy as np

from iswitch.core.format.wire import Shape, Vector, round_distance

from .scenario import WHOLE, Job, Scenario
from .values import Values
from .violation import Violation


class Rounds:
    """The oracle of one synchronous job.

    Args:
        scenario: the whole history.
        job: the job.
        lives: the most worker processes that it can have.
    """

    def __init__(self, scenario: Scenario, job: Job, lives: int) -> None:
        self.job = job
        self.values = Values(self.layout(job.shape()), lives)
        self.workers = len(job.hosts)
        self.begun: dict[int, set[int]] = {}  # lives by round
        self.last: dict[int, int] = {}  # the newest round that each life has begun
        self.done: dict[int, int] = {}  # and has got
        self.reset_to: dict[int, int] = {}  # the round to which it was reset last
        self.forced: set[int] = set()  # rounds that FBcast has named
        self.seen: dict[int, tuple[Vector, int]] = {}  # aggregates by round, and who has got them
        self.finished = 0
        self.in_force = {self.workers}  # H that may be in force now
        self.allowed: dict[int, set[int]] = {}  # H that may have been, since a round was begun
        self.asked = 0  # requests to set it that are not answered
        self.batch: set[int] = set()  # those asked for while another request was open
        self.automatic = True  # H has never been set
        # Until every member is back, a restarted switch sums rounds again that some members had.
        forgets = scenario.changes or job.threshold or scenario.has("seth", "fbcast")
        self.agree = not (scenario.restarts and forgets)
        self.changes = scenario.changes or bool(scenario.lease)
        self.is_quiet = scenario.is_quiet and not scenario.policy  # jobs wait for turns
        self.recovered: dict[int, int] = {}
        self.first: int | None = None  # the first round of which anybody has got a sum
        self.some_leave = scenario.has("leave")
        self.may_fall_behind = bool(
            job.threshold
            or (scenario.lease and job.mode != WHOLE)
            or scenario.has("seth", "fbcast")
        )
        # A switch below another asks for a Reset if all who took part there are replaced at once.
        may_ask = job.mode == WHOLE or not scenario.topology.startswith("star")
        self.is_reset = scenario.has("halt", "reset") or (may_ask and scenario.changes)
        # A switch that lost its state treats a worker as new when it answers its first Join.
        self.may_begin_anew = job.mode == WHOLE and scenario.restarts
        # A worker reborn at a switch that lost its state may begin in a round that others had.
        # A worker that missed a Reset is told the round of the others, too.
        lost_resets = scenario.restarts and scenario.has("reset")
        self.may_be_dropped = self.may_fall_behind or not self.agree or lost_resets

    def layout(self, shape: Shape) -> Shape:
        """Return the layout of what a process may contribute to a round."""
        return shape

    def begins(self, identity: int, round_: int) -> Vector:
        """Note that a process begins a round, and return what it contributes."""
        done = self.done.get(identity)
        if done is not None and round_distance(round_, done) <= 0:
            raise Violation("went back", f"life {identity} begins {round_}, and has got {done}")
        self.last[identity] = round_
        self.begun.setdefault(round_, set()).add(identity)
        self.allowed.setdefault(round_, set(self.in_force))
        return self.values.contribution(identity, round_)

    def is_reset_to(self, who: str, identity: int, round_: int) -> None:
        """Judge a Reset of which a process is told: never twice, and never to a lower round.

        Args:
            who: the process, for messages.
            identity: its number.
            round_: the round that the Reset names.
        """
        last, before = self.last.get(identity), self.reset_to.get(identity)
        if last is not None and round_distance(round_, last) < 0:
            raise Violation("went back", f"{who} is reset to {round_}, and has begun {last}")
        if before is not None and round_distance(round_, before) <= 0:
            raise Violation("executed again", f"{who} is reset to {round_}, as it has been before")
        self.reset_to[identity] = round_

    def has_reset(self, identity: int, round_: int) -> None:
        """Note the answer to a process's own Reset; the process must not be told of it again."""
        before = self.reset_to.get(identity, round_)
        self.reset_to[identity] = max(before, round_)

    def falls_behind(self, who: str, round_: int, now_at: int, dropped: bool) -> None:
        """Judge that a process is told that its round is over.

        Args:
            who: the process, for messages.
            round_: its round.
            now_at: the round of the job.
            dropped: whether the job continued without it.
        """
        if self.may_be_dropped or (self.is_reset and not dropped):
            return
        if self.may_begin_anew and not self.finished:
            return
        what = "the job went on without it" if dropped else "the switch does not keep it"
        raise Violation(
            "aggregate missed", f"{who} did not get round {round_}: {what}, and is at {now_at}"
        )

    def asks_for_threshold(self, value: int) -> None:
        """Note a request for H, which may be in force from now on."""
        self.automatic = False
        if not self.asked:
            self.batch = set()
        self.batch.add(value or self.workers)
        self.asked += 1
        for allowed in (self.in_force, *self.allowed.values()):
            allowed.add(value or self.workers)

    def has_threshold(self) -> None:
        """Note the answer to a request for H; of simultaneous requests, any may be the last."""
        self.asked -= 1
        if not self.asked:
            self.in_force = set(self.batch)

    def gets(self, who: str, identity: int, round_: int, total: Vector) -> None:
        """Judge the aggregates of a round that a process has received.

        Args:
            who: the process, for messages.
            identity: its number.
            round_: the round.
            total: the sum, shape (numel,).
        """
        self.finished += 1
        self.done[identity] = round_
        self.first = round_ if self.first is None else self.first
        begun = self.begun[round_]
        if not len(total):
            self._has_members(round_, len(begun), f"the barrier of round {round_}, {who}")
            return
        codes = self.values.codes(total)
        members = {code: self._members(who, identity, round_, code) for code in set(codes.tolist())}
        wrong = np.flatnonzero(total != self.values.totals(codes, members, round_))
        if len(wrong):
            index = int(wrong[0]) // self.job.elements
            part = slice(index * self.job.elements, (index + 1) * self.job.elements)
            lives = members[int(codes[index])]
            right = self.values.total(lives, round_)
            raise Violation(
                "wrong sum",
                f"{who} got in round {round_}, segment {index}: {total[part].tolist()}, which "
                f"is not the sum of lives {lives}: {right[part].tolist()}",
            )
        if self.agree:
            seen, other = self.seen.setdefault(round_, (total, identity))
            if not (seen == total).all():
                raise Violation(
                    "disagreement", f"{who} and life {other} got other sums in round {round_}"
                )

    def took(self, identity: int, recovery: int) -> None:
        """Bound how often a process has asked, been asked, or sent again.

        In its first round it may have waited for others to join.
        """
        before = self.recovered.setdefault(identity, recovery)
        if self.is_quiet and recovery > before:
            times = recovery - before
            raise Violation("in vain", f"life {identity} has recovered {times} times from nothing")

    def _members(self, who: str, identity: int, round_: int, code: int) -> tuple[int, ...]:
        """Find out whose contributions make up a sum, and judge them."""
        counts, where = self.lives_in(who, round_, code)
        if identity not in counts and not self._may_lack(round_):
            raise Violation("not counted", f"{who} itself is not in {where}: {sorted(counts)}")
        self._has_members(round_, len(counts), f"{where}: {sorted(counts)}")
        return tuple(sorted(counts))

    def lives_in(self, who: str, round_: int, code: int) -> tuple[dict[int, int], str]:
        """Find out which processes are in a sum: each once, and each has begun the round.

        Returns:
            how often each is in it, and words for the sum.
        """
        counts = self.values.counts(code)
        where = f"round {round_} as {who} got it"
        twice = [life for life, count in counts.items() if count > 1]
        if twice:
            raise Violation("counted twice", f"lives {twice} in {where}: {counts}")
        if not counts or code >> 2 * self.values.lives:
            raise Violation("wrong sum", f"{where} is of nobody: code {code}")
        strangers = counts.keys() - self.begun[round_]
        if strangers:
            raise Violation("not entitled", f"{sorted(strangers)} did not contribute to {where}")
        return counts, where

    def _may_lack(self, round_: int) -> bool:
        return round_ in self.forced or not self.automatic

    def _has_members(self, round_: int, count: int, where: str) -> None:
        """Check that a sum has as many contributions as it must."""
        if round_ in self.forced:
            return
        least, most = 0, self.values.lives
        if not self.automatic:
            least, most = min(self.allowed[round_]), max(self.allowed[round_])
        elif self.job.mode == WHOLE or not self.changes:
            least = most = self.workers
            # The first sum also has workers that left before all had come, and their successors.
            if self.some_leave and round_ == self.first:
                most = len(self.begun[round_])
        if count < least:
            raise Violation("too few", f"{where} is of {count}, not of {least}")
        if count > most and self.job.numel:
            raise Violation("too many", f"{where} is of {count}, not of {most}")


class Versions:
    """The oracle of one asynchronous job: each contribution has an element of its own.

    The last element of a segment counts contributions.

    Args:
        job: the job.
        numbers: the most contributions of a process.
        least: the fewest contributions that a version can hold.
        most: the most.
    """

    def __init__(self, job: Job, numbers: int, least: int, most: float) -> None:
        self.job = job
        self.numbers = numbers
        self.least, self.most = least, most
        self.made: dict[tuple[int, int], bytes] = {}  # by segment and version
        self.newest = 0  # version that anybody has got, of any segment
        self.counted: set[tuple[int, int]] = set()  # segment and element
        self.last = [0] * job.shape().segments  # the newest version of each that anybody has got
        self.sent: dict[int, list[int]] = {}  # by element of a contribution: these versions then
        self.finished = 0

    def contributes(self, identity: int, number: int) -> Vector:
        """Note that a process sends a contribution, and return the vector."""
        shape = self.job.shape()
        element = identity * self.numbers + number
        self.sent[element] = [*self.last]
        vector = np.zeros((shape.segments, shape.elements), shape.dtype.numpy)
        vector[:, [element, -1]] = 1
        return vector.reshape(-1)

    def hears(self, who: str, newest: int, made: int) -> None:
        """Judge what a process takes for the newest version, from which it tells its staleness.

        Args:
            who: the process, for messages.
            newest: the version.
            made: the newest version that a switch without a parent has known.
        """
        if newest > made:
            raise Violation("not made", f"{who} hears of version {newest}; the newest is {made}")

    def gets(self, who: str, version: int, index: int, total: Vector) -> None:
        """Judge a version of a segment that a process has received.

        Args:
            who: the process, for messages.
            version: number of the version.
            index: index of the segment.
            total: the sum, shape (elements,).
        """
        key = index, version
        where = f"version {version} of segment {index} as {who} got it"
        mine = total.tobytes()
        if key in self.made:
            if self.made[key] != mine:
                raise Violation("disagreement", where)
            return
        self.made[key] = mine
        self.newest = max(self.newest, version)
        self.finished += 1
        inside = np.flatnonzero(total[:-1]).tolist()
        if any(total[element] != 1 for element in inside):
            raise Violation("counted twice", f"{where}: {total[inside].tolist()}")
        if total[-1] != len(inside):
            raise Violation("wrong sum", f"{where} is of {len(inside)}, and tells {total[-1]}")
        if not self.least <= len(inside) <= self.most:
            raise Violation(
                "too few" if len(inside) < self.least else "too many",
                f"{where} is of {len(inside)} contributions, not of {self.least} to {self.most}",
            )
        if not set(inside) <= self.sent.keys():
            raise Violation("wrong sum", f"{where} holds what was never sent")
        self.last[index] = max(self.last[index], version)
        early = [element for element in inside if self.sent[element][index] >= version]
        if early:
            raise Violation(
                "wrong sum", f"{where} holds {early}, sent when that version had been made"
            )
        again = [element for element in inside if (index, element) in self.counted]
        if again:
            pairs = [divmod(element, self.numbers) for element in again]
            raise Violation("counted twice", f"{pairs} are in {where} and in another version")
        self.counted.update((index, element) for element in inside)
