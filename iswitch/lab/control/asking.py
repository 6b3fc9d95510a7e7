"""Ask a switch for one thing, and print what it answered."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from socket import gaierror

from iswitch.core.format.wire import PORT
from iswitch.outside import OutsideError, UsageError
from iswitch.system.keyfiles import given_key
from iswitch.watch.places import Network, runs
from worker_lib.command_errors import JobWaits, NoSuchJob, NoWorkers
from worker_lib.controller import Controller
from worker_lib.errors import Refused, SwitchUnreachable, WorkerError

from .actions import Answer
from .reaching import ask_inside, reached

Act = Callable[[Controller, argparse.Namespace], Answer]


def ask(args: argparse.Namespace, act: Act) -> int:
    """Do one action at the switch that the options name; return the exit status.

    Raises:
        OutsideError: the switch cannot be reached from the local address, or not be found.
    """
    if getattr(args, "place", None) is not None:
        if args.switch is not None:
            raise UsageError(f"{args.place} and --switch both name a switch; leave one out")
        switch = reached(args.place)
        if switch.note and not args.json:
            print(f"iswitch ctl: {switch.note}", file=sys.stderr)
        if switch.entry:
            return ask_inside(args, switch)
        args.switch = switch.at
    named = args.switch is not None
    args.switch = args.switch or ("127.0.0.1", PORT)
    if not args.switch[1]:
        raise UsageError("--switch needs the port the switch listens at, such as 127.0.0.1:26963")
    where = "{}:{}".format(*args.switch)
    head = {"action": args.action, "switch": where, "job": args.job}
    try:
        controller = Controller(
            args.switch,
            args.job,
            timeout=args.timeout,
            bind=args.bind,
            key=given_key(args.key_file),
        )
    except OSError as error:
        if isinstance(error, gaierror):
            raise UsageError(
                f"cannot reach {where}: {error.strerror}; is the name of the host right?"
            ) from None
        local = "{}:{}".format(*args.bind)
        raise UsageError(
            f"cannot reach {where} from {local}: {error.strerror}; is --switch an address of this "
            "network, and --bind a free one of this machine?"
        ) from None
    try:
        with controller:
            report = act(controller, args)
    except WorkerError as error:
        status = "NO_WORKERS" if isinstance(error, NoWorkers) else "NO_ANSWER"
        if isinstance(error, NoSuchJob):
            status = "WAITING" if isinstance(error, JobWaits) else "NO_SUCH_JOB"
        if isinstance(error, Refused):
            status = error.status.name
        unheard = isinstance(error, SwitchUnreachable) and not error.denied
        hint = _running() if unheard and not named else ""
        if args.json:
            print(json.dumps({**head, "status": status, "message": f"{error}{hint}"}))
        else:
            print(f"iswitch ctl: {error}{hint}", file=sys.stderr)
        return 1
    print(json.dumps({**head, "status": "OK", **report.fields}) if args.json else report.line)
    return 0


def _running() -> str:
    """Say which networks of this user run, and how to ask their switches; "": none runs."""
    folders = runs()
    told = [_shown(folder, "" if len(folders) == 1 else f" {folder}") for folder in folders]
    return "".join(f"; {one}" for one in told if one)


def _shown(folder: Path, place: str) -> str:
    """Say that a network runs, and how to ask its switch; "": it has just ended.

    Args:
        folder: the network's.
        place: how `iswitch ctl snapshot` is told of it.
    """
    try:
        network = Network.read(folder)
    except (OSError, OutsideError):
        return ""
    asks = shlex.join([*network.entry, "iswitch", "ctl"])
    ask = f", and `{asks} ... --switch {network.control}` asks it" if network.control else ""
    return f"{network.title} runs: `iswitch ctl snapshot{place}` shows it{ask}"
