"""Kills workers while they exchange packets through rings; no sum may be wrong.

    python -m tests.ports.rings.kills [--kills 10000] [--seed 0]

Four workers sum rounds without end. Again and again one of them is killed (SIGKILL) at a moment
that chance draws, nearly always within a round; a new process takes its place and rank. Half of
rank r's vector is 1 << 8r, half the round's number: so a sum shows whether it holds each rank
exactly once, and of one round. At the end the switch must have ended well, with nothing left of the
rings. Compiled kernels play the rounds where Numba is installed, unless ISWITCH_FAST=0.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import numpy as np

from iswitch.fast import loading
from iswitch.ports.rings import meeting
from iswitch.system.private import folder
from tests.support import ROOT
from worker_lib import Worker
from worker_lib.errors import WorkerError

WORKERS = 4
NUMEL = 60_000  # 240 kB: five records of a ring, so that most kills strike within a round
JOB = 7
LONGEST = 0.012  # seconds that a worker lives after its first sum
PATIENCE = 60.0  # seconds


def work(where: tuple[str, int], rank: int, bind: int, told: int) -> None:
    """Sum rounds until killed; write a byte to `told` after the first, and end at a wrong sum."""
    logging.disable()  # a clock that seems to have stepped back: there are many processes a second
    half = NUMEL // 2
    vector = np.empty(NUMEL, np.int32)
    vector[:half] = 1 << 8 * rank
    worker = Worker(
        where, JOB, NUMEL, WORKERS, rank=rank, dtype=np.int32, timeout=PATIENCE,
        bind=("127.0.0.1", bind),
    )  # fmt: skip
    if worker.stats()["way"] != "shm":
        os.write(told, b"u")
    summed = 0
    while True:
        round_ = worker.round
        vector[half:] = round_
        try:
            total = worker.allreduce(vector)
        except WorkerError:  # an allreduce tried again keeps what it has sent
            continue
        if not ((total[:half] == 0x01010101).all() and (total[half:] == WORKERS * round_).all()):
            os.write(told, b"w")
            os._exit(1)
        if not summed:
            summed = os.write(told, b"s")


def begin(where: tuple[str, int], rank: int, bind: int) -> tuple[int, int]:
    """Start a worker; return its process and the pipe that tells of it."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.close(told)
        try:
            work(where, rank, bind, tell)
        finally:
            os._exit(2)
    os.close(tell)
    return child, told


def free_ports() -> list[int]:
    """Return UDP ports that are free now, one for each worker."""
    with ExitStack() as held:
        socks = [
            held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            for _ in range(WORKERS)
        ]
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in socks]


def play(where: tuple[str, int], kills: int, chance: random.Random) -> dict[str, int]:
    """Kill workers; return how often they were killed, had no rings, and summed wrongly."""
    binds = free_ports()
    workers = [begin(where, rank, binds[rank]) for rank in range(WORKERS)]
    found = {"kills": 0, "wrong": 0, "without_rings": 0}

    def hear(rank: int, enough: bytes) -> None:
        """Count what a worker tells until it has told this."""
        said = b" "
        while said and enough not in said:
            said = os.read(workers[rank][1], 100)
            found["wrong"] += said.count(b"w")
            found["without_rings"] += said.count(b"u")

    def end(rank: int) -> None:
        child, told = workers[rank]
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        hear(rank, b"w")
        os.close(told)

    for rank in range(WORKERS):
        hear(rank, b"s")
    while found["kills"] < kills and not found["wrong"]:
        time.sleep(chance.random() * LONGEST)
        rank = chance.randrange(WORKERS)
        end(rank)
        found["kills"] += 1
        workers[rank] = begin(where, rank, binds[rank])
        hear(rank, b"s")
        if found["kills"] % 1000 == 0:
            print(found, flush=True)
    for rank in range(WORKERS):
        end(rank)
    return found


def main(words: list[str]) -> int:
    """Run the program; return its exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(words)
    os.environ[meeting.VARIABLE] = "1"
    if loading.available():  # loaded here once, and not by each of the processes
        for name in ("worker_kernel", "ring_worker_kernel"):
            loading.load(name)
    command = [sys.executable, "-m", "iswitch", "switch", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as switch:
        assert switch.stdout is not None
        host, _, port = switch.stdout.readline().split()[1].rpartition(":")
        began = time.monotonic()
        found = play((host, int(port)), given.kills, random.Random(given.seed))
        fds = len(os.listdir(f"/proc/{switch.pid}/fd"))
        switch.send_signal(signal.SIGINT)
        told = switch.communicate(timeout=PATIENCE)[0]
    aggregates = next((line.split()[1] for line in told.splitlines() if "aggregates" in line), "0")
    left = list(folder().glob(f"*-{port}"))
    print(
        f"{found['kills']} kills in {time.monotonic() - began:.0f} s, {aggregates} segments, "
        f"{found['wrong']} wrong sums, {found['without_rings']} workers without rings, "
        f"{fds} descriptors of the switch at the end, status {switch.returncode}, left: {left}"
    )
    return bool(found["wrong"] or left or switch.returncode or fds > 40)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
