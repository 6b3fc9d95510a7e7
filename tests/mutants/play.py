"""Plays soak seeds in the tree it is started in: `python -m tests.mutants.play LONGEST SEED...`.

A line for each seed as it begins, and one with the violation that ends the search. A seed that
takes more than LONGEST seconds of CPU is stopped, and counts as a violation, too.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from pathlib import Path

import iswitch
from iswitch.lab.soak.many import play_seed

MEMORY = 4 << 30  # bytes of addresses


class Hangs(BaseException):
    """Not to be mistaken for what a machine raises."""


def stop(*_: object) -> None:
    raise Hangs


def main(longest: int, seeds: list[int]) -> None:
    assert Path(iswitch.__file__).is_relative_to(Path.cwd()), "another tree's package"
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, stop)
    for seed in seeds:
        print(json.dumps({"seed": seed}), flush=True)
        signal.setitimer(signal.ITIMER_PROF, longest)
        try:
            result = play_seed(seed)
            kind, message = result.violation, result.message
        except Hangs:
            kind, message = "hangs", f"seed {seed} takes more than {longest} s"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if kind:
            print(json.dumps({"seed": seed, "kind": kind, "message": message}), flush=True)
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(word) for word in sys.argv[2:]])
