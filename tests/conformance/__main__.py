"""`python -m tests.conformance --switch HOST:PORT`: run the cases against a running switch."""

import argparse
import itertools
import json
import random
import socket
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.conformance.case import Case, Outcome, judge
from tests.conformance.cases import CASES
from tests.conformance.client import Address

DEFAULT_SWITCH = "127.0.0.1:26963"
MARKS = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}


def address(text: str) -> Address:
    """HOST:PORT as a socket names it in what it receives: the host as a number."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, as in {DEFAULT_SWITCH}")
    return socket.gethostbyname(host), int(port)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--switch", type=address, default=DEFAULT_SWITCH, metavar="HOST:PORT")
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--list", action="store_true", help="name the cases and run none")
    parser.add_argument(
        "--keys",
        metavar="FILE",
        help='TOML of keyed jobs and their keys as the switch has them, lines such as 7 = "text"',
    )
    parser.add_argument(
        "--lossy",
        action="store_true",
        help="the path loses and doubles packets: send again, skip cases about a single packet",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--first-job",
        type=int,
        default=random.SystemRandom().randrange(1, 1 << 16),
        help="job numbers count from here (default: random, as a switch remembers old jobs)",
    )
    return parser.parse_args(argv)


def keyed_jobs(path: str | None) -> Iterator[tuple[int, bytes]]:
    """The keyed jobs of a file with their keys, over and over; none without a file."""
    if path is None:
        return iter(())
    table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    found = [(int(job), key_bytes(text)) for job, text in table.items() if job.isdecimal()]
    return itertools.cycle(found)


def key_bytes(text: str) -> bytes:
    """A key as the file has it: text, or after hex: digits."""
    return bytes.fromhex(text[4:]) if text.startswith("hex:") else text.encode()


def describe_case(case: Case, *, as_json: bool) -> str:
    """One line for --list."""
    if as_json:
        return json.dumps({"name": case.name, "section": case.section, "promise": case.promise})
    return f"{case.name:44} {case.section:5} {case.promise}"


def describe_outcome(outcome: Outcome, *, as_json: bool) -> str:
    """One line for a case that has run."""
    if as_json:
        return json.dumps(asdict(outcome))
    message = f"  {outcome.message}" if outcome.message else ""
    mark = MARKS[outcome.result]
    return f"{mark:7} {outcome.name:44} {outcome.section:5} {outcome.seconds:6.2f} s{message}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen cases; 1 if any failed."""
    arguments = parse_arguments(argv)
    chosen = [CASES[name] for name in arguments.case]
    if arguments.list:
        print(*(describe_case(case, as_json=arguments.json) for case in chosen), sep="\n")
        return 0
    jobs = itertools.count(arguments.first_job)
    keyed = keyed_jobs(arguments.keys)
    outcomes = []
    for case in chosen:
        outcomes.append(judge(case, arguments.switch, jobs, keyed, lossy=arguments.lossy))
        print(describe_outcome(outcomes[-1], as_json=arguments.json), flush=True)
    results = [outcome.result for outcome in outcomes]
    failed, skipped = results.count("failed"), results.count("skipped")
    if not arguments.json:
        print(f"{len(outcomes)} cases, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
