"""Makes README's picture: the page of `iswitch web` while a round of a simulated job fills.

`python -m tests.support.picture docs/web.png` (or `make picture`) writes an animated PNG. One link
of the network loses packets, and one worker is slow; equal packages make equal pictures, but for
fonts.
"""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from iswitch.cli import main as iswitch
from tests.support import ROOT
from tests.support.browser import Browser, browser
from topologies import Host, Link, Switch, Topology

WIDTH = 920  # pixels
COLOURS = 64  # the page has few
ROUND = 4  # that is seen to fill
FRAMES = 14
PAUSE = 220  # milliseconds between two
LAST = 1500  # milliseconds of the last one
HOSTS = ("h1", "h2", "h3", "h4")


def network() -> Topology:
    """Describe a star of four hosts; the link of h2 loses 2 % of the packets."""
    links = [
        Link.of(host, "s1", rate="100Mbit", **({"loss": "2%"} if host == "h2" else {}))
        for host in HOSTS
    ]
    return Topology(tuple(map(Host, HOSTS)), (Switch("s1"),), tuple(links))


def frames(about: dict[str, Any], scene: dict[str, Any]) -> list[int]:
    """Choose the frames of the picture: equally far apart in time, while the round fills.

    Args:
        about: the times of all frames.
        scene: what is seen in the last one.
    """
    told = next(one for one in scene["jobs"][0]["recent"] if one["round"] == ROUND)
    begin = told["ended"] - told["seconds"]
    wanted = [begin + told["seconds"] * at / (FRAMES - 1) for at in range(FRAMES)]
    return [bisect_right(about["times"], when) - 1 for when in wanted]


def fetched(tab: Browser, path: str) -> dict[str, Any]:
    """Have the page fetch a JSON object."""
    found: dict[str, Any] = tab.value(f"fetch({path!r}).then((answer) => answer.json())")
    return found


def shots(tab: Browser, url: str) -> list[Image.Image]:
    """Show the frames in a browser; return what is seen above the tables."""
    tab.visit(url, WIDTH)
    tab.until("Number(document.body.dataset.looks ?? 0) >= 1")
    about = fetched(tab, "about")["trace"]
    last = fetched(tab, f"frames/{len(about['times']) - 1}")
    found = []
    for at in frames(about, last):
        tab.slide("position", at)
        tab.until(f"document.body.dataset.frame === '{at}'")
        bottom = tab.value("document.getElementById('h-jobs').parentNode.offsetTop")
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": bottom - 8, "scale": 1}
        shot = tab.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        found.append(Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB"))
    return found


def write(images: Sequence[Image.Image], path: Path) -> None:
    """Write an animated PNG with few colours."""
    height = max(image.height for image in images)
    canvas = [Image.new("RGB", (WIDTH, height), "white") for _ in images]
    for ground, image in zip(canvas, images, strict=True):
        ground.paste(image)
    palette = canvas[-1].quantize(COLOURS)
    first, *rest = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in canvas]
    durations = [PAUSE] * (len(images) - 1) + [LAST]
    first.save(
        path, format="PNG", save_all=True, append_images=rest, duration=durations, optimize=True
    )


def make(path: Path, tab: Browser) -> None:
    """Make the picture in a browser."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "lossy.toml").write_text(network().to_toml())
        trace = f"{folder}/job.pcapng"
        job = ["--numel", "120000", "--rounds", str(ROUND + 1), "--slow", "2", "--compute", "40"]
        assert iswitch(["generate", trace, "--topology", f"{folder}/lossy.toml", *job]) == 0
        command = [sys.executable, "-m", "iswitch", "web", "--listen", "127.0.0.1:0"]
        with subprocess.Popen(
            [*command, "--trace", "job.pcapng", "--topology", "lossy.toml"],
            cwd=folder, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                assert process.stdout is not None
                write(shots(tab, process.stdout.readline().split()[1]), path)
            finally:
                process.kill()


if __name__ == "__main__":
    with browser() as opened:
        make(Path(sys.argv[1]), opened)
