"""The page of reports: what is put into it comes out of it, and it needs nothing but itself."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from iswitch.lab.reports.page import COLOURS, GRID, INK, Page, drawing
from tests.support.browser import Browser, browser

pytestmark = pytest.mark.unit


def page() -> Page:
    made = Page("A <title>", "and & more")
    made.section("First")
    made.text("a < b")
    made.table(["name", "ms"], [["x", "1.5 ms"], ["<y>", "2,000"]], "All of <it>")
    for width in (1, 2):
        with drawing():
            from matplotlib.figure import Figure

            figure = Figure()
            axes = figure.subplots()
            (line,) = axes.plot([1, 10], [1, 100], color=COLOURS[0], linewidth=width)
            axes.set(xscale="log", yscale="log", xlabel="bytes")
            line.set_gid("line")
        made.figure(figure, f"Figure {width}", {"line": f"hint & {width}"})
    made.code("iswitch bench --html x")
    made.download("x.json", "application/json", '{"a": "<b>"}')
    return made


class Reader(HTMLParser):
    """Looks at whether what is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, _: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_text_is_escaped_and_tags_are_closed() -> None:
    reader = Reader()
    reader.feed(page().html())
    reader.close()
    assert reader.open == []
    for text in ("A <title>", "and & more", "a < b", "All of <it>", "<y>", "hint & 1", "hint & 2"):
        assert text in reader.text
    assert len(set(reader.ids)) == len(reader.ids) > 20  # of two figures that are much alike


def test_what_an_id_refers_to_is_there() -> None:
    html = page().html()
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', html))
    assert used
    for pair in used:
        assert f'id="{pair[0] or pair[1]}"' in html


def test_figures_have_the_colours_of_the_page() -> None:
    html = page().html()
    assert INK not in html
    assert GRID not in html
    assert "var(--ink)" in html
    assert html.count('<div class="figures">') == 1  # side by side


def test_numbers_are_set_to_the_right() -> None:
    html = page().html()
    assert '<td class="number">1.5 ms</td>' in html
    assert "<td>x</td>" in html


def test_equal_data_makes_an_equal_page() -> None:
    assert page().html() == page().html()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if shutil.which("chromium") is None:
        assert os.geteuid() != 0, "apt-get install chromium, or make tools"
        pytest.skip("chromium is not installed")
    with browser() as tab:
        yield tab


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_from_disk(chromium: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    """No console error, no request but for the file, and nothing to be scrolled to the side."""
    path = tmp_path / "page.html"
    page().write(str(path))
    visit = chromium.visit(path, width, dark)
    assert visit.requests == [path.as_uri()]
    assert visit.trouble == []
    assert visit.width <= width


@pytest.mark.slow
def test_the_browser_tells_of_trouble(chromium: Browser, tmp_path: Path) -> None:
    """So the test above can fail."""
    path = tmp_path / "bad.html"
    path.write_text(
        '<script>console.error("x"); undefined_function()</script>'
        '<img src="http://host.invalid/a.png"><div style="width: 9000px">wide</div>'
    )
    visit = chromium.visit(path)
    assert "http://host.invalid/a.png" in visit.requests
    kinds = {event["method"] for event in visit.trouble}
    assert {"Runtime.consoleAPICalled", "Runtime.exceptionThrown"} <= kinds
    assert visit.width >= 9000
    path.write_text(page().html().replace("<h1>", '<img src="http://host.invalid/a.png"><h1>'))
    refused = chromium.visit(path)  # by the page's own policy
    assert [event["method"] for event in refused.trouble] == ["Log.entryAdded"]
