"""How the six workloads train through the switch: `python -m tests.bench.learning`.

Takes `iswitch train` with four workers in each mode. CartPole and Pendulum train until the mean
return of the last 20 episodes is 475, and -300, for each seed; the others for so many
iterations. Prints a table for docs/train.md, and fails if a run does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TARGETS = {("ppo", "CartPole-v1"): 475.0, ("ddpg", "Pendulum-v1"): -300.0}
LONG = {
    ("dqn", "ALE/Pong-v5"): 200,
    ("a2c", "ALE/Qbert-v5"): 200,
    ("ppo", "Hopper-v5"): 960,  # three rollouts
    ("ddpg", "HalfCheetah-v5"): 1000,
}
MODES = ("sync", "async")
PARTS = ("compute", "aggregate", "update")
COLUMNS = ("workload", "mode", "seed", "iterations", "s", "iterations/s", *PARTS, "return")


def train(*options: str) -> dict[str, Any]:
    """Run it; what it reports, and the seconds it took with its start and end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        began = time.monotonic()
        command = [sys.executable, "-m", "iswitch", "train", *options, "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        report: dict[str, Any] = json.loads(path.read_text())
    return report | {"wall": time.monotonic() - began}


def row(report: dict[str, Any]) -> str:
    """A line of the table."""
    share = [f"{100 * report['share'][part]:.0f} %" for part in PARTS]
    mean = report["mean_return"] if report["window_return"] is None else report["window_return"]
    cells = [
        f"{report['algorithm']} {report['env']}",
        report["mode"],
        str(report["seed"]),
        str(report["iterations"]),
        f"{report['seconds']:.1f}",
        f"{report['iterations_per_second']:.1f}",
        *share,
        "-" if mean is None else f"{mean:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--only", choices=("learn", "speed"))
    args = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---|---|" + "---:|" * (len(COLUMNS) - 2))
    for mode in args.modes:
        if args.only != "speed":
            for (algorithm, env), target in TARGETS.items():
                for seed in args.seeds:
                    options = ["--env", env, "--mode", mode, "--seed", str(seed)]
                    print(
                        row(train(algorithm, *options, "--target-return", str(target))), flush=True
                    )
        if args.only != "learn":
            for (algorithm, env), iterations in LONG.items():
                options = ["--env", env, "--mode", mode, "--iterations", str(iterations)]
                print(row(train(algorithm, *options)), flush=True)


if __name__ == "__main__":
    main()
