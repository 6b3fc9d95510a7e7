"""Ask a switch for one thing, and print what it answered."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from socket import gaierror

from iswitch.outside import UsageError
from iswitch.system.keyfiles import given_key
from worker_lib.controller import Controller, NoSuchJob, NoWorkers
from worker_lib.errors import Refused, WorkerError

from .actions import Answer

Act = Callable[[Controller, argparse.Namespace], Answer]


def ask(args: argparse.Namespace, act: Act) -> int:
    """Do one action at the switch that the options name; return the exit status.

    Raises:
        UsageError: the switch cannot be reached from the local address.
    """
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
            status = "NO_SUCH_JOB"
        if isinstance(error, Refused):
            status = error.status.name
        if args.json:
            print(json.dumps({**head, "status": status, "message": str(error)}))
        else:
            print(f"iswitch ctl: {error}", file=sys.stderr)
        return 1
    print(json.dumps({**head, "status": "OK", **report.fields}) if args.json else report.line)
    return 0
