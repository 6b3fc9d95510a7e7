"""A headless Chromium that says what a page did: over the DevTools protocol, on a pipe.

`python -m tests.support.browser page.html out` writes out-light.png, out-dark.png and
out-narrow.png.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE = 60.0  # seconds for an answer; starting it takes most of that on a busy machine
OPTIONS = [
    "--headless",
    "--remote-debugging-pipe",  # requests come at descriptor 3, answers and events go to 4
    "--no-sandbox",  # it refuses root otherwise
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",  # the browser's own requests, not a page's
]
TROUBLE = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}


class Visit(NamedTuple):
    """What a page did until it was loaded: the URLs it asked for, and what it said or broke."""

    requests: list[str]
    trouble: list[dict[str, Any]]
    width: int  # of its content, in pixels


class Browser:
    """One tab."""

    def __init__(self, requests: int, events: int) -> None:
        self._to, self._from = requests, events
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        limit = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            left = max(0.0, limit - time.monotonic())
            assert select.select([self._from], [], [], left)[0], "the browser does not answer"
            data = os.read(self._from, 1 << 16)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def visit(self, page: Path | str, width: int = 1280, dark: bool = False) -> Visit:
        """Load a page: a file, or a URL."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        sizes = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **sizes)
        self.events.clear()
        url = page if isinstance(page, str) else page.absolute().as_uri()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        asked = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return Visit(
            [event["params"]["request"]["url"] for event in asked],
            [event for event in self.events if event.get("method") in TROUBLE],
            size["width"],
        )

    def value(self, expression: str) -> Any:
        """Return the value of an expression in JavaScript, of what it promises if it is one."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true; return its value."""
        limit = time.monotonic() + PATIENCE
        while not (found := self.value(expression)):
            assert time.monotonic() < limit, f"never true: {expression}"
            time.sleep(0.05)
        return found

    def press(self, key: str) -> None:
        """Press and release a key, as its event names it."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def slide(self, name: str, value: object) -> None:
        """Move the slider that has this id."""
        move = f"one.value = {json.dumps(value)}; one.dispatchEvent(new Event('input'))"
        self.value(f"((one) => {{ {move} }})(document.getElementById({json.dumps(name)}))")

    def screenshot(self, path: Path) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        requests_out, requests_in = os.pipe()
        events_out, events_in = os.pipe()
        for descriptor in (requests_in, events_out):
            stack.callback(os.close, descriptor)
        ends = f'exec chromium "$@" 3<&{requests_out} 4>&{events_in} 2>/dev/null'
        process = subprocess.Popen(
            ["bash", "-c", ends, "bash", *OPTIONS, f"--user-data-dir={folder}"],
            pass_fds=(requests_out, events_in),
            start_new_session=True,
        )
        os.close(requests_out)
        os.close(events_in)
        stack.callback(process.wait)
        stack.callback(process.kill)
        yield Browser(requests_in, events_out)


def main() -> None:
    page, out = Path(sys.argv[1]), sys.argv[2]
    with browser() as tab:
        for name, width, dark in (("light", 1280, False), ("dark", 1280, True), ("narrow", 390, 0)):
            print(name, tab.visit(page, width, bool(dark)))
            tab.screenshot(Path(f"{out}-{name}.png"))


if __name__ == "__main__":
    main()
