"""Lanes: jobs that lend each other the memory of the round under way (Salus' lanes).

A job has a persistent part P (kept aggregates and tables) as long as it has contributors, and an
ephemeral part E (the vector in flight) while one of its rounds is under way. Jobs of one lane have
rounds one after the other, so a lane needs the largest E among them; lanes are side by side. At any
instant

    sum of all P  +  sum over the lanes of their largest E  <=  memory.

A job gets a lane of its own if there is room, else a place in a lane that is large enough, else one
in a lane that can grow. Where even that lacks room, two lanes become one: at once if nothing is
under way in one of them, else when a round there ends. If one lane would not do either, the job
waits in the queue. While nobody waits, jobs move from shared lanes to new ones as memory is free.

A lane is switched between rounds only. The scheduler says who is next, in the queue and in a lane.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from iswitch.core.format.wire import Turn

from .lodging import Lane, Lodger
from .policy import ADMITTED, NO_LANE, REFUSED, Need, Standing, Verdict
from .queueing import MOST_WAITING, Queueing


class Lanes(Queueing[Lodger]):
    """Lends the ephemeral part of memory from round to round; a subclass says who is next."""

    takes_turns = True
    overtakes: ClassVar[bool] = False  # a waiting job that fits passes those that do not

    def __init__(self, memory: int) -> None:
        super().__init__(memory)
        self._jobs: dict[int, Lodger] = {}
        self.lanes: list[Lane] = []
        self._lost: list[int] = []
        self._persistent = 0

    # The scheduler

    @abstractmethod
    def rank(self, job: Lodger) -> float:
        """Return what decides whose turn it is: the least one's, and of equals the first's.

        Jobs of a higher priority have their turns before that.
        """

    def rank_in_queue(self, job: Lodger) -> float:
        """Return what decides which waiting job is next."""
        return job.came

    def holds_back(self, lane: Lane, job: Lodger) -> bool:  # noqa: ARG002
        """Return whether a lane stays idle for another job than the next of those that have asked.

        Then `look_at` tells until when.
        """
        return False

    # Memory

    @property
    def reserved(self) -> int:
        """Return the bytes that are reserved for all jobs."""
        return self._persistent + sum(lane.size for lane in self.lanes)

    @property
    def _free(self) -> int:
        return self.memory - self.reserved

    def admit(self, job: int, need: Need) -> Verdict:
        """Reserve memory for one more contributor of a job, or let the job wait."""
        known = self._jobs.get(job)
        if known is not None:
            if need.persistent > self._free or need.ephemeral:
                return REFUSED
            self._keep(known, need.persistent)
            return ADMITTED
        waits = self._waiting.get(job)
        if waits is None and need.total > self.memory:
            return REFUSED
        queue = self.queue()
        before = queue.index(job) if waits is not None else len(queue)
        lodger = waits or Lodger(job, need, self._next())
        lodger.need, lodger.left = need, need.rounds
        if (not before or self.overtakes) and self._lodge(lodger):
            self._waiting.pop(job, None)
            self._jobs[job] = lodger
            self._persistent += need.persistent
            return ADMITTED
        if waits is None:
            if len(queue) >= MOST_WAITING:
                return REFUSED
            self._waiting[job] = lodger
        return Verdict(False, self.queue().index(job) + 1)

    def withdraw(self, job: int, need: Need) -> None:
        """Give back what one contributor has reserved."""
        lodger = self._jobs[job]
        self._keep(lodger, -need.persistent)
        if need.ephemeral or not lodger.need.total:
            self.leave(job)

    def leave(self, job: int) -> None:
        """Give back all that a job has reserved."""
        lodger = self._jobs.pop(job, None)
        if lodger is None:
            return
        self._persistent -= lodger.need.persistent
        self._leave_lane(lodger)

    def _keep(self, lodger: Lodger, nbytes: int) -> None:
        lodger.need = lodger.need._replace(persistent=lodger.need.persistent + nbytes)
        self._persistent += nbytes

    # Lanes

    def _lodge(self, lodger: Lodger) -> bool:
        """Find a lane for a job that comes in, and memory; False: there is no room now."""
        need = lodger.need
        lane = self._lane_for(need)
        while lane is None and self._has_room(need):
            self._merge()
            lane = self._lane_for(need)
        if lane is None:
            return False
        if need.ephemeral:
            self._enter(lodger, lane)
        return True

    def _lane_for(self, need: Need) -> Lane | None:
        """Return a lane with room for a job as the lanes are now; None: there is none."""
        if need.total <= self._free:
            return Lane()
        if not need.ephemeral:
            return None
        fits = [
            lane
            for lane in self._open
            if need.persistent + max(0, need.ephemeral - lane.size) <= self._free
        ]
        return min(
            fits,
            key=lambda lane: (need.ephemeral > lane.size, len(lane.jobs), lane.size),
            default=None,
        )

    @property
    def _open(self) -> list[Lane]:
        """Return the lanes that jobs may enter."""
        return [lane for lane in self.lanes if lane.into is None]

    def _enter(self, lodger: Lodger, lane: Lane) -> None:
        lodger.lane = lane
        lane.jobs.append(lodger)
        if lane not in self.lanes:
            self.lanes.append(lane)

    def _leave_lane(self, lodger: Lodger) -> None:
        lane = lodger.lane
        if lane is None:
            return
        lodger.lane = None
        lane.jobs.remove(lodger)
        if lane.holder is lodger:
            lane.holder = None
        if not lane.jobs:
            self.lanes.remove(lane)
            for other in self.lanes:
                if other.into is lane:
                    other.into = None

    def _has_room(self, need: Need) -> bool:
        """Return whether a job finds room now, if lanes without a round under way become one."""
        busy = [lane.size for lane in self.lanes if lane.busy or lane.into is not None]
        target = max((lane.size for lane in self._open if lane.busy), default=0)
        idle = [lane.size for lane in self._open if not lane.busy]
        one = max(target, need.ephemeral, 0, *idle)
        least = self._persistent + need.persistent + sum(busy) - target + one
        return need.total <= self._free or least <= self.memory

    def _merge(self) -> None:
        """Empty the smallest lane without a round under way into the largest with one, or another.

        Its jobs keep their places in the order; one that has the lane loses it.
        """
        idle = min((lane for lane in self._open if not lane.busy), key=lambda one: one.size)
        others = [lane for lane in self._open if lane is not idle]
        self._empty(idle, max(others, key=lambda one: (one.busy, one.size)))

    def _close_one(self) -> None:
        """Let a lane be emptied when its round ends, if a waiting job finds room in no other way.

        One lane at a time: the next one, if need be, after that.
        """
        waiting = [self._waiting[job].need for job in self.queue()]
        least = max((lane.size for lane in self.lanes), default=0)
        fits = any(
            self._persistent + need.persistent + max(least, need.ephemeral) <= self.memory
            for need in (waiting if self.overtakes else waiting[:1])
        )
        open_ = sorted(self._open, key=lambda one: one.size)
        if fits and len(open_) > 1 and len(open_) == len(self.lanes):
            open_[0].into = open_[-1]

    def _empty(self, lane: Lane, into: Lane) -> None:
        """Move the jobs of a lane in which nothing is under way into another one."""
        for lodger in list(lane.jobs):
            if lane.holder is lodger:
                self._lost.append(lodger.number)
            self._leave_lane(lodger)
            self._enter(lodger, into)

    # The queue

    def next_in(self) -> int | None:
        """Return the job of the queue that `admit` would take in now; None: there is none."""
        queue = self.queue()
        fits: dict[tuple[int, int], bool] = {}  # by size, as every packet asks for all that wait
        for job in queue if self.overtakes else queue[:1]:
            need = self._waiting[job].need
            size = need.persistent, need.ephemeral
            if size not in fits:
                fits[size] = self._has_room(need)
            if fits[size]:
                return job
        return None

    # Turns

    def tell(self, job: int, rounds: int) -> None:
        """Note how many rounds a job still has to do."""
        if (lodger := self._jobs.get(job)) is not None:
            lodger.left = rounds

    def ask(self, job: int, now: float) -> None:
        """Note that all members of a job want to begin a round."""
        lodger = self._jobs[job]
        lodger.wants(now)
        if lodger.asked is None:
            lodger.asked = self._next()

    def begin(self, job: int, now: float) -> None:
        """Note that a round of the job that has its lane has begun."""
        lodger = self._jobs[job]
        lodger.asked = None
        lodger.wants(now)
        if lodger.began is None:
            lodger.began = now

    def end(self, job: int, now: float, done: bool) -> None:
        """Note that this round is over: `done`, or given up."""
        lodger = self._jobs.get(job)
        if lodger is None or lodger.began is None:
            return
        lodger.spent += now - lodger.began
        lodger.began, lodger.ended = None, now
        lodger.done += done
        if done and lodger.left > 1:
            lodger.left -= 1

    def has_turn(self, job: int) -> bool:
        """Return whether a job has its lane, or needs none."""
        lodger = self._jobs.get(job)
        return lodger is not None and (lodger.lane is None or lodger.lane.holder is lodger)

    def standing(self, job: int) -> Standing:
        """Return the lane of a job, and whose turn it is there."""
        lodger = self._jobs.get(job)
        if lodger is None or lodger.lane is None:
            return NO_LANE
        turn = Turn.HAS if lodger.lane.holder is lodger else Turn.NONE
        if lodger.asked is not None:
            turn = Turn.WAITS
        return Standing(self.lanes.index(lodger.lane) + 1, turn)

    def losses(self) -> list[int]:
        """Return the jobs that have lost their turns since this was called last."""
        lost, self._lost = self._lost, []
        return [job for job in lost if job in self._jobs]

    def turns(self) -> list[int]:
        """Give lanes without a round under way to jobs that have asked."""
        given: list[int] = []
        if self._waiting:
            self._close_one()
        for lane in list(self.lanes):
            if lane.into is not None and not lane.busy:
                into, lane.into = lane.into, None
                if self._waiting:
                    self._empty(lane, into)
                    continue
            if not lane.busy and lane.into is None:
                given += self._give(lane)
        if not self._waiting:
            given += self._spread()
        return given

    def _give(self, lane: Lane) -> list[int]:
        """Give a lane to the next of the jobs in it that have asked."""
        ready = [job for job in lane.jobs if job.asked is not None]
        if not ready:
            return []
        job = min(ready, key=lambda one: (-one.need.priority, self.rank(one), one.asked, one.came))
        if self.holds_back(lane, job):
            return []
        if lane.holder is not None and lane.holder is not job:
            self._lost.append(lane.holder.number)
        lane.holder = job
        job.asked = None
        return [job.number]

    def _spread(self) -> list[int]:
        """Move jobs that wait for their lane to new lanes, as memory is free."""
        given: list[int] = []
        asking = [job for lane in self.lanes for job in lane.jobs if job.asked is not None]
        for job in asking:
            if job.need.ephemeral <= self._free:
                self._leave_lane(job)
                lane = Lane()
                self._enter(job, lane)
                given += self._give(lane)
        return given
