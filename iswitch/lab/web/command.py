"""`iswitch web`, from its options to its end."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from iswitch.outside import UsageError, extra

MEND = f"{extra('web')}, or watch with `iswitch top`"


def web(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C; return the exit status.

    Raises:
        OutsideError: aiohttp is missing, the address cannot be had, or there is nothing to show.
    """
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise UsageError(f"the page needs aiohttp: {MEND}") from None
    from .live import Live
    from .playing import Played
    from .serving import serve

    if args.trace and args.place:
        raise UsageError("--trace plays a file, and PATH is watched live; leave one out")
    played = Played(args) if args.trace else None
    live = None if played else Live(args.place)

    def ready(url: str) -> None:
        print(f"open {url}", flush=True)
        if not is_loopback(args.listen[0]):
            words = "whoever can connect to this machine can read it; nobody can change anything"
            print(words, flush=True)

    look = live.look if live else None
    until_interrupted(lambda: serve(args.listen, look, args.every, played, ready))
    return 0


def until_interrupted(serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run what serves until Ctrl-C, which interrupts no event loop that is being made or closed."""
    came = []
    signal.signal(signal.SIGINT, lambda *_: came.append(True))

    async def heeding() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        if not came:
            await serve()

    with suppress(asyncio.CancelledError):
        asyncio.run(heeding())


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
