"""A controller of a job: commands, contributes nothing, counts in no H.

It has one request under way at a time, so a blocking loop is all it needs: send, repeat with a
growing pause, and take the first Ack that names the request. It ignores all other packets, such as
aggregates that a Help brought, and answers to repeats.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from iswitch.core.exchange.requests import Numbers, Requests, Unanswered
from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import (
    FLAG_NEW,
    NO_RANK,
    TOS_CONTROL,
    TOS_MASK,
    Ack,
    AckJob,
    AckWho,
    Action,
    Awaited,
    Control,
    Join,
    MemberType,
    Present,
    Segments,
    Show,
    Shown,
    Status,
    Value,
    Who,
    WireError,
    round_distance,
)
from iswitch.ports.udp import UdpPort
from iswitch.virtual.process import fresh_bytes
from worker_lib.protocol.member import BACKOFF

from . import arguments, showing
from .closing import Closing
from .command_errors import KEY_MEND, CommandRefused, JobWaits, NoSuchJob, NoWorkers
from .errors import SwitchUnreachable, WorkerError

WHO_PATIENCE = 0.5  # seconds for switches further away to say for whom segments wait
WHO_PAUSE = 0.01  # seconds before asking for that again
LEAVE_PATIENCE = 1.0  # seconds for a Leave to be answered when the work is done


class Controller(Closing):
    """Commands one job at one switch; one UDP socket, blocking calls.

    It does not know the workers' program, so it sets any H, also one that `Worker.set_threshold`
    would refuse.

    Every call returns the switch's `Ack`; the action decides what its fields mean.

    Args:
        switch: (host, port) of the switch.
        job: the job's number, 0..65535.
        timeout: seconds an answer may take.
        bind: local (host, port). A membership belongs to this address.
        key: key of a keyed job, 1 to 64 bytes.

    Raises:
        OSError: the address cannot be bound, or no route leads to the switch.
        ValueError: an argument out of its range.
    """

    def __init__(
        self,
        switch: tuple[str, int],
        job: int,
        *,
        timeout: float = 5.0,
        bind: tuple[str, int] = ("0.0.0.0", 0),
        key: bytes | None = None,
    ) -> None:
        self.switch = Address(*arguments.address("switch", switch, least_port=1))
        self.job = arguments.job_number(job)
        self.timeout = arguments.seconds("timeout", timeout)
        bind = arguments.address("bind", bind)
        self._key = arguments.key(key)
        incarnation = arguments.incarnation()
        self._port: UdpPort = arguments.virtual(bind, switch) or UdpPort(bind, connect=switch)
        self._poller = select.poll()
        self._poller.register(self._port, select.POLLIN)
        self._incarnation = incarnation
        self._requests = Requests(self.switch, Numbers(incarnation), BACKOFF)
        self._settled = False  # has been a member with this incarnation

    @property
    def keyed(self) -> bool:
        """Return whether this controller has a key."""
        return self._key is not None

    @property
    def address(self) -> Address:
        """Return the local address, by which the switch knows this controller."""
        return self._port.address

    def join(self) -> Ack:
        """Join the job, whatever the shape of its vectors; later calls are heartbeats.

        Returns:
            the Ack: the threshold in force, the current round, and the number of `contributors`.
        """
        join = Join(MemberType.CONTROLLER, flags=0 if self._settled else FLAG_NEW)
        packet = Control(Action.JOIN, self.job, self._incarnation, join)
        ack = self._ask(packet, self.timeout)
        if not self._settled:
            self._settled, self._incarnation = True, self._requests.numbers.last
        return ack

    def request(self, action: Action, value: Value = None) -> Ack:
        """Make the switch execute an action once.

        Raises:
            CommandRefused: the switch refused the request.
            SwitchUnreachable: nobody answers.
        """
        return self._next(action, value, self.timeout)

    def for_whom(self, segments: Segments) -> tuple[int, list[Awaited]]:
        """Return how many workers have not contributed to these segments, and the first of them.

        Raises:
            CommandRefused, SwitchUnreachable: see `request`.
        """
        question, limit = int.from_bytes(fresh_bytes(4), "big"), time.monotonic() + WHO_PATIENCE
        who = Who(segments.round, segments.index, segments.count, question)
        while True:
            ack = self.request(Action.HELP, who)
            assert isinstance(ack, AckWho)
            heard = all(one.rank != NO_RANK for one in ack.awaited)
            if heard or time.monotonic() >= limit:
                return ack.total, list(ack.awaited)
            time.sleep(WHO_PAUSE)

    def switch_itself(self) -> Ack:
        """Ask for the switch's own state.

        Returns:
            the Ack: `rank` is the number of jobs with this job's key (of jobs without a key, if it
            has none), `threshold` the free KiB of the switch's --memory, `round` the reserved KiB,
            and `contributors` 1 if the switch has a parent, else 0.
        """
        return self.request(Action.SHOW, Show(Shown.SWITCH))

    def jobs(self) -> Iterator[AckJob]:
        """Yield an Ack for each job of the switch, by ascending number, which is its `rank`.

        Keyed jobs are left out unless their key is this job's.
        """
        first = 0
        while first <= arguments.MOST_JOB and (ack := self._job_from(first)) is not None:
            yield ack
            first = ack.rank + 1

    def queue(self) -> Iterator[Ack]:
        """Yield an Ack for each job that waits for memory, in the order of their places.

        `rank` is its number, `threshold` the KiB that it needs, `round` its place, and
        `contributors` the number of jobs that wait. Keyed jobs are left out unless their key is
        this job's.
        """
        place = 1
        while (ack := self._shown(Show(Shown.QUEUE, place))) is not None:
            yield ack
            place = ack.round + 1

    def memory_of(self, job: int) -> Ack | None:
        """Return the Ack that tells what a job with this job's key has of the switch's memory.

        `rank` is its lane (0: none), `known` its Turn there, `threshold` the KiB reserved for it,
        `round` its slots (0: one for each segment), `contributors` the number of a MILLION
        contributions that were added up there. None: the switch does not know the job, or is older
        than this question.
        """
        return self._shown(Show(Shown.MEMORY, job))

    def look(self) -> AckJob:
        """Return this job's Ack, as `jobs` yields it.

        Raises:
            JobWaits: the job waits for memory of the switch.
            NoSuchJob: the switch does not know the job.
        """
        ack = self._job_from(self.job)
        if ack is None or ack.rank != self.job:
            raise self._not_there()
        return ack

    def _not_there(self) -> NoSuchJob:
        """Return the error that says why the switch does not know the job."""
        for ack in self.queue():
            if ack.rank == self.job:
                return JobWaits(self.job, self.switch, self.keyed, ack)
        return NoSuchJob(self.job, self.switch, self.keyed)

    def _job_from(self, first: int) -> AckJob | None:
        ack = self._shown(Show(Shown.JOBS, first))
        assert ack is None or isinstance(ack, AckJob)
        return ack

    def _shown(self, show: Show) -> Ack | None:
        """Ask a question of jobs; None: there are no more, or the switch knows no such question."""
        try:
            return self.request(Action.SHOW, show)
        except CommandRefused as refused:
            if refused.status not in (Status.NOT_MEMBER, Status.BAD_REQUEST):
                raise
            return None

    def members(self) -> list[Present]:
        """List the contributors to the job; this controller must be a member.

        Returns:
            workers by ascending rank, then those without one, then switches below.
        """
        return showing.members(lambda show: self.request(Action.SHOW, show))

    def leave(self) -> Ack:
        """Leave the job; a later `join` begins a new membership."""
        ack = self.request(Action.LEAVE)
        self._begin_anew()
        return ack

    @contextmanager
    def membership(self) -> Iterator[Ack]:
        """Join for a `with` block, which gets the Join's Ack; leave at its end in any case."""
        ack = self.join()
        try:
            yield ack
        finally:
            with suppress(WorkerError):  # nobody is there to be told
                self._next(Action.LEAVE, None, min(self.timeout, LEAVE_PATIENCE))
                self._begin_anew()

    @contextmanager
    def settings(self) -> Iterator[Ack]:
        """Join for a `with` block whose settings last until the job's last member leaves.

        Raises:
            JobWaits: the job waits for memory of the switch.
            NoSuchJob: the switch did not know the job.
            NoWorkers: no worker is a member, so a setting would end with this membership.
        """
        before = self._job_from(self.job)  # joining makes the job
        with self.membership() as ack:
            if not ack.contributors and (before is None or before.rank != self.job):
                raise self._not_there()
            if not ack.contributors:
                raise NoWorkers(self.job)
            yield ack

    def _begin_anew(self) -> None:
        self._incarnation = self._requests.numbers.next()
        self._settled = False

    def close(self) -> None:
        """Close the socket; a membership remains until its lease runs out."""
        self._port.close()

    def _next(self, action: Action, value: Value, timeout: float) -> Ack:
        number = self._requests.numbers.next()
        return self._ask(Control(action, self.job, number, value), timeout)

    def _ask(self, packet: Control, timeout: float) -> Ack:
        self._port.refused = False
        now = time.monotonic()
        limit, denied = now + timeout, False
        self._send([self._requests.ask(packet, now)])
        try:
            while now < limit:
                self._poller.poll((min(self._requests.deadline() or limit, limit) - now) * 1000)
                for found in self._answers():
                    if found is None:
                        denied = True
                        continue
                    asked, status, ack = found
                    if status is Status.DENIED and self._outdoes(asked.packet, ack):
                        self._requests.numbers.exceed(ack.round)
                        self._send([self._requests.ask_anew(asked, time.monotonic())])
                        continue
                    if status is not Status.OK:
                        raise CommandRefused(packet.action, status, self.job, ack)
                    return ack
                now = time.monotonic()
                self._send(self._requests.repeat(now))
        finally:
            self._requests.clear()
        refused = self._port.refused
        raise SwitchUnreachable.silent(
            self.switch, f"{timeout:g}", refused, denied=denied, key_mend=KEY_MEND
        )

    def _send(self, sends: list[Outgoing]) -> None:
        self._port.push([self._key.sealed(out) if self._key else out for out in sends])

    def _outdoes(self, packet: Control, ack: Ack) -> bool:
        """Return whether a refused request may succeed with a larger Request number."""
        if packet.action is not Action.JOIN:
            return self._key is not None
        return (
            not self._settled and ack.round != 0 and round_distance(ack.round, packet.request) >= 0
        )

    def _answers(self) -> Iterator[tuple[Unanswered, Status, Ack] | None]:
        """Yield the answers in the packets that have come, each with its request.

        None stands for a refusal without a MAC, in a keyed job.
        """
        for burst in self._port.pull():
            if burst.tos & TOS_MASK != TOS_CONTROL:
                continue
            for rows in burst.by_size():
                for row in rows:
                    payload = row.tobytes()
                    opened = self._key.opened(payload) if self._key else payload
                    found = self._answered_by(payload if opened is None else opened)
                    if found is None:
                        continue
                    if opened is not None:
                        yield found
                    elif found[1] in (Status.DENIED, Status.BAD_REQUEST):
                        yield None

    def _answered_by(self, payload: bytes) -> tuple[Unanswered, Status, Ack] | None:
        """Return the request that a packet answers, and the answer; None: it answers none."""
        try:
            packet = Control.parse(payload)
        except WireError:
            return None
        ack = packet.value
        asked = self._requests.answered_by(packet) if isinstance(ack, Ack) else None
        if asked is None or not isinstance(ack, Ack):
            return None
        return asked, Status.of(packet.status), ack
