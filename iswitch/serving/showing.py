"""Shows what a switch does to those who may watch it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from iswitch.outside import UsageError
from iswitch.watch.links import links_of
from iswitch.watch.orders import Orders
from iswitch.watch.places import SOCKET, Names
from iswitch.watch.server import Snapshots, watched
from iswitch.watch.snapshot import Subject
from iswitch.watch.spans import Rounds, spans, traced

from .opening import Opened
from .settings import Settings


@contextmanager
def shown(switch: Opened, settings: Settings) -> Iterator[None]:
    """Show a switch during the `with` block, as far as the settings ask for it.

    Raises:
        UsageError: they name a place that cannot be had; the switch's ports are closed.
    """
    snapshots = snapshots_of(switch, settings, Path(settings.watch or ""))
    try:
        with ExitStack() as views:
            if (made := spans()) is not None:
                name = name_of(Path(settings.watch or "")) or switch.where
                views.enter_context(traced(Rounds(switch.engine, switch.record, name, made)))
            if settings.watch is not None:
                orders = Orders(switch.engine, switch.record)
                views.enter_context(watched(settings.watch, snapshots.take, orders.give))
            if settings.metrics is not None:
                from iswitch.watch.metrics import exposed, pages_of  # brings http.server

                views.enter_context(exposed(settings.metrics, pages_of(snapshots.take)))
            yield
    except UsageError:
        switch.engine.port.close()
        raise


def name_of(path: Path) -> str:
    """Return the name of a switch that shows itself at a path; "": it has none."""
    return path.stem if path.suffix == SOCKET else ""


def snapshots_of(switch: Opened, settings: Settings, path: Path) -> Snapshots:
    """Return what builds the snapshots of an opened switch, which is called as its socket."""
    names = Names(path.parent)
    engine = switch.engine
    links = links_of(settings.ports, engine.port, switch.counters, names)
    subject = Subject(name_of(path), switch.where, switch.record, engine.clock(), links)
    return Snapshots(engine, subject, names)
