"""One self-contained HTML page of sections, tables and figures, for reports that open from disk.

    page = Page("iSwitch benchmark", "4 workers, star:4")
    page.section("Time against size")
    page.text("Medians, with quartiles.")
    page.table(["size", "ms"], [["40 kB", 0.115]], caption="…")
    with drawing():
        figure = Figure()  # of matplotlib
        (line,) = figure.subplots().plot([4, 16], [1, 3], color=COLOURS[0])
        line.set_gid("line")
    page.figure(figure, "Time against size", {"line": "iswitch: 0.115 ms"})
    page.code("iswitch bench --html bench.html")
    page.download("bench.json", "application/json", text)
    page.write("bench.html")

All text is escaped. The page loads nothing and runs no script, and its content security policy
forbids both. So it looks the same offline, and years later. It follows the reader's choice of light
or dark. Figures are SVG in the page's own colours: make them in `drawing()`, with `INK` for what is
text and `GRID` for what is faint, and colour data by `COLOURS`, which can be told apart on both
grounds. A figure is best 5 inches wide, the default: its text can be read on a phone, and a wide
page shows two side by side.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.etree import ElementTree

from iswitch.lab.options import PIP_DEMO
from iswitch.outside import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, GRID = "#010203", "#040506"  # never seen: the page's own colours take their place
COLOURS = ("#3b7dd8", "#e0772b", "#2f9e63", "#b25fd0", "#d1495b", "#1a9fae", "#9a7b2f", "#7a7f87")
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --faint: #5d6675; --ground: #ffffff;
  --card: #f6f7f9; --line: #d9dde3; --accent: #2563c9; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --faint: #9aa4b2;
  --ground: #14171c; --card: #1c2027; --line: #343b46; --accent: #7fb0ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 72rem; color: var(--ink);
  background: var(--ground); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
p { margin: .5rem 0; max-width: 46rem; }
.subtitle, figcaption, caption { color: var(--faint); }
a { color: var(--accent); }
.figures { display: grid; gap: 1rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; padding: .75rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; }
figure svg { display: block; width: 100%; height: auto; max-width: 44rem; margin: 0 auto; }
figcaption { font-size: .875rem; margin-top: .5rem; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .25rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: left;
  white-space: nowrap; }
th { border-bottom-width: 2px; }
td.number, th.number { text-align: right; }
pre { overflow-x: auto; padding: .75rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; font-size: .875rem; }
"""
NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?\s?(%|x|ms|us|s|kB|MB|GB)?")


class Page:
    """Builds a page; `html` returns it.

    Args:
        title: title of the page and of its window.
        subtitle: line below the title; "": none.
    """

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title = title
        self._parts = [f"<h1>{escape(title)}</h1>"]
        if subtitle:
            self._parts.append(f'<p class="subtitle">{escape(subtitle)}</p>')
        self._figures = 0
        self._in_figures = False  # which stand side by side

    def _add(self, part: str) -> None:
        if self._in_figures:
            self._parts.append("</div>")
            self._in_figures = False
        self._parts.append(part)

    def section(self, title: str) -> None:
        """Begin a section."""
        self._add(f"<h2>{escape(title)}</h2>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._add(f"<p>{escape(text)}</p>")

    def code(self, text: str) -> None:
        """Add text as it stands, such as a command."""
        self._add(f"<pre>{escape(text)}</pre>")

    def download(self, name: str, kind: str, text: str) -> None:
        """Add a link that saves `text`, kept in the page, as a file of the media type `kind`."""
        data = f"data:{kind};charset=utf-8,{quote(text)}"
        self._add(f'<p><a download="{escape(name)}" href="{data}">{escape(name)}</a></p>')

    def table(
        self, head: Sequence[str], rows: Sequence[Sequence[object]], caption: str = ""
    ) -> None:
        """Add a table; columns of numbers are set to the right."""
        texts = [[str(cell) for cell in row] for row in rows]
        right = [
            bool(texts) and all(not row[i] or NUMBER.fullmatch(row[i]) for row in texts)
            for i in range(len(head))
        ]

        def line(tag: str, cells: Sequence[str]) -> str:
            marks = [' class="number"' if is_right else "" for is_right in right]
            pairs = zip(marks, cells, strict=True)
            return "<tr>" + "".join(f"<{tag}{m}>{escape(c)}</{tag}>" for m, c in pairs) + "</tr>"

        body = "".join(line("td", row) for row in texts)
        named = f"<caption>{escape(caption)}</caption>" if caption else ""
        self._add(
            f'<div class="scroll"><table>{named}<thead>{line("th", head)}</thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def figure(self, figure: Figure, caption: str, hints: Mapping[str, str] | None = None) -> None:
        """Add a figure; consecutive ones stand side by side where there is room.

        Args:
            figure: made in `drawing()`.
            caption: a sentence that says what it shows.
            hints: texts to show when the pointer rests on an artist, by the artist's gid
                (`set_gid`).
        """
        if not self._in_figures:
            self._parts.append('<div class="figures">')
            self._in_figures = True
        self._figures += 1
        picture = svg(figure, hints or {}, f"f{self._figures}-")
        self._parts.append(
            f'<figure role="img" aria-label="{escape(caption)}">{picture}'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )

    def html(self) -> str:
        """Return the whole document."""
        end = "</div>" * self._in_figures
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<link rel="icon" href="data:,"><title>{escape(self.title)}</title>'
            f"<style>{STYLE}</style></head>\n<body>\n"
            + "\n".join(self._parts)
            + f"{end}\n</body></html>\n"
        )

    def write(self, path: str) -> None:
        """Write the page to a file.

        Raises:
            OSError: the file cannot be written.
        """
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.html())


def check_drawing(option: str = "--html") -> None:
    """Refuse an option where matplotlib is missing.

    Raises:
        UsageError: it is missing; the message says how to install it.
    """
    if find_spec("matplotlib") is None:
        raise UsageError(f"{option} draws with matplotlib: {PIP_DEMO}")


@contextmanager
def drawing() -> Iterator[None]:
    """Make a context in which matplotlib draws for pages: real text, a faint grid and no box."""
    from matplotlib import rc_context

    text = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    settings: dict[Any, Any] = dict.fromkeys(text, INK)
    settings |= {
        "svg.fonttype": "none",
        "svg.hashsalt": "iswitch",  # equal data, equal file
        "font.family": "sans-serif",
        "font.size": 10,
        "figure.figsize": (5, 3.6),
        "figure.constrained_layout.use": True,
        "axes.edgecolor": GRID,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
    }
    with rc_context(settings):
        yield


def svg(figure: Figure, hints: Mapping[str, str], prefix: str) -> str:
    """Write a matplotlib figure as an SVG element; its ids begin with `prefix`."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with drawing():
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    root = ElementTree.fromstring(file.getvalue())
    for element in root.findall(f"{{{SVG}}}metadata"):
        root.remove(element)
    del root.attrib["width"], root.attrib["height"]  # as wide as there is room
    for element in list(root.iter()):
        hint = hints.get(element.get("id", ""))
        if hint is not None:
            title = ElementTree.Element(f"{{{SVG}}}title")
            title.text = hint
            element.insert(0, title)
        for name, value in element.attrib.items():
            if name == "id":
                element.set(name, prefix + value)
            elif name == f"{{{XLINK}}}href":
                element.set(name, value.replace("#", f"#{prefix}", 1))
            else:
                element.set(name, value.replace("url(#", f"url(#{prefix}"))
    text = ElementTree.tostring(root, encoding="unicode")
    return text.replace(INK, "var(--ink)").replace(GRID, "var(--line)")
