"""Prints snapshots for `iswitch ctl snapshot`."""

from __future__ import annotations

import json
import sys
from contextlib import closing

from iswitch.watch.places import titled
from iswitch.watch.reader import Observer


def print_snapshots(place: str | None) -> int:
    """Print the snapshot of each switch there; return 1 if there is none, or one does not answer.

    Raises:
        OutsideError: there is no such place, or what answers is no switch of this version.
    """
    status = 0
    with closing(Observer(place)) as observer:
        found = observer.read()
        if others := observer.others():
            named = f"{titled(observer.place)}, started last; name another one to see it: "
            named += ", ".join(map(titled, others))
            print(f"iswitch ctl: this network is {named}", file=sys.stderr)
        if not found:
            print(f"iswitch ctl: no switch listens in {observer.place}; is it up?", file=sys.stderr)
            status = 1
        for name, snapshot in found.items():
            if snapshot is None:
                print(f"iswitch ctl: switch {name} does not answer; is it up?", file=sys.stderr)
                status = 1
            else:
                print(json.dumps(snapshot))
    return status
