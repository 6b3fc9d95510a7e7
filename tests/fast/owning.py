"""Random histories of jobs whose segments have owners."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iswitch.core.format.division import Division, divided
from iswitch.core.format.wire import (
    FLAG_WHOLE,
    SEG_SIZE,
    TOS_DATA,
    Action,
    DType,
    Join,
    MemberType,
    Mode,
    Op,
    Segments,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums.runs import Held
from iswitch.core.switch import Switch

from .histories import FIRST_REQUEST, KINDS, History, Plan
from .sides import Sent

MODES = (Mode.REDUCE_SCATTER, Mode.ALL_GATHER, Mode.ALL_TO_ALL)


class OwnedHistory(History):
    """A history of ranks that give some segments of each block they may give, and close rounds.

    Who gives what in which round is drawn once, and the closing segments count it. Only where each
    datagram is a burst some give what they have not counted: in a larger burst, it decides at which
    datagram of it the round closes what the aggregate says.
    """

    def __init__(self, seed: int, steps: int, alone: bool, below: bool) -> None:
        self.orders: dict[tuple[int, int], list[int]] = {}  # by worker and round: what it sends
        self.closed: set[tuple[int, int]] = set()  # these, of which a closing segment was sent
        super().__init__(seed, steps, alone, below)
        self.honest = not self.singly or bool(self.rng.random() < 0.5)

    def draw_limits(self) -> Limits | None:
        """Give the jobs modes with owners."""
        for plan in self.jobs:
            dtype, op = KINDS[int(self.rng.integers(len(KINDS)))]
            mode = MODES[int(self.rng.integers(len(MODES)))]
            if mode is not Mode.REDUCE_SCATTER:
                op = Op.SUM
            if dtype.is_pair and mode is not Mode.REDUCE_SCATTER:
                dtype = DType.INT32
            n, most = len(plan.workers), int(self.rng.choice([8, 16, 344]))
            blocks = n * n if mode is Mode.ALL_TO_ALL else n
            numel = int(self.rng.integers(1, 2 + 24 * most // blocks))
            plan.shape = divided(numel, n, mode, dtype, op, most=most)
            plan.flags, plan.partial = FLAG_WHOLE, False
        return None

    def join(self, plan: Plan, who: int) -> Sent:
        """A Join that asks for the rank of the worker's place."""
        join = Join.for_shape(plan.shape, MemberType.WORKER, len(plan.workers), plan.flags)
        join = join.asking(self.rank(plan, who))
        return self.control(who, Action.JOIN, join, plan, FIRST_REQUEST + who)

    def rank(self, plan: Plan, who: int) -> int:
        return list(plan.workers).index(who)

    # What a rank gives

    def order(self, plan: Plan, who: int, round_: int) -> list[int]:
        """Return the segments that a worker gives to a round, in the order of sending."""
        found = self.orders.get((who, round_))
        if found is None:
            found = self.orders[who, round_] = self.drawn_order(plan, who)
        return found

    def drawn_order(self, plan: Plan, who: int) -> list[int]:
        rng, rank, division = self.rng, self.rank(plan, who), Division(plan.shape)
        n, size = division.owners, division.per_block
        first, blocks = {
            Mode.REDUCE_SCATTER: (0, n),
            Mode.ALL_GATHER: (rank, 1),
            Mode.ALL_TO_ALL: (rank * n, n),
        }[plan.shape.mode]
        turns = [(rank + 1 + i) % blocks for i in range(blocks)]
        used = dict.fromkeys(turns, size)
        if plan.shape.mode is not Mode.REDUCE_SCATTER:  # in which all must give the same
            used |= {block: int(rng.integers(size + 1)) for block in turns if rng.random() < 0.3}
        chunk = int(rng.choice([1, 3, size]))
        given = [
            (first + block) * size + i
            for start in range(0, size, chunk)
            for block in turns
            for i in range(start, min(start + chunk, used[block]))
        ]
        order = [*given, division.closing]
        if rng.random() < 0.1:  # the closing one overtakes others
            order.insert(int(rng.integers(len(order))), order.pop())
        return order

    def segments(self, plan: Plan, who: int, round_: int, which: Sequence[int]) -> Sent:
        """Some of a worker's contributions; a closing one may only be the last."""
        sent = self.data(plan, who, round_, 0, len(which))
        packets = sent.rows.reshape(-1).view(plan.shape.packet)
        packets["seg"] = round_ << 32 | np.array(which, np.uint64)
        if which[-1] != plan.shape.segments - 1:
            return Sent(who, TOS_DATA, sent.rows, plan.shape.packet_size)
        counted = len(self.order(plan, who, round_)) - 1
        counted += 0 if self.honest else int(self.rng.choice([0, 0, 0, 1, -1]))
        count = np.frombuffer(max(0, counted).to_bytes(4, "little"), np.uint8)
        sent.rows[-1, SEG_SIZE:] = 0
        sent.rows[-1, SEG_SIZE : SEG_SIZE + 4] = count
        return Sent(who, TOS_DATA, sent.rows, plan.shape.last_size)

    def piece(self, plan: Plan, who: int, round_: int, at: int, most: int) -> list[int]:
        """Return the next segments of what a worker sends, up to a closing one.

        That goes by itself when it is sent again, and only where each datagram is a burst: whether
        it is late or a duplicate depends on what is in one burst with it.
        """
        some = self.order(plan, who, round_)[at : at + int(self.rng.integers(1, most + 1))]
        closing = plan.shape.segments - 1
        if closing in some:
            again = (who, round_) in self.closed
            self.closed.add((who, round_))
            some = some[: some.index(closing) + 1]
            return some[:-1] if again and (len(some) > 1 or not self.singly) else some
        return some

    def plain(self, plan: Plan, who: int, switch: Switch) -> list[Sent]:
        """A worker's next segments; none while it waits for the closing aggregate."""
        job = switch.jobs.get(plan.number)
        if job is None or job.shape is None:
            return []
        begins, closing = job.window.lowest, plan.shape.segments - 1
        if self.above and job.waiting() and self.rng.random() < 0.9:
            return []
        if begins is not None and plan.round[who] < begins:
            plan.round[who], plan.at[who] = begins, 0
        if job.high > plan.round[who] + 1:  # others have begun what they may not begin yet
            plan.round[who], plan.at[who] = job.high, 0
        if plan.at[who] >= len(self.order(plan, who, plan.round[who])):
            held = job.held(plan.round[who], closing, closing + 1)
            waits = any(what is not Held.COMPLETE for _, what, _ in held)
            if waits and self.rng.random() < 0.95:  # else it gives the round up
                return []
            plan.round[who], plan.at[who] = plan.round[who] + 1, 0
        most = int(self.rng.choice([1, 5, self.most] if self.singly else [1, 5, 44, 100]))
        some = self.piece(plan, who, plan.round[who], plan.at[who], most)
        plan.at[who] += max(1, len(some))
        return [] if not some else [self.segments(plan, who, plan.round[who], some)]

    def odd(self, plan: Plan, who: int) -> Sent:
        """What is not plain: also what another rank gives, and Help."""
        rng = self.rng
        whose = int(rng.choice(np.array(plan.workers))) if rng.random() < 0.2 else who
        ahead = int(rng.choice([0, 0, 0, 0, 0, 1, 1, 2, -1, -2]))
        round_ = max(0, plan.round[who] + ahead)
        at = int(rng.integers(len(self.order(plan, whose, round_))))
        some = self.piece(plan, whose, round_, at, self.most)
        closing = plan.shape.segments - 1
        if not some:
            return self.join(plan, who)
        if whose != who and (plan.shape.mode is Mode.REDUCE_SCATTER or closing in some):
            some = self.order(plan, who, round_)[:1]
            if some == [closing]:
                return self.join(plan, who)
        sent = self.segments(plan, who, round_, some)
        match int(rng.integers(8)):
            case 0:
                start = int(rng.integers(plan.shape.segments))
                count = int(rng.integers(1, plan.shape.segments - start + 1))
                return self.control(who, Action.HELP, Segments(round_, start, count), plan)
            case 1:
                sent.rows[:, int(rng.integers(4))] ^= 1 << int(rng.integers(8))
                return sent
            case 2 if not self.alone or self.singly:
                return Sent(self.stranger, TOS_DATA, sent.rows, sent.tail)
            case 3 if not self.honest:
                return super().odd(plan, who)
            case 4 if len(some) > 1 and closing not in some:
                rng.shuffle(sent.rows)
                return sent
            case 5 if len(some) > 1 and closing not in some:  # one of them twice
                sent.rows[0] = sent.rows[-1]
                return sent
            case 6 if rng.random() < 0.3:
                return self.join(plan, who)
            case 7 if rng.random() < 0.1:
                return self.control(who, Action.RESET, None, plan)
            case _:
                return sent
