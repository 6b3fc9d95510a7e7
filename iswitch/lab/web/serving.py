"""Serves the page and what it shows: one look at the network for all who watch, none for nobody.

Requests change nothing. A page of another site cannot read what is served: it would need to be of
this origin, and a name that it has made point here (DNS rebinding) is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from aiohttp import web

from iswitch.outside import UsageError, reason
from iswitch.system.boundary import told

from .playing import Played

PAGE = Path(__file__).with_name("page")
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
WATCHERS = 32  # at once
AGAIN = 1000  # milliseconds after which a page that has lost its connection tries again
SLOW = 10.0  # seconds in which a page must take what it is sent
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; style-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class News:
    """Looks again and again while anybody watches, in a thread of its own, and tells all of them.

    Args:
        look: returns what is seen; it may wait.
        every: seconds between two looks.
    """

    def __init__(self, look: Callable[[], dict[str, Any]], every: float) -> None:
        self._look = look
        self._every = every
        self._wanted = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._told = asyncio.Condition()
        self._text = ""
        self._number = 0
        self.watchers = 0
        threading.Thread(target=self._run, name="looks", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            due = time.monotonic() + self._every
            try:
                text = json.dumps(self._look())
            except Exception as error:  # a defect must not freeze the page without a word
                text = json.dumps({"nothing": told(error)[1]})
            with contextlib.suppress(RuntimeError):  # the loop has ended
                asyncio.run_coroutine_threadsafe(self._tell(text), self._loop)
            time.sleep(max(0.0, due - time.monotonic()))

    async def _tell(self, text: str) -> None:
        async with self._told:
            self._text = text
            self._number += 1
            self._told.notify_all()

    async def listen(self) -> AsyncGenerator[str, None]:
        """Yield what is seen, from the next look on; whoever is slow misses some."""
        self.watchers += 1
        self._wanted.set()
        try:
            heard = self._number
            while True:
                async with self._told:
                    while self._number == heard:
                        await self._told.wait()
                    heard, text = self._number, self._text
                yield text
        finally:
            self.watchers -= 1
            if not self.watchers:
                self._wanted.clear()


class Pages:
    """Answers requests.

    Args:
        names: names by which this server may be called, besides IP addresses and localhost.
        news: tells what is seen live.
        played: a trace; None: there is none.
    """

    def __init__(self, names: set[str], news: News | None, played: Played | None) -> None:
        self._names = {"localhost", *names}
        self._news = news
        self._played = played

    def app(self) -> web.Application:
        """Make the application."""
        app = web.Application(middlewares=[self._guard])
        for path in PAGE.iterdir():
            name = "" if path.name == "index.html" else path.name
            app.router.add_get(f"/{name}", file_of(path))
        app.router.add_get("/about", self._about)
        app.router.add_get("/events", self._events)
        app.router.add_get("/frames/{number:[0-9]{1,6}}", self._frame)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_ours(request.headers.get("Host", ""), self._names):
            return web.Response(status=421, text="call this page by its IP address, or localhost\n")
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = web.Response(status=error.status, text=f"{error.reason}\n")
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    async def _about(self, _: web.Request) -> web.Response:
        return web.json_response({"trace": None if self._played is None else self._played.about()})

    async def _frame(self, request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        if self._played is None or number >= len(self._played.frames):
            raise web.HTTPNotFound
        return web.json_response(self._played.frame(number))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._news is None:
            raise web.HTTPNotFound
        if self._news.watchers >= WATCHERS:
            raise web.HTTPServiceUnavailable(reason=f"{WATCHERS} pages watch already")
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"retry: {AGAIN}\n\n".encode())
        async with contextlib.aclosing(self._news.listen()) as told:
            async for text in told:
                async with asyncio.timeout(SLOW):
                    await response.write(f"data: {text}\n\n".encode())
        return response


def file_of(path: Path) -> Handler:
    """Return what answers with a file of the page."""
    body = path.read_bytes()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=KINDS[path.suffix], charset="utf-8")

    return answer


def is_ours(host: str, names: set[str]) -> bool:
    """Return whether a request's Host calls this server by an address, or by one of its names."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower() in names:
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def url_of(host: str, port: int) -> str:
    """Write the address of the page."""
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


async def serve(
    where: tuple[str, int],
    look: Callable[[], dict[str, Any]] | None,
    every: float,
    played: Played | None,
    ready: Callable[[str], None],
) -> None:
    """Serve until this is cancelled.

    Args:
        where: host and port to listen at.
        look: returns what is seen live; None: a trace is played.
        every: seconds between two looks.
        played: a trace; None: there is none.
        ready: called with the address of the page.

    Raises:
        UsageError: the address cannot be had.
    """
    host, port = where
    quiet = logging.getLogger("iswitch.web")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    news = None if look is None else News(look, every)
    app = Pages({host.lower()}, news, played).app()
    runner = web.AppRunner(
        app, access_log=None, logger=quiet, handler_cancellation=True, shutdown_timeout=0.1
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            why = reason(error).rpartition(": ")[2]  # asyncio says first what it attempted
            raise UsageError(
                f"cannot listen at {host}:{port}: {why}; name another --listen"
            ) from None
        ready(url_of(*runner.addresses[0][:2]))
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
