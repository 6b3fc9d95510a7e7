"""The target `trace`, whose input is a file, and its seeds."""

from __future__ import annotations

import json
import os
import struct

import numpy as np

from iswitch.core.format.packets import Address
from iswitch.core.format.pcapng import Direction, interface, packets, section
from iswitch.ethernet.made_up import frames
from iswitch.traces.reader import NotATrace, Reader
from iswitch.traces.report import lines, replay
from iswitch.traces.survey import NothingToReplay, survey

SWITCH = Address("10.0.0.254", 26963)
WINDOW = 256  # bytes, so that there are several

Packet = tuple[bool, int, bytes]  # to the switch?, ToS, payload


def trace(content: bytes) -> None:
    """Whatever a file holds, it is replayed without an exception, or refused in words."""
    descriptor = os.memfd_create("trace")
    try:
        os.write(descriptor, content)
        try:
            reader = Reader(f"/proc/self/fd/{descriptor}", WINDOW)
        except NotATrace:
            return
        with reader:
            try:
                setting = survey(reader)
                for setting.ordered in (True, False):
                    report = replay(reader, setting)
                    assert json.dumps(report)
                    assert lines(report)
                    passed = report["trace"]
                    names = ("to_switch", "from_switch", "passing", "cut_off", "skipped")
                    assert passed["packets"] == sum(passed[name] for name in names)
            except NothingToReplay:
                return
    finally:
        os.close(descriptor)


def as_files(conversation: list[Packet]) -> list[bytes]:
    """A conversation of one worker, as a file of each format."""
    worker = Address("10.0.0.1", 5000)
    pcap = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1)
    pcapng = section() + interface("s1-eth1")
    for number, (to_switch, tos, payload) in enumerate(conversation):
        row = np.frombuffer(payload, np.uint8).reshape(1, -1)
        ends = (worker, SWITCH) if to_switch else (SWITCH, worker)
        frame = frames(*ends, tos, row)
        size = frame.shape[1]
        pcap += struct.pack("<IIII", 1, number, size, size) + frame.tobytes()
        direction = Direction.IN if to_switch else Direction.OUT
        pcapng += packets(0, number * 1000, direction, frame)
    return [pcap, pcapng]


def crowded(conversation: list[Packet]) -> bytes:
    """A conversation as a file in which each packet has a section, and interfaces, of its own."""
    worker = Address("10.0.0.1", 5000)
    content = b""
    for number, (to_switch, tos, payload) in enumerate(conversation):
        ends = (worker, SWITCH) if to_switch else (SWITCH, worker)
        frame = frames(*ends, tos, np.frombuffer(payload, np.uint8).reshape(1, -1))
        direction = Direction.IN if to_switch else Direction.OUT
        content += section() + b"".join(interface(f"s{number}-eth{i}") for i in range(1 + number))
        content += packets(number, number * 1000, direction, frame)
    return content
