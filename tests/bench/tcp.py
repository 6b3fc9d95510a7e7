"""Ordinary TCP through a raw switch and through a bridge: `python -m tests.bench.tcp`.

One connection between two hosts of a network (namespaces), and of another whose switch is a bridge
of the kernel's, in turns. Needs root.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import platform
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from tests.bench.rig import Place, place, serve
from topologies import Topology
from topologies.bridges import build_bridges
from topologies.netns import Network

BLOCK = 1 << 20
PORT = 5001


def sink(where: Place, report: Connection) -> None:
    with where:
        listener = socket.create_server((where.address, PORT))
    buffer = bytearray(BLOCK)
    report.send("ready")
    while True:
        connection, _ = listener.accept()
        while connection.recv_into(buffer):
            pass
        connection.close()


def source(where: Place, to: str, turns: Connection) -> None:
    block = bytes(BLOCK)
    while (seconds := turns.recv()) is not None:
        with where:
            sock = socket.create_connection((to, PORT))
        began = time.monotonic()
        total = 0
        while (now := time.monotonic()) - began < seconds:
            total += sock.send(block)
        sock.close()
        turns.send(total * 8 / (now - began) / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    args = parser.parse_args()
    print(f"command: python -m tests.bench.tcp {' '.join(sys.argv[1:])}".rstrip())
    print(f"machine: {os.cpu_count()} cores, Linux {platform.release()}", flush=True)
    topology = Topology.parse("star:2")
    context = mp.get_context("spawn")
    with ExitStack() as stack:
        networks = {
            name: stack.enter_context(Network(topology, prefix="iswb"))
            for name in ("raw switch", "bridge")
        }
        build_bridges(networks["bridge"])
        processes: list[Any] = []
        sources: dict[str, Connection] = {}

        def start(target: Callable[..., None], *arguments: object) -> Connection:
            end, other = context.Pipe()
            processes.append(context.Process(target=target, args=(*arguments, other), daemon=True))
            processes[-1].start()
            return end

        start(serve, place(networks["raw switch"], "s1")).recv()
        for name, network in networks.items():
            start(sink, place(network, "h1")).recv()
            to = str(topology.address("h1"))
            sources[name] = start(source, place(network, "h2"), to)
        rates: dict[str, list[float]] = {name: [] for name in networks}
        for _ in range(args.turns):
            for name, end in sources.items():
                end.send(args.seconds)
                rates[name].append(end.recv())
        for process in processes:
            process.kill()
            process.join()
    print(f"one connection, {args.turns} turns of {args.seconds:g} s")
    for name, found in rates.items():
        low, middle, high = np.percentile(found, [0, 50, 100])
        print(f"  {name:10} {middle:6.2f} Gbit/s ({low:.2f}..{high:.2f})")
    first, second = (np.median(found) for found in rates.values())
    print(f"  the raw switch carries {first / second:.2f} of what the bridge carries")


if __name__ == "__main__":
    main()
