"""Coverage-guided fuzzing of one target, with atheris: `python -m tests.fuzz TARGET`.

What follows the target goes to libFuzzer: `-max_total_time=600`, `-runs=10000 -seed=1`, a file to
replay. It begins with the examples of docs/protocol.md and the corpus in the repository,
tests/fuzz/corpus/TARGET. Inputs that reach something new are kept in `--work` (default:
build/fuzz/TARGET), one that breaks an invariant is written to crash-... there. `--keep` then adds
the fewest of them to the corpus that reach what all reach.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["iswitch", "worker_lib"]):
    from tests.fuzz.seeds import seeds
    from tests.fuzz.targets import TARGETS

HERE = Path(__file__).parent
LONGEST = 1000  # bytes of an input; the corpus stays small


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--work", type=Path, help="where new inputs are kept")
    parser.add_argument("--keep", action="store_true", help="add the best to the corpus, and end")
    args, more = parser.parse_known_args()
    corpus = HERE / "corpus" / args.target
    work = args.work or HERE.parent.parent / "build" / "fuzz" / args.target
    for folder in (corpus, work):
        folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()[args.target]):
        (work / f"seed-{number}").write_bytes(seed)
    folders = [corpus, work] if args.keep else [work, corpus]
    # Kept is what reaches a new place, not what reaches it once more.
    options = (
        ["-merge=1", "-use_counters=0"]
        if args.keep
        else [f"-artifact_prefix={work}/", f"-max_len={LONGEST}"]
    )
    files = [] if any(not word.startswith("-") for word in more) else list(map(str, folders))
    again = work.with_suffix(
        ".sh"
    )  # libFuzzer merges in processes of its own, which it calls as it was
    again.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.fuzz {args.target} "$@"\n')
    again.chmod(0o755)
    atheris.Setup([str(again), *options, *more, *files], TARGETS[args.target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
