"""The process that owns the clock of `iswitch run --world sim`.

Its first line says where the switches listen, its last one tells the time and their counters. Lines
between say who computes for long, that packets move one by one, who has printed something, or why
the run cannot continue.

Where computing times are given, the clock stands until the launcher has shown what was printed: so
lines of all processes are in the order of virtual time, then of rank, and repeat.
"""

from __future__ import annotations

import json
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from iswitch.core.format.packets import Rows
from iswitch.core.jobs.limits import Limits
from iswitch.outside import OutsideError
from iswitch.sim.grain import AUTO, SINGLE, Grain
from iswitch.sim.handling import Handling
from iswitch.system.boundary import OUTSIDE
from iswitch.system.keyfiles import given_keys
from iswitch.virtual.channel import Lost, hear, say
from iswitch.virtual.computing import Plan
from iswitch.virtual.memory import ROOM, Lent, Shelf
from iswitch.virtual.world import Idle, Place
from topologies.description import Topology
from topologies.simulated import Simulation

from .captures import capture
from .hub import Hub, Stuck
from .line import Line
from .member import Member

LOOK, LONGEST_LOOK = 0.03, 0.5  # seconds between two looks at processes that say nothing
BLOCKED = 4  # such looks in a row at which a process sleeps: it waits for something outside
STILL = 20.0  # seconds without a word from any process, after which nothing will happen
LONG = 10.0  # seconds without a word of those who compute, or have to come; then the user is told


class Settings(NamedTuple):
    """The settings of a coordinator, which come as JSON.

    Attributes:
        path: where its UNIX socket shall be.
        topology: the network, as text of a .toml file.
        processes: how many will come.
        computing: fields of a `Plan`.
        real_clock: whether programs see real time.
        capture: folder for a capture of each switch's ports; None: no captures.
        grain: how much may be one event of the network.
        hosts, switches: the time that each takes for packets.
        of: options of `iswitch switch` for single switches, by name: --memory, --policy, --slots.
    """

    path: str
    topology: str
    processes: int
    computing: dict[str, Any]
    real_clock: bool = False
    capture: str | None = None
    grain: Grain = AUTO
    hosts: Handling = Handling()
    switches: Handling = Handling()
    of: Mapping[str, Sequence[str]] = {}


def limits_of(options: Sequence[str]) -> Limits:
    """Return the limits of a switch that has these options of `iswitch switch`."""
    given = dict(zip(options[::2], options[1::2], strict=True))
    memory = int(float(given.get("--memory", 1024)) * 2**20)
    return Limits(
        memory, policy=given.get("--policy", "static"), slots=int(given.get("--slots", 0))
    )


class Coordinator:
    """Serves the processes of a run.

    Args:
        settings: what to simulate.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        from topologies.toml import loads

        self.topology = loads(settings.topology, Topology, "the topology")
        self.simulation = Simulation(
            self.topology,
            latency=0.0,
            keys=given_keys(None),
            grain=Grain(*settings.grain),
            hosts=Handling(*settings.hosts),
            switches=Handling(*settings.switches),
            named={name: limits_of(options) for name, options in settings.of.items()},
        )
        self._in_runs = self.simulation.network.grain != SINGLE
        self._shelf = Shelf()
        self._lends = Lent(self._shelf, self._shelf.free)
        self.simulation.network.copy = self._copy
        self.hub = Hub(self.simulation)
        self._in_turn = Plan(**settings.computing).is_measured
        self._in_order = not self._in_turn  # is what processes print
        self._printed: set[int] = set()  # ranks that have, since the clock moved
        self._left: set[int] = set()  # ranks that have ended since then
        self._shows = False  # the launcher does
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(settings.path)
        self._listener.listen(settings.processes + 8)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._lines: dict[Member, Line] = {}
        self._due: deque[Member] = deque()
        self._asks: dict[Member, list[Any]] = {}  # for a port or an end of a stream
        self._patience = LONG  # seconds that these wait for processes that have not come, or sleep
        self._came: set[int] = set()  # ranks
        self._outside: set[Member] = set()  # wait for something outside virtual time
        self._ended = False

    def run(self) -> None:
        """Move the clock until a signal comes.

        Raises:
            Stuck: the run cannot continue.
        """
        while not self._ended:
            if self._runs() or self._awaited or len(self._outside) == len(self.hub.members):
                self._listen()
            elif self._asks:
                self._answer()
            elif self._due:
                self._wake(self._due.popleft())
            elif self._is_unshown():
                self._listen()
            else:
                self._advance()

    @property
    def is_over(self) -> bool:
        """Return whether a signal has ended the run."""
        return self._ended

    def _advance(self) -> None:
        try:
            self._due.extend(self.hub.advance())
        except Stuck as error:
            raise (self._stuck_outside() if self._outside else error) from None
        if self._in_runs and self.simulation.network.grain == SINGLE:
            self._in_runs = False
            self._tell(
                "packets move one by one from now on, which takes far longer: what the jobs have "
                "under way could fill a link's queue; queue=5000packets, say, would hold it"
            )
        while self._due and not self._in_turn:
            self._wake(self._due.popleft())

    def _is_unshown(self) -> bool:
        """Tell the launcher who has printed something; return whether it has yet to show that."""
        if self._in_order and (self._printed or self._left):
            told = {"printed": sorted(self._printed | self._left), "left": sorted(self._left)}
            print(json.dumps(told), flush=True)
            self._printed, self._left, self._shows = set(), set(), True
        return self._shows

    def end(self, *_: object) -> None:
        """End the run; for a signal."""
        self._ended = True

    def _runs(self) -> list[Member]:
        return [m for m in self.hub.members if m.idle is None and m not in self._asks]

    def _copy(self, rows: Rows) -> Rows:
        """Copy packets that a node sends to where processes can read them."""
        at = self._shelf.write(rows)
        return rows.copy() if at is None else self._lends.rows(at, rows.shape)

    def _wake(self, member: Member) -> None:
        if member not in self._lines:
            return
        with suppress(Lost):
            self._lines[member].wake(self.hub.now, self.hub.wake(member, ROOM), self._shelf)

    @property
    def _awaited(self) -> bool:
        """Return whether a process has neither come nor ended."""
        return len(self._came) < self._settings.processes

    # Messages

    def _listen(self) -> None:
        """Handle messages; look after processes that say nothing."""
        began, pause, told = time.monotonic(), LOOK, LONG
        while not (ready := self._selector.select(pause)):
            if self._ended:
                return
            pause = min(1.5 * pause, LONGEST_LOOK)
            for member in self._runs():
                line = self._lines[member]
                line.look()
                pause = LOOK if line.looks else pause
                if line.looks >= BLOCKED and not self._awaited:
                    line.looks = 0
                    self._outside.add(member)
                    member.idle = Idle(None, None, {})
            if self._outside and not self._awaited and not self._runs():
                if len(self._outside) < len(self.hub.members):
                    return
                if time.monotonic() >= began + STILL:
                    raise self._stuck_outside()
            asleep = all(self._lines[member].looks >= BLOCKED for member in self._runs())
            if self._asks and asleep and time.monotonic() >= began + self._patience:
                self._answer_early()
                return
            if time.monotonic() >= began + told:
                self._tell_who_computes(told)
                told *= 2
        for key, _ in ready:
            if key.data is None:
                self._accept()
            else:
                self._hear(key.data)

    def _tell_who_computes(self, seconds: float) -> None:
        if not (running := self._runs()):
            return
        ranks = ", ".join(f"rank {member.rank} ({member.host})" for member in running)
        has, its = ("has", "its") if len(running) == 1 else ("have", "their")
        waits = "; all others wait" if len(running) < len(self.hub.members) else ""
        said = f"{ranks} {has} computed for {seconds:g} s since {its} last call"
        at = f"at {self.hub.now:.6f} s of virtual time"
        print(json.dumps({"computes": f"{said}, {at}{waits}"}), flush=True)

    def _tell(self, what: str) -> None:
        """Tell the user of something at this moment."""
        print(json.dumps({"tells": f"at {self.hub.now:.6f} s of virtual time: {what}"}), flush=True)

    def _stuck_outside(self) -> Stuck:
        ranks = ", ".join(
            f"rank {member.rank} (process {self._lines[member].pid})"
            for member in sorted(self._outside, key=lambda member: member.rank)
        )
        waits = "waits" if len(self._outside) == 1 else "wait"
        return Stuck(
            f"at {self.hub.now:.6f} s of virtual time {ranks} {waits} for something outside "
            "virtual time, such as a socket, a pipe or another process; --world loopback runs "
            "such programs"
        )

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        line = Line(sock, int.from_bytes(raw[:4], sys.byteorder))
        self._selector.register(sock, selectors.EVENT_READ, line)

    def _hear(self, line: Line) -> None:
        try:
            if line.member is None:
                self._greet(line)
            else:
                self._handle(line, line.member, hear(line.sock))
        except Lost:
            self._selector.unregister(line.sock)
            line.sock.close()
            if line.member is not None:
                self._lines.pop(line.member)
                self._outside.discard(line.member)
                self._asks.pop(line.member, None)
                self._left.add(line.member.rank)
                self.hub.leave(line.member)

    def _greet(self, line: Line) -> None:
        """Take a process in, or heed the launcher's word."""
        head, files, _, _ = socket.recv_fds(line.sock, 4, 3)
        if not head:
            raise Lost("it has ended")
        message = json.loads(line.sock.recv(int.from_bytes(head, "little"), socket.MSG_WAITALL))
        if message[0] == "ended":
            if message[1] not in self._came:
                self._left.add(message[1])
            self._came.add(message[1])
            return
        if message[0] == "shown":
            self._shows = False
            self._in_order = self._in_order and not message[1]
            return
        _, rank, host = message
        self._came.add(rank)
        line.share(*files)
        line.member = self.hub.join(rank, host)
        self._lines[line.member] = line
        settings = {
            "now": self.hub.now,
            "home": self.hub.home(host),
            "computing": self._settings.computing,
            "real_clock": self._settings.real_clock,
            "in_order": self._in_order,
        }
        say(line.sock, ["welcome", settings], [self._shelf.fd])

    def _handle(self, line: Line, member: Member, message: list[Any]) -> None:
        if member in self._outside:
            self._outside.remove(member)
            member.idle = None
        match message:
            case ["open" | "listen" | "connect", *_]:
                self._asks[member] = message
            case ["close", number]:
                self.hub.close(member, number)
            case ["put", sends]:
                line.keep(member, sends)
                say(line.sock, ["ok"])
            case ["idle", until, program, hears, sends, printed]:
                line.has_read()
                line.keep(member, sends)
                if printed:
                    self._printed.add(member.rank)
                member.idle = Idle(until, program, dict(hears))

    def _answer(self) -> None:
        """Answer by rank what processes have asked for; whichever was faster, all others wait."""
        asks, self._asks = self._asks, {}
        for member in [member for member in self.hub.members if member in asks]:
            how, host, port, *peer = asks[member]
            try:
                peers = [Place(*one) for one in peer]
                number, place = getattr(self.hub, how)(member, host, port, *peers)
                told = [number, *place]
            except OSError as error:
                told = [-1, error.errno, error.strerror]
            with suppress(Lost):
                say(self._lines[member].sock, ["opened", *told])

    def _answer_early(self) -> None:
        """Answer although processes have not come: they may wait for those that ask."""
        if self._patience:
            late = {*range(self._settings.processes)} - self._came | {m.rank for m in self._runs()}
            said = f"no word from rank {', '.join(map(str, sorted(late)))} for {LONG:g} s"
            self._tell(f"{said}; others get ports and connections first, so the run may not repeat")
            self._patience = 0.0
        self._answer()

    # Around a run

    def counters(self) -> dict[str, dict[str, int]]:
        """Return the counters of all switches, by name."""
        found = {}
        for node in self.topology.tree:
            switch = self.simulation.switch(node.name)
            assert switch is not None
            found[node.name] = dict(switch.counters)
        return found

    def listening(self) -> dict[str, str]:
        """Return where each switch listens, by name."""
        addresses = {node.name: self.simulation.address(node.name) for node in self.topology.tree}
        return {name: f"{at.host}:{at.port}" for name, at in addresses.items()}


def main() -> int:
    """Run a coordinator; return its exit status."""
    settings = Settings(**json.loads(sys.argv[1]))
    coordinator = Coordinator(settings)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, coordinator.end)
    try:
        with ExitStack() as files:
            if settings.capture is not None:
                capture(coordinator.simulation, Path(settings.capture), files)
            print(json.dumps({"listening": coordinator.listening()}), flush=True)
            try:
                coordinator.run()
            except Stuck as error:
                _tell_end("stuck", error, coordinator)
    except OutsideError as error:
        _tell_end("unwritten", error, coordinator)
        return OUTSIDE
    told = {"seconds": coordinator.hub.now, "counters": coordinator.counters()}
    print(json.dumps(told), flush=True)
    return 0


def _tell_end(why: str, error: Exception, coordinator: Coordinator) -> None:
    """Tell why the run cannot continue, and wait for its end."""
    print(json.dumps({why: str(error)}), flush=True)
    while not coordinator.is_over:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
