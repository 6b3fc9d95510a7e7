"""Programs with real Workers in virtual time, each on a device that may die, stop, or lose packets.

Programs are threads that take turns: one runs until it waits, for packets or for a time. Everything
below their sockets is simulated, and the modules that read the clock read the simulation's.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from unittest import mock

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import MAX_SEGMENTS, Address, Burst, Outgoing
from iswitch.core.format.wire import TOS_DATA
from iswitch.core.switch import Switch
from iswitch.faults.impairment import Impairment
from iswitch.sim.network import VirtualNetwork
from iswitch.virtual.port import BUFFER, Name
from worker_lib import arguments, controller, driving, membership, rounds
from worker_lib.federated import coordinator, firing, worker

CLOCKED = (driving, membership, rounds, controller, coordinator, firing, worker)
ATTENDS = 1.0  # seconds between two looks of a Worker between calls, as its thread has them
LATENCY = 100e-6
LONGEST = 600.0  # seconds of virtual time

_running = threading.local()


class Killed(BaseException):
    """The device's program is no more."""


class Port:
    """A Worker's socket, as a machine of the network."""

    way = "virtual"
    buffer, offload, most, mtu = BUFFER, True, MAX_SEGMENTS, 1500
    refused = False

    def __init__(self, device: Device, bind: tuple[str, int], connect: tuple[str, int]) -> None:
        self.device, self.stage = device, device.stage
        self.counters = Counters()
        self.queue: deque[Burst] = deque()
        peer = Address(*connect)
        self.address = Address(device.host, bind[1] or next(self.stage.ports))
        self.socket = Name(self.address, peer)
        network = self.stage.network
        network.add(f"{self.address}", self.address)
        network.connect(self.address, peer, device.impairment)
        network.start(self.address, self)
        device.open.append(self)

    # What a Worker needs

    def wait(self, seconds: float, _more: int = 0) -> bool:
        limit = self.stage.network.now + seconds
        while not self.queue and self.stage.network.now < limit:
            self.device.wait(limit, self)
        return bool(self.queue)

    def pull(self) -> Iterator[Burst]:
        while self.queue:
            yield self.queue.popleft()

    def push(self, sends: Iterable[Outgoing]) -> None:
        for out in sends:
            self._push(out)

    def _push(self, out: Outgoing) -> None:
        device, rows = self.device, len(out.rows)
        if device.killed:
            return
        if device.stopped:
            device.held.append((self, out))
            return
        left = device.packets
        if left is None or out.tos != TOS_DATA or rows < left:
            device.packets = None if left is None else left - rows * (out.tos == TOS_DATA)
            self.stage.network.transmit(self.address, [out])
            return
        size, device.packets = out.rows.shape[1], None
        first = out._replace(rows=out.rows[:left], tail=out.tail if left == rows else size)
        self.stage.network.transmit(self.address, [first])
        if left < rows:
            device.held.append((self, out._replace(rows=out.rows[left:].copy())))
        device.befalls()
        if not device.stopped:  # what has befallen it was its switch
            device.release()

    def close(self) -> None:
        if self in self.device.open:
            self.device.open.remove(self)
            self.stage.network.crash(self.address)

    def count_dropped(self) -> None:
        pass

    def holds(self) -> bool:
        return bool(self.queue)

    # What the network needs

    def receive(self, burst: Burst, _now: float) -> None:
        self.queue.append(burst)

    def deadline(self) -> None:
        return None

    def handle_timer(self, _now: float) -> None:
        return None


class Device:
    """A program and its machine."""

    def __init__(
        self, stage: Stage, host: str, impairment: Impairment, program: Callable[[], object]
    ) -> None:
        self.stage, self.host, self.impairment = stage, host, impairment
        self.open: list[Port] = []
        self.packets: int | None = None  # data packets until something befalls it
        self.befalls: Callable[[], None] = self.stop
        self.held: list[tuple[Port, Outgoing]] = []  # what it sends when it is resumed
        self.workers: list[weakref.ref[rounds.RoundWorker]] = []
        self.killed = self.done = False
        self.stopped = False
        self.until = 0.0
        self.heard: Port | None = None
        self.error: BaseException | None = None
        self.result: object = None
        self._go = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(program,), daemon=True)
        self._thread.start()

    def _run(self, program: Callable[[], object]) -> None:
        _running.device = self
        self._go.acquire()
        try:
            if not self.killed:
                self.result = program()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.done = True
        self.stage.back.release()

    def wait(self, until: float, heard: Port | None = None) -> None:
        """Have others run until a time, or until something comes."""
        if self.killed:
            raise Killed
        self.until, self.heard = until, heard
        self.stage.back.release()
        self._go.acquire()
        if self.killed:
            raise Killed

    def is_ready(self, now: float) -> bool:
        if self.done or self.stopped:
            return False
        return self.killed or now >= self.until or bool(self.heard and self.heard.queue)

    def turn(self) -> None:
        """Run until it waits."""
        self._go.release()
        self.stage.back.acquire()

    # Faults

    def kill(self) -> None:
        self.killed, self.stopped = True, False
        for port in self.open:
            self.stage.network.crash(port.address)
        self.open.clear()
        if getattr(_running, "device", None) is self:
            raise Killed
        while not self.done:
            self.turn()

    def stop(self) -> None:
        if not (self.done or self.killed):
            self.stopped = True
            for port in self.open:
                self.stage.network.pause(port.address)

    def resume(self) -> None:
        if self.stopped:
            self.stopped = False
            for port in self.open:
                self.stage.network.resume(port.address)
            self.release()

    def release(self) -> None:
        held, self.held = self.held, []
        for port, out in held:
            port.push([out])

    def attend(self) -> None:
        for found in self.workers:
            worker = found()
            if worker is not None and not (self.stopped or self.killed):
                worker._attend()


class Stage:
    """A network of switches, the clock, and the devices that run."""

    def __init__(self, switches: dict[Address, Switch], seed: int) -> None:
        self.network = VirtualNetwork(seed, LATENCY)
        self.ports = iter(range(40000, 60000))
        self.back = threading.Semaphore(0)
        self.devices: list[Device] = []
        for address, switch in switches.items():
            self.network.add(f"{address}", address, switch)
        for address, switch in switches.items():
            hierarchy = switch.control.hierarchy
            if hierarchy is not None:
                self.network.connect(address, hierarchy.parent)

    def start(
        self, host: str, program: Callable[[], object], impairment: Impairment | None = None
    ) -> Device:
        device = Device(self, host, impairment or Impairment(), program)
        self.devices.append(device)
        return device

    def at(self, when: float, what: Callable[[], None]) -> None:
        self.network.at(when, what)

    def play(self) -> None:
        """Run until every device is done."""
        with ExitStack() as patches:
            self._patch(patches)
            network = self.network
            attend = ATTENDS
            try:
                while not all(device.done or device.killed for device in self.devices):
                    assert network.now < LONGEST, "no end in sight"
                    for device in self.devices:
                        while device.is_ready(network.now):
                            device.turn()
                    if network.now >= attend:
                        attend = network.now + ATTENDS
                        for device in self.devices:
                            device.attend()
                    due = [d.until for d in self.devices if not (d.done or d.stopped)]
                    until = min([attend, *due])
                    following = network.next_time()
                    if following is not None and following <= until:
                        network.step()
                    else:
                        network.now = max(network.now, until)
            finally:
                for device in self.devices:
                    if not device.done:
                        device.kill()

    def _patch(self, patches: ExitStack) -> None:
        clock = types.SimpleNamespace(monotonic=lambda: self.network.now, sleep=sleep)
        threads = types.SimpleNamespace(
            Event=threading.Event, RLock=threading.RLock, Thread=_Attending
        )
        select = types.SimpleNamespace(poll=_Poll, POLLIN=1)
        for module in CLOCKED:
            if hasattr(module, "time"):
                patches.enter_context(mock.patch.object(module, "time", clock))
        patches.enter_context(mock.patch.object(rounds, "threading", threads))
        patches.enter_context(mock.patch.object(controller, "select", select))
        patches.enter_context(mock.patch.object(arguments, "virtual", _port))


def sleep(seconds: float) -> None:
    """Sleep in virtual time, or compute for as long."""
    device: Device = _running.device
    until = device.stage.network.now + seconds
    while device.stage.network.now < until:
        device.wait(until)


def _port(bind: tuple[str, int], connect: tuple[str, int]) -> Port:
    return Port(_running.device, bind, connect)


class _Attending:
    """In place of the thread that looks after a Worker between calls: the stage does."""

    def __init__(self, args: tuple[weakref.ref[rounds.RoundWorker], object], **_: object) -> None:
        _running.device.workers.append(args[0])

    def start(self) -> None:
        pass


class _Poll:
    def register(self, port: Port, _events: int) -> None:
        self.port = port

    def poll(self, milliseconds: float) -> bool:
        return self.port.wait(max(milliseconds, 0.0) / 1000)
