"""What watching a switch costs: `python -m tests.bench.watching`, in under six minutes.

Four workers play blocks of rounds at one switch, with watchers and without them in turns. The
watchers are processes of their own, which are stopped (SIGSTOP) while there is to be none:

    top      `iswitch top` in a terminal: a look a second
    metrics  a page of metrics every second, where Prometheus asks every 10 to 60 s
    page     `iswitch web`, with a reader of its stream of events: two looks a second, with parts

A block takes two seconds, so each one with watchers has several looks of all of them; a median of
blocks that are shorter than the pauses would leave out what looks cost. Two neighbours are a pair.
The table has the median over pairs of watched / not watched, the interval in which that median lies
with 95 %, and the quartiles of the pairs. `noise` is the same interval for not watched / not
watched, from neighbouring pairs: if it is wider than 3 %, the machine is too busy to tell.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from itertools import pairwise
from math import sqrt
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple
from urllib.request import urlopen

import numpy as np

from worker_lib import Worker

SIZES = {"40 kB": 10_247, "6.41 MB": 1_681_062}
WATCHERS = ("top", "metrics", "page")
BLOCK = 2.0  # seconds
SETTLE = 3.0  # seconds in which watchers begin
LIMIT = 1.03  # of the time of a round: what watching may cost
STUCK = 60.0  # seconds of a block after which a worker must have failed
LEAST = 6  # pairs between whose least and greatest the median lies with 95 %
TICKS = os.sysconf("SC_CLK_TCK")


class Watcher(NamedTuple):
    """Something that watches: what stops it, and what has it go on."""

    stop: Callable[[], None]
    go_on: Callable[[], None]


def by_signals(process: subprocess.Popen[Any]) -> Watcher:
    """Return a watcher that is a process."""
    return Watcher(
        lambda: process.send_signal(signal.SIGSTOP), lambda: process.send_signal(signal.SIGCONT)
    )


def end(process: subprocess.Popen[Any]) -> None:
    """End a process, which may be stopped."""
    process.terminate()
    process.send_signal(signal.SIGCONT)


@contextmanager
def serving(options: list[str]) -> Iterator[tuple[int, tuple[str, int]]]:
    """Run a switch; yield its process number and where it listens."""
    command = [sys.executable, "-m", "iswitch", "switch", "--listen", "127.0.0.1:0", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        host, _, port = process.stdout.readline().split()[1].rpartition(":")
        try:
            yield process.pid, (host, int(port))
        finally:
            process.terminate()


@contextmanager
def in_terminal(*words: str) -> Iterator[Watcher]:
    """Run a command of iswitch in a terminal that is read and thrown away."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "iswitch", *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        threading.Thread(target=drain, args=(lambda: os.read(ours, 65536),), daemon=True).start()
        try:
            yield by_signals(process)
        finally:
            end(process)


@contextmanager
def page(path: str) -> Iterator[Watcher]:
    """Serve the page of a switch, and read its stream of events as a browser does."""
    command = [sys.executable, "-m", "iswitch", "web", path, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = next(word for word in process.stdout.readline().split() if "://" in word)
        stream = urlopen(f"{address.rstrip('/')}/events")
        threading.Thread(target=drain, args=(lambda: stream.read1(65536),), daemon=True).start()
        try:
            yield by_signals(process)
        finally:
            end(process)


@contextmanager
def scraping(port: int) -> Iterator[Watcher]:
    """Read a page of metrics every second."""
    ended, wanted = threading.Event(), threading.Event()
    wanted.set()

    def look() -> None:
        while not ended.wait(1.0):
            wanted.wait()
            with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                assert answer.read()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield Watcher(wanted.clear, wanted.set)
    finally:
        ended.set()
        wanted.set()
        thread.join()


def drain(read: Callable[[], bytes]) -> None:
    """Read until the end."""
    try:
        while read():
            pass
    except (OSError, ValueError, HTTPException):
        pass


def cpu(process: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def play(rank: int, switch: tuple[str, int], numel: int, workers: int, turns: Turns) -> None:
    """Be a worker: play blocks of as many rounds as are wanted, until none is."""
    vector = np.ones(numel, np.float32)
    with Worker(switch, 1, numel, workers, rank=rank) as worker:
        while True:
            turns.begin.wait()
            if not (rounds := turns.rounds.value):
                return
            for _ in range(rounds):
                total = worker.allreduce(vector)
            assert total[0] == workers
            turns.end.wait()


class Turns(NamedTuple):
    """What the workers and this process wait for, and the rounds of the next block."""

    begin: Any
    end: Any
    rounds: Any

    def block(self, rounds: int) -> float:
        """Have the workers play a block; return the seconds of a round."""
        self.rounds.value = rounds
        self.begin.wait()
        began = time.monotonic()
        self.end.wait()
        return (time.monotonic() - began) / rounds


class Block(NamedTuple):
    """Seconds of a round, and of the switch's CPU."""

    seconds: float
    cpu: float


def measure(
    numel: int, workers: int, watchers: set[str], seconds: float, folder: Path
) -> list[tuple[Block, Block]]:
    """Play pairs of blocks for some seconds; return each pair, the watched block first."""
    path, port, until = str(folder / "s1.sock"), free_port(), time.monotonic() + seconds
    options = ["--watch", path, "--metrics", str(port)]
    with ExitStack() as stack:
        number, switch = stack.enter_context(serving(options))
        context = mp.get_context("spawn")
        barriers = [context.Barrier(workers + 1, timeout=STUCK) for _ in range(2)]
        turns = Turns(barriers[0], barriers[1], context.Value("q", 1))
        players = [
            context.Process(target=play, args=(rank, switch, numel, workers, turns), daemon=True)
            for rank in range(workers)
        ]
        for player in players:
            player.start()
        turns.block(1)
        rounds = 5
        for seconds_of_all in (BLOCK / 10, BLOCK):
            rounds = max(1, round(seconds_of_all / turns.block(rounds)))
        watching = []
        if "top" in watchers:
            watching.append(stack.enter_context(in_terminal("top", path)))
        if "metrics" in watchers:
            watching.append(stack.enter_context(scraping(port)))
        if "page" in watchers:
            watching.append(stack.enter_context(page(path)))
        time.sleep(SETTLE)
        pairs: list[tuple[Block, Block]] = []
        began = last = time.monotonic()
        while len(pairs) < 2 or last + (last - began) / len(pairs) < until:
            found = {}
            for is_watched in (True, False) if len(pairs) % 2 else (False, True):
                for watcher in watching:
                    (watcher.go_on if is_watched else watcher.stop)()
                before = cpu(number)
                took = turns.block(rounds)
                found[is_watched] = Block(took, cpu(number) - before)
            pairs.append((found[True], found[False]))
            last = time.monotonic()
        turns.rounds.value = 0
        turns.begin.wait()
        for player in players:
            player.join()
    return pairs


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return where the median of what these are drawn from lies, with 95 % (by their order)."""
    ordered, n = sorted(ratios), len(ratios)
    low = max(0, int((n - 1.96 * sqrt(n)) / 2))
    return ordered[low], ordered[n - 1 - low]


def result(size: str, pairs: list[tuple[Block, Block]]) -> dict[str, Any]:
    """Work out a row of the table."""
    ratios = [watched.seconds / alone.seconds for watched, alone in pairs]
    noise = [one.seconds / other.seconds for (_, one), (_, other) in pairwise(pairs)]
    spent = [sum(pair[which].cpu for pair in pairs) for which in (0, 1)]
    low, high = interval(ratios)
    quartiles = quantiles(ratios, n=4)
    verdict = "yes" if high <= LIMIT else "no" if low > LIMIT else "not known"
    if len(pairs) < LEAST:
        verdict = "not known"
    return {
        "size": size,
        "pairs": len(pairs),
        "ms": [1e3 * median(pair[which].seconds for pair in pairs) for which in (0, 1)],
        "ratio": median(ratios),
        "interval": [low, high],
        "quartiles": [quartiles[0], quartiles[2]],
        "noise": interval(noise),
        "cpu_ratio": spent[0] / spent[1] if spent[1] else None,
        "within": verdict,
    }


def free_port() -> int:
    """Return a TCP port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


ROW = "{:>8} {:>6} {:>11} {:>11} {:>6} {:>12} {:>12} {:>12} {:>6} {:>9}"


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=165.0, help="for each size")
    parser.add_argument("--watchers", default=",".join(WATCHERS), help="which (default: all)")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    watchers = {name for name in args.watchers.split(",") if name}
    if not args.json:
        print(f"watchers: {', '.join(sorted(watchers)) or 'none'}; {platform.platform()}")
        print(ROW.format("", "pairs", "watched, ms", "alone, ms", "ratio", "95 %", "quartiles",
                         "noise, 95 %", "CPU", "<= 3 %"), flush=True)  # fmt: skip
    for size in args.sizes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            pairs = measure(SIZES[size], args.workers, watchers, args.seconds, Path(folder))
        found = result(size, pairs)
        if args.json:
            print(json.dumps({**found, "watchers": sorted(watchers)}), flush=True)
            continue
        ranges = (
            "{:.3f}-{:.3f}".format(*found[name]) for name in ("interval", "quartiles", "noise")
        )
        times = (f"{ms:.3f}" for ms in found["ms"])
        print(ROW.format(size, found["pairs"], *times, f"{found['ratio']:.3f}", *ranges,
                         f"{found['cpu_ratio']:.2f}", found["within"]), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
