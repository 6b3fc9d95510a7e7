"""Put defects into copies of the tree, one at a time, and see what notices: `make mutants`.

Soak plays its seeds until the first violation; the unit test that the table names must fail, too.
The seed that showed a mutant to an earlier run with --record is played first.
Exit status: 0 every mutant is caught, or its survival explained; 1 some are not; 2 usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from statistics import median

from tests.mutants.examine import Controls, Finding, NotExamined, base, examine
from tests.mutants.table import Mutant, Rotten, keep_seed, mutants, seeds_known


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="0..N-1 (200)")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="mutants, or files with theirs"
    )
    parser.add_argument("--no-tests", action="store_true", help="soak alone")
    parser.add_argument("--list", action="store_true", help="what there is, and end")
    parser.add_argument(
        "--record", action="store_true", help="play all seeds in turn, and keep the first that show"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="all cores"
    )
    return parser


def chosen(only: Sequence[str]) -> list[Mutant]:
    """The mutants of these names, or of these files.

    Raises:
        LookupError: there is none of a name.
    """
    every = mutants()
    for word in only:
        if not any(word in (mutant.name, mutant.file) for mutant in every):
            raise LookupError(f"no mutant {word!r}; --list has their names")
    return [m for m in every if not only or m.name in only or m.file in only]


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser()
    args = arguments.parse_args(words)
    try:
        wanted = chosen(args.only)
    except LookupError as error:
        arguments.error(str(error.args[0]))
    if args.list:
        print(*(f"{m.name:40} {m.file}: {m.what}" for m in wanted), sep="\n")
        return 0
    progress = sys.stderr if args.json else sys.stdout
    findings: list[Finding] = []
    seeds, tests = range(args.seeds), not args.no_tests
    with base() as sound, ThreadPoolExecutor(args.processes) as pool:
        controls = Controls(sound, None if args.record else seeds_known())
        at_work = [pool.submit(examine, m, controls, seeds, tests=tests) for m in wanted]
        try:
            for done in as_completed(at_work):
                findings.append(done.result())
                if args.record:
                    keep_seed(findings[-1].mutant.name, findings[-1].seed)
                print(
                    f"{len(findings):3}/{len(wanted)}",
                    line(findings[-1]),
                    file=progress,
                    flush=True,
                )
        except (Rotten, NotExamined) as error:
            pool.shutdown(cancel_futures=True)
            print(error, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    order = {mutant.name: place for place, mutant in enumerate(wanted)}
    findings.sort(key=lambda finding: order[finding.mutant.name])
    if args.json:
        print(
            json.dumps(
                {"mutants": [*map(as_json, findings)], "summary": summary(findings)}, indent=1
            )
        )
    else:
        print(*report(findings), sep="\n")
    return 1 if any(finding.complaint for finding in findings) else 0


def line(finding: Finding) -> str:
    """One mutant: seeds to detection, the unit test, and what it is."""
    mutant = finding.mutant
    seen = "-" if finding.seeds is None else f"{finding.seeds}"
    test = {None: "", True: "test", False: "TEST PASSES"}[finding.test]
    test = "test hangs" if finding.test_hangs else "IN DOUBT" if finding.doubt else test
    return f"{seen:>4} {finding.kind:20} {test:5} {mutant.name}: {mutant.what}"


def report(findings: Sequence[Finding]) -> list[str]:
    """What is to be said at the end."""
    rightly = [f.mutant for f in findings if not f.caught and f.mutant.survives]
    wrong = [f for f in findings if f.complaint]
    return [
        "",
        *(f"survives by right: {mutant.name}: {mutant.survives}" for mutant in rightly),
        *(f"NOT RIGHT: {finding.mutant.name}: {finding.complaint}" for finding in wrong),
        summary(findings),
    ]


def summary(findings: Sequence[Finding]) -> str:
    """One line."""
    seeds = [finding.seeds for finding in findings if finding.seeds is not None]
    by_tests = sum(finding.seeds is None and bool(finding.test) for finding in findings)
    survivors = [finding for finding in findings if not finding.caught]
    unexplained = sum(not finding.mutant.survives for finding in survivors)
    how = f" ({unexplained} UNEXPLAINED)" if unexplained else " (all explained)"
    middle = f" (median {median(seeds):g} seeds)" if seeds else ""
    return (
        f"{len(findings)} mutants: {len(seeds)} caught by soak{middle}, {by_tests} by unit tests "
        f"only, {len(survivors)} survivors{how if survivors else ''}"
    )


def as_json(finding: Finding) -> dict[str, object]:
    """One mutant for machines."""
    mutant = finding.mutant
    return {
        "name": mutant.name,
        "what": mutant.what,
        "file": mutant.file,
        "seeds": finding.seeds,
        "kind": finding.kind,
        "message": finding.message,
        "test": mutant.test,
        "test_fails": finding.test,
        "test_hangs": finding.test_hangs,
        "survives": mutant.survives,
        "complaint": finding.complaint,
    }


if __name__ == "__main__":
    sys.exit(main())
