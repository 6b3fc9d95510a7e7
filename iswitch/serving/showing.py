"""Shows what a switch does to those who may watch it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from iswitch.outside import UsageError
from iswitch.watch.links import links_of
from iswitch.watch.places import SOCKET, Names
from iswitch.watch.server import Snapshots, watched
from iswitch.watch.snapshot import Subject

from .opening import Opened
from .settings import Settings


@contextmanager
def shown(switch: Opened, settings: Settings) -> Iterator[None]:
    """Show a switch during the `with` block, as far as the settings ask for it.

    Raises:
        UsageError: they name a place that cannot be had; the switch's ports are closed.
    """
    if settings.watch is None and settings.metrics is None:
        yield
        return
    snapshots = snapshots_of(switch, settings, Path(settings.watch or ""))
    try:
        with ExitStack() as views:
            if settings.watch is not None:
                views.enter_context(watched(settings.watch, snapshots.take))
            if settings.metrics is not None:
                from iswitch.watch.metrics import exposed, pages_of  # brings http.server

                views.enter_context(exposed(settings.metrics, pages_of(snapshots.take)))
            yield
    except UsageError:
        switch.engine.port.close()
        raise


def snapshots_of(switch: Opened, settings: Settings, path: Path) -> Snapshots:
    """Return what builds the snapshots of an opened switch, which is called as its socket."""
    names = Names(path.parent)
    engine = switch.engine
    links = links_of(settings.ports, engine.port, switch.counters, names)
    name = path.stem if path.suffix == SOCKET else ""
    subject = Subject(name, switch.where, switch.record, engine.clock(), links)
    return Snapshots(engine, subject, names)
