"""`iswitch replay`: a trace put through the switch again, or sent to a switch under test."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from iswitch.outside import UsageError, writing
from iswitch.ports.interface import RawPortError
from iswitch.system.files import check_unread, check_writable, whole
from iswitch.traces.inject import Injector
from iswitch.traces.observed import Watch
from iswitch.traces.reader import Reader
from iswitch.traces.report import is_clean, is_whole, lines, replay
from iswitch.traces.survey import TraceSetting
from iswitch.traces.writing import TraceWriter

from .opening import files_read, opened, options, switch_names


def replay_or_inject(args: argparse.Namespace) -> int:
    """Do what the options of `iswitch replay` ask for; return the exit status.

    Raises:
        OutsideError: the trace cannot be read, or nothing in it can be replayed.
    """
    if args.inject and args.out:
        raise UsageError(
            "--out is what a switch would send, and --inject drives one; leave one out"
        )
    check_unread(args.out, *files_read(args))
    reader, setting = opened(args)
    with reader:
        if args.inject:
            return inject(args, reader, setting)
        check_writable(args.out)
        return report(args, reader, setting)


def report(args: argparse.Namespace, reader: Reader, setting: TraceSetting) -> int:
    """Replay the trace and print what was found."""
    writer = None
    with ExitStack() as stack:
        stack.enter_context(whole(args.out) if args.out else writing("standard output"))
        if args.out:
            writer = TraceWriter(args.out)
            stack.callback(writer.close)
        found = replay(
            reader,
            setting,
            options(args),
            Watch(names=switch_names(args)),
            sink=writer,
            pace=pace(args.speed, reader) if args.speed else None,
        )
    if writer:
        found["written"] = writer.frames
    print(json.dumps(found, indent=1) if args.json else "\n".join(lines(found)))
    return 0 if is_clean(found) and is_whole(found) else 1


def pace(times: float, reader: Reader) -> Callable[[float], None]:
    """Make a function that waits for the time of a packet, `times` as fast as recorded."""
    begun: list[float] = []

    def wait(seconds: float) -> None:
        now = time.monotonic()
        if not begun:
            begun.append(now - seconds / times)
        time.sleep(max(0.0, begun[0] + seconds / times - now))
        reader.check_whole()

    return wait


def inject(args: argparse.Namespace, reader: Reader, setting: TraceSetting) -> int:
    """Send the trace's contributions at an interface; return the exit status."""
    times = 1.0 if args.speed is None else args.speed
    try:
        injector = Injector(reader, setting, args.inject, pace(times, reader) if times else None)
    except RawPortError as error:
        raise UsageError(f"--inject {args.inject}: {error.strerror}") from None
    begin = time.monotonic()
    with injector:
        injector.run()
    seconds = time.monotonic() - begin
    found: dict[str, Any] = {
        "interface": args.inject,
        "packets": injector.sent,
        "bytes": injector.sent_bytes,
        "refused": injector.refused,
        "seconds": round(seconds, 6),
    }
    if args.json:
        print(json.dumps(found))
    else:
        rate = injector.sent_bytes / max(seconds, 1e-9) / 1e9
        print(
            f"sent {injector.sent:,} packets at {args.inject} in {seconds:.3f} s ({rate:.2f} GB/s)"
        )
        if injector.refused:
            print(f"the kernel did not take {injector.refused:,} more", file=sys.stderr)
    return 1 if injector.refused else 0
