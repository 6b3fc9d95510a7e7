"""What watching a switch costs: `python -m tests.bench.watching`.

Two switches serve at UDP sockets, one that is watched and one that is not, and the same workers
play blocks of rounds at each in turns. The watchers are processes of their own:

    top      a look a second, as `iswitch top` takes it
    metrics  a page of metrics every second, where Prometheus asks every 10 to 60 s
    page     `iswitch web`, with a reader of its stream of events
    spans    of each 100th round, at the switch, written as text

Prints the median, over pairs of blocks, of watched over unwatched: of the time of a round, and of
the switches' CPU time. Beside other work on the machine only these ratios count.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import platform
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple
from urllib.request import urlopen

import numpy as np

from worker_lib import Worker

SIZES = {"40 kB": 10_247, "6.41 MB": 1_681_062}
WATCHERS = ("top", "metrics", "page", "spans")
TICKS = os.sysconf("SC_CLK_TCK")


class Task(NamedTuple):
    """What all workers know."""

    numel: int
    workers: int
    pairs: int
    rounds: int  # of a block


@contextmanager
def serving(options: list[str], **environ: str) -> Iterator[tuple[int, tuple[str, int]]]:
    """Run a switch; yield its process number and where it listens."""
    command = [sys.executable, "-m", "iswitch", "switch", "--listen", "127.0.0.1:0", *options]
    environment = {**os.environ, **environ}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        host, _, port = process.stdout.readline().split()[1].rpartition(":")
        try:
            yield process.pid, (host, int(port))
        finally:
            process.terminate()


@contextmanager
def in_terminal(*words: str) -> Iterator[None]:
    """Run a command of iswitch in a terminal that is read and thrown away."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "iswitch", *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        threading.Thread(target=drain, args=(lambda: os.read(ours, 65536),), daemon=True).start()
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def page(path: str) -> Iterator[None]:
    """Serve the page of a switch, and read its stream of events as a browser does."""
    command = [sys.executable, "-m", "iswitch", "web", path, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = next(word for word in process.stdout.readline().split() if "://" in word)
        stream = urlopen(f"{address.rstrip('/')}/events")
        threading.Thread(target=drain, args=(lambda: stream.read1(65536),), daemon=True).start()
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def scraping(port: int) -> Iterator[None]:
    """Read a page of metrics every second."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(1.0):
            with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                assert answer.read()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
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


def play(rank: int, switches: list[tuple[str, int]], task: Task, turns: Any, report: Any) -> None:
    """Be a worker at both switches; rank 0 reports how long each block takes."""
    vector = np.ones(task.numel, np.float32)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(at, 1, task.numel, task.workers, rank=rank))
            for at in switches
        ]
        for pair in range(-1, task.pairs):  # the first warms up
            for which in (0, 1) if pair % 2 else (1, 0):
                turns.wait()
                began = time.monotonic()
                for _ in range(task.rounds):
                    total = workers[which].allreduce(vector)
                assert total[0] == task.workers
                turns.wait()
                if rank == 0:
                    report.put((pair, which, (time.monotonic() - began) / task.rounds))


def measure(task: Task, watchers: set[str], folder: Path) -> dict[str, Any]:
    """Play blocks at a watched switch and at another one; return the ratios."""
    traced = {"ISWITCH_TRACE": "100", "OTEL_TRACES_EXPORTER": "console"}
    path, port = str(folder / "s1.sock"), free_port()
    options = ["--watch", path] * bool(watchers & {"top", "page"})
    options += ["--metrics", str(port)] * ("metrics" in watchers)
    with ExitStack() as stack:
        spans = traced if "spans" in watchers else {}
        watched, one = stack.enter_context(serving(options, **spans))
        alone, other = stack.enter_context(serving([]))
        if "top" in watchers:
            stack.enter_context(in_terminal("top", path))
        if "metrics" in watchers:
            stack.enter_context(scraping(port))
        if "page" in watchers:
            stack.enter_context(page(path))
        context = mp.get_context("spawn")
        turns, report = context.Barrier(task.workers), context.Queue()
        players = [
            context.Process(target=play, args=(rank, [one, other], task, turns, report))
            for rank in range(task.workers)
        ]
        for player in players:
            player.start()
        found: dict[int, dict[int, float]] = {}
        used: dict[int, dict[int, float]] = {}
        before = [cpu(watched), cpu(alone)]
        for _ in range(2 * (task.pairs + 1)):
            pair, which, seconds = report.get()
            now = [cpu(watched), cpu(alone)]
            found.setdefault(pair, {})[which] = seconds
            used.setdefault(pair, {})[which] = now[which] - before[which]
            before = now
        for player in players:
            player.join()
    ratios = [found[pair][0] / found[pair][1] for pair in range(task.pairs)]
    spent = [sum(used[pair][which] for pair in range(task.pairs)) for which in (0, 1)]
    low, _, high = quantiles(ratios, n=4)
    return {
        "ratio": median(ratios),
        "quartiles": [low, high],
        "ms": [1e3 * median(found[pair][which] for pair in range(task.pairs)) for which in (0, 1)],
        "cpu_ratio": spent[0] / spent[1] if spent[1] else None,
        "pairs": task.pairs,
    }


def free_port() -> int:
    """Return a TCP port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=100, help="of blocks, one at each switch")
    parser.add_argument("--watchers", default=",".join(WATCHERS), help="which (default: all)")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    watchers = {name for name in args.watchers.split(",") if name}
    for size in args.sizes.split(","):
        rounds = 100 if SIZES[size] < 100_000 else 5
        task = Task(SIZES[size], args.workers, args.pairs, rounds)
        with tempfile.TemporaryDirectory() as folder:
            found = {
                "size": size,
                "watchers": sorted(watchers),
                **measure(task, watchers, Path(folder)),
            }
        if args.json:
            print(json.dumps({**found, "machine": platform.platform()}), flush=True)
            continue
        low, high = found["quartiles"]
        print(
            f"{size}, {args.pairs} pairs of blocks of {rounds} rounds: watched / not watched "
            f"{found['ratio']:.3f} ({low:.3f}..{high:.3f}); {found['ms'][0]:.2f} and "
            f"{found['ms'][1]:.2f} ms; CPU of the switch {found['cpu_ratio']:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
