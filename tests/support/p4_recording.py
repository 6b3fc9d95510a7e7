"""What the control plane of the P4 program and a running bmv2 say to one another, written down.

    python -m tests.support.p4_recording tests/recordings/p4_control.txt

records it again, as root, with `simple_switch` (docs/p4.md). One line for each thing said:

    @ STEP                     what the hosts do now
    > OP field=... | FRAME     to the data plane, at the CPU port; fields that are 0 are left out
    < OP field=... | FRAME     from there; `< nothing`: it was waited for in vain
    $ LINE                     to simple_switch_CLI
    = "ANSWER"                 from there
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from iswitch.bmv2.cpu import CpuHeader, CpuOp
from iswitch.bmv2.link import CpuLink, Wire
from iswitch.bmv2.pipeline import Own, Pipeline
from iswitch.bmv2.port import CpuPort
from iswitch.bmv2.runtime import Runtime
from iswitch.bmv2.switch import PipelineChassis, PipelineSwitch
from iswitch.core.format.wire import (
    TOS_CONTROL,
    TOS_DATA,
    Action,
    Control,
    DType,
    Join,
    Mode,
    Segments,
    Shape,
    Threshold,
    Value,
)
from p4.sizes import SIZES
from tests.support.frames import SWITCH_IP, SWITCH_MAC, tagged
from topologies import Topology
from topologies.netns import Network

JOB = 7
SHAPE = Shape.of(11, DType.FLOAT32, elements=4)  # three segments, the last one shorter
PORTS = 2
NOTHING = "nothing"
QUIET = 0.3  # seconds in which something would have come
PATIENCE = 10.0  # seconds for an Ack
Frame = tuple[int, bytes]  # of a host


# What the hosts do


def asks(host: int, action: Action, request: int, value: Value = None, port: int = 5000) -> Frame:
    packet = Control(action, JOB, request, value)
    return host, tagged(host, packet.build(), TOS_CONTROL, ports=(port, 26963))


def joins(host: int, shape: Shape = SHAPE, port: int = 5000, job: int = JOB) -> Frame:
    packet = Control(Action.JOIN, job, 1, Join.for_shape(shape, expected=2))
    return host, tagged(host, packet.build(), TOS_CONTROL, ports=(port, 26963))


def contributes(host: int, round_: int, *indices: int, port: int = 5000) -> list[Frame]:
    vector = struct.pack("<11f", *range(11))
    packets = [struct.pack(">II", round_, i) + vector[16 * i : 16 * i + 16] for i in indices]
    return [(host, tagged(host, packet, TOS_DATA, ports=(port, 26963))) for packet in packets]


STEPS: list[tuple[str, list[Frame]]] = [
    ("Join of the first worker", [joins(0)]),
    ("Join of the second worker, with whom all have come", [joins(1)]),
    (
        "Joins that are refused: asynchronous, too many segments",
        [
            joins(0, Shape.of(4, DType.FLOAT32, mode=Mode.ASYNCHRONOUS, elements=4), 5009, 8),
            joins(0, Shape.of(400_000, DType.FLOAT32, elements=4), 5009, 9),
        ],
    ),
    ("Round 0, complete but for the second worker's last segment", [
        *contributes(0, 0, 0, 1, 2), *contributes(1, 0, 0, 1),
    ]),
    ("Help: what is there is sent again, the other is asked for what lacks", [
        asks(0, Action.HELP, 10, Segments(0, 0, 3)),
    ]),
    ("FBcast: the open segment is sent as it is", [
        asks(1, Action.FBCAST, 10, Segments(0, 2, 1)),
    ]),
    ("SetH: one contribution completes what is open", [
        *contributes(0, 1, 0), asks(0, Action.SETH, 11, Threshold(1)),
    ]),
    ("SetH: all contributions again", [asks(0, Action.SETH, 12, Threshold(0))]),
    ("Join of a third worker, which takes part from the next round on", [joins(0, port=5001)]),
    ("The third worker's first contribution comes to the control plane", [
        *contributes(0, 2, 0, port=5001), *contributes(0, 1, 1), *contributes(1, 1, 1),
    ]),
    ("Halt", [asks(0, Action.HALT, 13)]),
    ("Reset", [asks(0, Action.RESET, 14)]),
    ("Leave of the third worker", [asks(0, Action.LEAVE, 10, port=5001)]),
    ("Leave of the second worker", [asks(1, Action.LEAVE, 11)]),
    ("Leave of the first worker, the last one", [asks(0, Action.LEAVE, 15)]),
]  # fmt: skip
START, COUNT = "The switch starts", "What was counted is read"


# How it is written


def written(mark: str, frame: bytes) -> str:
    """A frame at the CPU port, as a line."""
    header, rest = CpuHeader.parse(frame)
    fields = [f"{n}={v}" for n, v in zip(header._fields[1:], header[1:], strict=True) if v]
    tail = ["|", rest.hex()] if rest else []
    return " ".join([mark, header.op.name, *fields, *tail])


def read(line: str) -> bytes:
    """The frame that a line stands for."""
    head, _, rest = line[2:].partition(" | ")
    op, *fields = head.split()
    values = {name: int(value) for name, _, value in (field.partition("=") for field in fields)}
    return CpuHeader(CpuOp[op], **values).build() + bytes.fromhex(rest)


class Recorder:
    """Writes down what passes a wire and a runtime."""

    def __init__(self, wire: Wire, runtime: Runtime) -> None:
        self.wire = wire
        self.runtime = runtime
        self.lines: list[str] = []

    def send(self, frame: bytes) -> None:
        self.lines.append(written(">", frame))
        self.wire.send(frame)

    def receive(self, seconds: float) -> bytes | None:
        frame = self.wire.receive(seconds)
        self.lines.append(f"< {NOTHING}" if frame is None else written("<", frame))
        return frame

    def run(self, lines: Sequence[str]) -> list[str]:
        answers = self.runtime.run(lines)
        for line, answer in zip(lines, answers, strict=True):
            self.lines += [f"$ {line}", f"= {json.dumps(answer)}"]
        return answers

    def close(self) -> None:
        self.runtime.close()


class Player:
    """Says what the data plane and the runtime said, and sees to it that it is told the same."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = list(lines)

    def _next(self) -> str:
        assert self.lines, "more is said than in the recording"
        return self.lines.pop(0)

    def send(self, frame: bytes) -> None:
        assert written(">", frame) == self._next()

    def receive(self, seconds: float) -> bytes | None:  # noqa: ARG002
        line = self._next()
        assert line.startswith("< "), f"something is waited for, but: {line}"
        return None if line == f"< {NOTHING}" else read(line)

    def run(self, lines: Sequence[str]) -> list[str]:
        answers = []
        for line in lines:
            assert f"$ {line}" == self._next()
            answers.append(json.loads(self._next().removeprefix("= ")))
        return answers

    def close(self) -> None: ...


class Plane:
    """The control plane of a switch with two ports, of which the engine's part is played."""

    def __init__(self, both: Recorder | Player) -> None:
        link = CpuLink(both)
        own = Own(SWITCH_MAC, SWITCH_IP, 26963)
        self.pipeline = Pipeline(link, both, own, PORTS)
        self.chassis = PipelineChassis(PipelineSwitch(self.pipeline), self.pipeline, PORTS)
        self.port = CpuPort(link, -1, lambda: None)

    def turn(self, now: float) -> None:
        """Handle what has come; once."""
        for came in self.port.pull():
            self.port.push(self.chassis.receive(came, now))


def sections(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The steps of a recording, and what was said in each."""
    name = ""
    said: list[str] = []
    for line in lines:
        if line.startswith("@ "):
            if name:
                yield name, said
            name, said = line[2:], []
        else:
            said.append(line)
    yield name, said


# Recording


class Hosts:
    """Sends frames, and listens for Acks; so the kernel answers nothing of its own."""

    def __init__(self, network: Network) -> None:
        self.wires = []
        self.ears = []
        for host in ("h1", "h2"):
            with network.inside(host):
                (port,) = network.topology.ports(host)
                self.wires.append(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
                self.wires[-1].bind((port.ifname, 0))
                for number in (5000, 5001, 5009):
                    self.ears.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                    self.ears[-1].bind(("0.0.0.0", number))

    def send(self, frames: list[Frame]) -> int:
        """What one host sends stays before what the next one does. How many Acks are due."""
        before: int | None = None
        for host, frame in frames:
            if before not in (None, host):
                time.sleep(QUIET)
            before = host
            self.wires[host].send(frame)
        return sum(frame[15] & 0xFC == TOS_CONTROL for _, frame in frames)

    def acks(self) -> int:
        """How many have come."""
        found = 0
        for ear in self.ears:
            with suppress(BlockingIOError):
                while True:
                    found += ear.recv(1 << 16, socket.MSG_DONTWAIT)[0] == Action.ACK
        return found

    def close(self) -> None:
        for sock in (*self.wires, *self.ears):
            sock.close()


def record(both: Recorder, hosts: Hosts) -> list[str]:
    """Have everything done, at a data plane that runs."""
    plane = Plane(both)
    both.lines.append(f"@ {START}")
    plane.pipeline.start()
    for now, (name, frames) in enumerate(STEPS):
        both.lines.append(f"@ {name}")
        due = hosts.send(frames)
        since = time.monotonic()
        while due > 0 or time.monotonic() < since + QUIET:
            at = len(both.lines)
            plane.turn(float(now))
            if both.lines[at:] == [f"< {NOTHING}"]:
                del both.lines[at:]
            else:
                since = time.monotonic()
            due -= hosts.acks()
            assert time.monotonic() < since + PATIENCE, f"{name}: {due} Acks are missing"
    both.lines.append(f"@ {COUNT}")
    plane.pipeline.fates.count(plane.chassis.counters)
    return both.lines


def recorded() -> list[str]:
    """In a network of two hosts and a bmv2."""
    from iswitch.bmv2.process import start
    from p4.tools import cache_folder

    with Network(Topology.parse("star:2"), offload=False, prefix="iswrec") as network:
        hosts = Hosts(network)
        with network.inside("s1"):
            names = [port.ifname for port in network.topology.ports("s1")]
            bmv2 = start(names, 26963, SIZES["CPU_PORT"], cache_folder())
        try:
            return record(Recorder(bmv2.wire, bmv2.cli), hosts)
        finally:
            with network.inside("s1"):
                bmv2.close()
            hosts.close()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n".join(recorded()) + "\n", encoding="utf-8")
