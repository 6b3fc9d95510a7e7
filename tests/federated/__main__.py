"""Play random histories of federated rounds: `python -m tests.federated --histories 2000`.

Prints what happened in them, and each seed whose history breaks a promise. `--racks 2` plays them
in a two-level tree.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter

os.environ.setdefault("ISWITCH_FAST", "0")  # Numba is slow to load

from iswitch.lab.progress import Bar
from tests.support.federated import History


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.federated", description=__doc__)
    parser.add_argument("--histories", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--racks", type=int, default=0, help="of a tree; 0: a star")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    failed = []
    began = time.process_time()
    with Bar(args.histories) as bar:
        for number in range(args.histories):
            seed = args.first + number
            bar.show(number, f"seed {seed}")
            try:
                counts.update(told(History(seed, args.racks).play()))
            except Exception as error:
                failed.append(seed)
                print(f"seed {seed}: {type(error).__name__}: {error}", file=sys.stderr)
    seconds = round(time.process_time() - began, 1)
    print(json.dumps({"histories": args.histories, **counts, "cpu": seconds, "failed": failed}))
    return bool(failed)


def told(history: History) -> dict[str, int]:
    """Count what a history was of."""
    outcomes = [outcome for outcome, _, _ in history.outcomes]
    said = Counter(one.name.lower() for one in history.told.values())
    return {
        "rounds": len(outcomes),
        "killed": history.kills,
        "stopped": history.stops,
        "restarted": history.restarts,
        "reset": history.resets,
        "mistold": history.mistold,
        "closed_by_deadline": sum(not outcome.in_time for outcome in outcomes),
        "of_nobody": sum(not outcome.ranks for outcome in outcomes),
        "tried_again": sum(outcome.attempts > 1 for outcome in outcomes),
        **said,
    }


if __name__ == "__main__":
    sys.exit(main())
