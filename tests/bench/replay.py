"""How fast a trace is replayed, beside scapy's PcapReader, in turns; and the memory it takes.

    python -m tests.bench.replay [--rate 1Gbit] [--mb 1000] [--out] [--trace FILE] [--json]

The trace, unless one is named, is that of four workers and 1,681,062 float32 (DQN's) at a standard
MTU, as `iswitch generate` makes it: packets of a worker come one behind the other, or, where links
have a --rate, those of all workers alternate. Scapy is given the beginning of it only, as pcap: it
reads the packets, and their Seg, which is less than replay does: it adds nothing and compares
nothing. Each is a process of its own on one core, the file is in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

NUMEL = 1_681_062  # of DQN, 6.41 MiB
PER_ROUND = 55e6  # bytes of trace, about
SCAPY_PACKETS = 20_000
TURNS = 5


def once(path: str, out: str | None = None) -> dict[str, Any]:
    """Replay, in this process; write what would be sent to a file."""
    from iswitch.traces.observed import Watch
    from iswitch.traces.reader import Reader
    from iswitch.traces.replay import Replayer
    from iswitch.traces.survey import survey
    from iswitch.traces.writing import TraceWriter

    with Reader(path) as reader:
        begin = time.perf_counter()
        writer = TraceWriter(out) if out else None
        replayer = Replayer(reader, survey(reader), watch=Watch(), sink=writer)
        replayer.run()
        if writer:
            writer.close()
        seconds = time.perf_counter() - begin
        tally = replayer.comparison.tally
        return {
            "seconds": seconds,
            "bytes": len(reader),
            "packets": replayer.passed["packets"],
            "captured": tally.captured,
            "equal": tally.equal,
            "memory": own_memory(),
        }


def own_memory() -> int:
    """Most bytes this process had at a time, files that are mapped included."""
    status = Path("/proc/self/status").read_text()  # getrusage counts what the parent had, too
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def with_scapy(path: str) -> dict[str, Any]:
    """Read packets and look at the Seg of each, in this process."""
    from scapy.layers.inet import UDP
    from scapy.utils import PcapReader

    begin = time.perf_counter()
    packets = size = segs = 0
    with PcapReader(path) as reader:
        for packet in reader:
            packets += 1
            size += len(packet)
            if UDP in packet:
                segs += int.from_bytes(bytes(packet[UDP].payload)[:8], "big") & 1
    return {"seconds": time.perf_counter() - begin, "bytes": size, "packets": packets, "odd": segs}


def measured(what: str, path: Path, out: Path | None = None) -> dict[str, Any]:
    """In a process of its own, on one core."""
    core = max(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "tests.bench.replay", "--once", what, "--trace", str(path)]
    command += ["--to", str(out)] if out else []
    pin = partial(os.sched_setaffinity, 0, {core})
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, preexec_fn=pin)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def make(path: Path, mb: float, rate: str | None) -> None:
    """The trace, and its beginning as pcap."""
    from topologies import Topology
    from topologies.synthetic import SyntheticJob, synthesize

    rounds = max(1, round(mb * 1e6 / PER_ROUND))
    form = f"star:4,rate={rate}" if rate else "star:4"
    synthesize(path, Topology.parse(form), SyntheticJob(NUMEL, rounds), "s1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, default=1000)
    parser.add_argument("--rate", help="of every link (default: as fast as can be)")
    parser.add_argument("--trace")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--out", action="store_true", help="write what would be sent")
    parser.add_argument("--to", help=argparse.SUPPRESS)
    parser.add_argument("--once", choices=("replay", "scapy"), help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.once:
        replay = args.once == "replay"
        print(json.dumps(once(args.trace, args.to) if replay else with_scapy(args.trace)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(args.trace) if args.trace else Path(folder) / "trace.pcapng"
        if not args.trace:
            make(path, args.mb, args.rate)
        small = Path(folder) / "small.pcap"
        command = ["editcap", "-F", "pcap", "-r", str(path), str(small), f"1-{SCAPY_PACKETS}"]
        subprocess.run(command, check=True)
        path.read_bytes()  # into the page cache
        out = Path(folder) / "out.pcapng" if args.out else None
        turns = [
            (measured("replay", path, out), measured("scapy", small)) for _ in range(args.turns)
        ]
    ours, theirs = zip(*turns, strict=True)
    report: dict[str, Any] = {"bytes": ours[0]["bytes"], "packets": ours[0]["packets"]}
    for name, runs in (("replay", ours), ("scapy", theirs)):
        rates = sorted(run["bytes"] / run["seconds"] / 1e9 for run in runs)
        report[name] = {"gb_per_s": {"min": rates[0], "p50": median(rates), "max": rates[-1]}}
    report["times_scapy"] = report["replay"]["gb_per_s"]["p50"] / report["scapy"]["gb_per_s"]["p50"]
    report["memory_mb"] = max(run["memory"] for run in ours) / 1e6
    report["equal"], report["captured"] = ours[0]["equal"], ours[0]["captured"]
    if args.json:
        print(json.dumps(report, indent=1))
        return
    size = report["bytes"] / 1e9
    print(f"{size:.2f} GB, {report['packets']:,} packets, {args.turns} turns")
    for name in ("replay", "scapy"):
        rate = report[name]["gb_per_s"]
        print(f"{name:7} GB/s min {rate['min']:.4f}  p50 {rate['p50']:.4f}  max {rate['max']:.4f}")
    print(f"replay is {report['times_scapy']:.0f} times as fast, and takes at most "
          f"{report['memory_mb']:.0f} MB of memory")  # fmt: skip
    print(f"aggregates {report['captured']:,}, equal to the last bit {report['equal']:,}")


if __name__ == "__main__":
    main()
