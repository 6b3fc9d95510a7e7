"""One of four workers twice as slow: `python -m tests.bench.straggler --plot FILE.svg`.

Trains CartPole by PPO to a mean return of 475, or Pendulum by DDPG to -300, synchronously and
asynchronously in turns, with the computing of rank 3 made to take twice as long; and once more with
all as fast. Prints the seconds of each and draws the return over time. Four workers share the cores
of this machine, so `--pace` makes the computing of all of them take longer by sleeping, as if each
had a core of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from tests.bench.learning import MODES, TARGETS, train

WORKLOADS = {env: (algorithm, target) for (algorithm, env), target in TARGETS.items()}
COLOURS = {"sync": "tab:blue", "async": "tab:orange"}


def measure(args: argparse.Namespace, mode: str, seed: int, factor: float) -> dict[str, Any]:
    algorithm, target = WORKLOADS[args.env]
    slow = [args.pace, args.pace, args.pace, args.pace * factor]
    options = ["--env", args.env, "--mode", mode, "--seed", str(seed)]
    options += ["--target-return", str(target)]
    if mode == "async":
        options += ["--staleness", str(args.staleness)]
    for setting in args.settings:
        options += ["--set", setting]
    for rank, value in enumerate(slow):
        if value != 1.0:
            options += ["--slow", f"{rank}={value:g}"]
    return train(algorithm, *options) | {"factor": factor}


def plot(reports: list[dict[str, Any]], path: str) -> None:
    """Draw every run's mean return over time, and when it reached the target."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    factors = sorted({report["factor"] for report in reports})
    figure, axes = pyplot.subplots(
        1, len(factors), figsize=(9, 3.6), sharey=True, layout="constrained", squeeze=False
    )
    for axis, factor in zip(axes[0], factors, strict=True):
        for mode in MODES:
            runs = [r for r in reports if (r["mode"], r["factor"]) == (mode, factor)]
            median = statistics.median(run["seconds"] for run in runs)
            for i, run in enumerate(runs):
                label = f"{mode}: median {median:.1f} s" if i == 0 else None
                seconds, _, returns = zip(*run["curve"], strict=True)
                axis.plot(seconds, returns, color=COLOURS[mode], linewidth=1.2, label=label)
            axis.axvline(median, color=COLOURS[mode], linestyle=":", linewidth=1)
        title = "all as fast" if factor == 1 else f"one of four {factor:g} times as slow"
        axis.set(title=title, xlabel="seconds", xlim=(0, None))
        axis.axhline(runs[0]["target_return"], color="0.4", linewidth=0.8)
        axis.legend(loc="lower right", frameon=False)
    axes[0][0].set_ylabel("mean return")
    figure.savefig(path)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", choices=WORKLOADS, default="CartPole-v1")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--pace", type=float, default=1.0, metavar="FACTOR")
    parser.add_argument("--factors", type=float, nargs="+", default=[1.0, 2.0], help="of rank 3")
    parser.add_argument("--staleness", type=int, default=3, metavar="S", help="async")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", dest="settings",
        help="as of iswitch train, in both modes",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="keep the reports; read if it is there")
    parser.add_argument("--plot", metavar="FILE", help="draw them, as .svg or .png")
    args = parser.parse_args()
    reports: list[dict[str, Any]] = []
    if args.json and Path(args.json).exists():
        reports = json.loads(Path(args.json).read_text())
    known = {(r["mode"], r["seed"], r["factor"]) for r in reports}
    for seed in args.seeds:
        for factor in args.factors:
            for mode in MODES:  # in turns, so that what else the machine does hits both
                if (mode, seed, factor) in known:
                    continue
                reports.append(measure(args, mode, seed, factor))
                last = reports[-1]
                rate = last["iterations_per_second"]
                how = f"{last['seconds']:.1f} s, {last['iterations']} iterations, {rate:.1f} per s"
                print(f"seed {seed}, factor {factor:g}, {mode}: {how}", flush=True)
                if args.json:
                    Path(args.json).write_text(json.dumps(reports))
    print("\n| rank 3 | mode | seconds, median (least to most) | iterations | iterations/s |")
    print("|---|---|---|---:|---:|")
    for factor in args.factors:
        for mode in MODES:
            runs = [r for r in reports if (r["mode"], r["factor"]) == (mode, factor)]
            seconds = sorted(run["seconds"] for run in runs)
            middle = [
                statistics.median(run[key] for run in runs)
                for key in ("iterations", "iterations_per_second")
            ]
            name = "as fast" if factor == 1 else f"{factor:g} times as slow"
            span = f"{statistics.median(seconds):.1f} ({seconds[0]:.1f} to {seconds[-1]:.1f})"
            print(f"| {name} | {mode} | {span} | {middle[0]:.0f} | {middle[1]:.1f} |")
    if args.plot:
        plot(reports, args.plot)


if __name__ == "__main__":
    main()
