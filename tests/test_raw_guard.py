"""A host between real namespaces that forges its neighbours' addresses, while they sum."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import threading

import numpy as np
import pytest

from iswitch.frame import ARP_REPLY, arp
from iswitch.wire import Action, Control
from worker_lib import Worker

from . import frames as slow
from .test_raw import PATIENCE, Running, running, tool

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="raw ports need root")
SIOCGIFHWADDR = 0x8927
NUMEL = 20_000
ROUNDS = 300


def mac_of(world: Running, host: str) -> bytes:
    with world.network.inside(host), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, SIOCGIFHWADDR, struct.pack("256s", f"{host}-eth0".encode()))
    return answer[18:24]


def forgeries(world: Running) -> list[bytes]:
    """Data, a Leave from each port, ordinary frames and ARP, all in the name of h1."""
    own, victim, other = (mac_of(world, host) for host in ("h3", "h1", "h2"))
    ip, here, target = (world.topology.address(n).packed for n in ("h1", "s1", "h2"))
    switch = bytes([0x02, 0x69]) + here
    rows = []
    for mac in (own, victim):
        for port in (5000, 26963, 40000):
            payload = bytes(8) + np.full(366, 1e6, np.float32).tobytes()
            leave = Control(Action.LEAVE, 7, 9).build()
            for tos, body in ((0x1C, payload), (0x0C, leave)):
                datagram = slow.udp(ip, here, (port, 26963), body)
                rows.append(slow.ethernet(switch, mac, slow.ip(ip, here, 17, datagram, tos)))
        rows.append(slow.ethernet(other, mac, slow.ip(ip, target, 17, bytes(40))))
    rows.append(slow.ethernet(other, victim, bytes(50), 0x88B5))
    rows.append(arp(ARP_REPLY, own, ip, other, target))
    rows.append(arp(ARP_REPLY, own, here, other, target))
    return rows


def test_nobody_can_speak_for_a_member_from_another_port() -> None:
    with running("star:3") as world:
        failed: list[BaseException] = []
        there = threading.Barrier(3)
        done: list[str] = []

        def work(host: str) -> None:
            try:
                with world.network.inside(host):
                    worker = Worker((world.address, 26963), 7, NUMEL, 2, timeout=PATIENCE)
                with worker:
                    there.wait(PATIENCE)
                    for round_ in range(ROUNDS):
                        total = worker.allreduce(np.full(NUMEL, round_, np.float32))
                        assert (total == 2 * round_).all()
                    done.append(host)
                    there.wait(PATIENCE)  # a member until then
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(host,)) for host in ("h1", "h2")]
        for thread in threads:
            thread.start()
        there.wait(PATIENCE)
        rows = forgeries(world)
        sent = 0
        with world.network.inside("h3"):
            sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            sender.bind(("h3-eth0", 0))
        with sender:
            while len(done) < 2 and not failed:
                for row in rows:
                    sender.send(row)
                sent += len(rows)
        # Answered when all that was sent before has been handled.
        world.run("h3", tool("ping"), "-c", "1", "-W", "5", world.address)
        victim = str(world.topology.address("h1"))
        world.run("h2", tool("ping"), "-c", "1", "-W", "5", victim)  # it is where it was
        there.wait(PATIENCE)
        for thread in threads:
            thread.join(PATIENCE)
        assert not failed, failed
        counters = world.end()
    assert sent / 10 < counters["spoofed"] <= sent  # queues were full
    assert counters["stranger"] == 0
    assert counters["accumulated"] == 2 * counters["aggregates"]
