"""Coverage-guided fuzzing of one target, with atheris: `python -m tests.fuzz TARGET`.

libFuzzer gets the words after the target: `-max_total_time=600`, `-runs=10000 -seed=1`, or a file
to replay. It begins with the examples of docs/protocol.md and the corpus, which is
tests/fuzz/corpus/TARGET.txt. It writes inputs that reach something new to `--work` (default:
build/fuzz/TARGET), and an input that breaks an invariant to crash-... there.

`--add FILE ...` appends such files to the corpus, with `--comment` if given. `--keep` appends
the fewest inputs of `--work` that reach all the places that are new to the corpus.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import atheris

with atheris.instrument_imports(include=["iswitch", "worker_lib"]):
    from tests.fuzz import corpus
    from tests.fuzz.seeds import seeds
    from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parent.parent.parent
LONGEST = 1000  # bytes of an input; the corpus stays small
ROOM = 2048  # MiB that a target may take


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--work", type=Path, help="where new inputs are written")
    parser.add_argument("--add", type=Path, nargs="+", help="append these files to the corpus")
    parser.add_argument("--comment", default="", help="what the added files found")
    parser.add_argument("--keep", action="store_true", help="append the best of --work")
    args, more = parser.parse_known_args()
    work = args.work or ROOT / "build" / "fuzz" / args.target
    if args.add:
        contents = [path.read_bytes() for path in args.add]
        print(f"{corpus.add(args.target, contents, args.comment)} added")
    elif args.keep:
        print(f"{keep(args.target, work)} added")
    else:
        fuzz(args.target, work, more)


def keep(target: str, work: Path) -> int:
    """Append to the corpus the inputs of a folder that reach a new place; return their number."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        corpus.unpack(target, folder)
        # A place that is reached once more is not new: hence no counters.
        merge = ["-merge=1", "-use_counters=0", place, str(work)]
        subprocess.run([sys.executable, "-m", "tests.fuzz", target, *merge], cwd=ROOT, check=True)
        return corpus.add(target, (path.read_bytes() for path in folder.iterdir()))


def fuzz(target: str, work: Path, words: list[str]) -> None:
    """Run libFuzzer, which ends the process."""
    work.mkdir(parents=True, exist_ok=True)
    if all(word.startswith("-") for word in words):
        unpacked = work.with_name(f"{work.name}-corpus")
        corpus.unpack(target, unpacked)
        for number, seed in enumerate(seeds()[target]):
            (work / f"seed-{number}").write_bytes(seed)
        # To libFuzzer the peak of the process that started this one is a peak of this one, too.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        limit = f"-rss_limit_mb={peak + ROOM}"
        words = [f"-artifact_prefix={work}/", f"-max_len={LONGEST}", limit, *words]
        words += [str(work), str(unpacked)]
    # libFuzzer merges in processes of its own, which it starts by the name of this script.
    again = work.with_suffix(".sh")
    again.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.fuzz {target} "$@"\n')
    again.chmod(0o755)
    atheris.Setup([str(again), *words], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
