"""The page of `iswitch web`: what is seen in a browser is what the snapshot says; it only reads."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from iswitch.cli import main, parser
from iswitch.lab.web import playing
from iswitch.lab.web.serving import is_ours, url_of
from iswitch.watch.curve import CURVE, POINTS, Curve
from iswitch.watch.judging import ms
from iswitch.watch.places import Network, made_run
from iswitch.watch.reader import Reader
from tests.conftest import Where, running_switch
from tests.support import ROOT
from tests.support.browser import Browser, browser
from tests.support.picture import make
from worker_lib import Worker

JOB, WORKERS, ROUNDS, NUMEL = 5, 3, 12, 2000  # six segments
PATIENCE = 30.0
HEADER = "default-src 'self'"
MOST_OF_A_PICTURE = 300_000  # bytes


# A page that finds only the networks in this folder.
ONLY = """
import sys
from pathlib import Path
import iswitch.watch.places as places
places.folder = lambda: Path({!r})
from iswitch.__main__ import main
sys.exit(main())
"""


@contextmanager
def web(*words: str, folder: Path | None = None, said: Sequence[str] = ()) -> Iterator[str]:
    """A page: its URL; it must end at once on Ctrl-C.

    `folder` is where networks are looked for, and `said` begins the lines after the first.
    """
    module = ["-m", "iswitch"] if folder is None else ["-c", ONLY.format(str(folder))]
    command = [sys.executable, *module, "web", "--listen", "127.0.0.1:0", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], PATIENCE)[0], "it says nothing"
            word, _, url = process.stdout.readline().strip().partition(" ")
            assert word == "open"
            for line in said:
                assert process.stdout.readline().startswith(line)
            yield url
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def asked(url: str, path: str = "/", **headers: str) -> tuple[int, dict[str, str], bytes]:
    host, _, port = url.removeprefix("http://").strip("/").partition(":")
    with closing(HTTPConnection(host, int(port), timeout=PATIENCE)) as connection:
        method = headers.pop("method", "GET")
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if shutil.which("chromium") is None:
        assert os.geteuid() != 0, "apt-get install chromium, or make tools"
        pytest.skip("chromium is not installed")
    with browser() as tab:
        yield tab


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("w") / "s1.sock"


@pytest.fixture(scope="module")
def where(place: Path) -> Iterator[Where]:
    with running_switch("127.0.0.1:0", "--watch", str(place)) as (_, where):
        yield where


@pytest.fixture(scope="module")
def page(where: Where, place: Path) -> Iterator[str]:  # noqa: ARG001  (the switch must run)
    with web(str(place)) as url:
        yield url


@pytest.fixture(scope="module")
def snapshot(where: Where, place: Path) -> Iterator[dict[str, Any]]:
    """The snapshot of a job that rests after some rounds, whose rank 1 was last."""

    def rounds(worker: Worker) -> None:
        for _ in range(ROUNDS):
            if worker.rank == 1:
                time.sleep(0.01)
            worker.allreduce(np.ones(NUMEL, np.float32))

    with ThreadPoolExecutor(WORKERS) as pool, ExitStack() as all_of_them:
        joining = [pool.submit(Worker, where, JOB, NUMEL, WORKERS, rank=i) for i in range(WORKERS)]
        workers = [all_of_them.enter_context(one.result(PATIENCE)) for one in joining]
        list(pool.map(rounds, workers))
        time.sleep(0.2)  # so that no former snapshot is fresh
        with closing(Reader(place, parts=True)) as reader:
            found = reader.read()
        assert found is not None
        yield found


def cells(tab: Browser, table: str, column: str) -> list[str]:
    """The texts of a column of a table."""
    found: list[str] = tab.value(
        f"[...document.querySelectorAll('#{table} td[data-column={json.dumps(column)}]')]"
        ".map((one) => one.textContent)"
    )
    return found


def texts(tab: Browser, selector: str) -> list[str]:
    found: list[str] = tab.value(
        f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.textContent)"
    )
    return found


def looks(tab: Browser, count: int) -> None:
    tab.until(f"Number(document.body.dataset.looks ?? 0) >= {count}")


def test_what_is_seen_is_the_snapshot(
    chromium: Browser, page: str, snapshot: dict[str, Any]
) -> None:
    visit = chromium.visit(page)
    looks(chromium, 1)
    assert visit.trouble == []
    assert {url.startswith(page) or url == "data:," for url in visit.requests} == {True}
    (job,) = snapshot["jobs"]
    assert cells(chromium, "jobs", "state") == ["running"]
    assert cells(chromium, "jobs", "workers") == [f"{WORKERS}/{WORKERS}"]
    assert cells(chromium, "jobs", "round") == [str(ROUNDS - 1)]
    assert cells(chromium, "jobs", "longest") == [ms(job["rounds"]["longest"])]
    rows = zip(*(cells(chromium, "members", name) for name in ("member", "rank", "missing")),
               strict=True)  # fmt: skip
    assert sorted(rows) == sorted(
        (one["name"], str(one["rank"]), str(one["missing"])) for one in job["members"]
    )
    shares = texts(chromium, "#now .share")
    whole = sum(job["parts"]["segments"])
    assert whole == 6
    counts = [*(sum(one["came"]) for one in job["members"]), sum(job["parts"]["complete"])]
    assert shares == [f"{count / whole:.0%}" for count in counts]
    titles = texts(chromium, "#rounds rect.bar title")
    name_of = {one["seat"]: one["name"] for one in job["members"]}
    assert titles == [
        f"round {one['round']}: {ms(one['seconds'])}, last: {name_of[one['last']]}"
        for one in job["rounds"]["recent"]
    ]
    often = max(one["last"] for one in job["members"])
    slow = next(one["name"] for one in job["members"] if one["last"] == often)
    assert texts(chromium, "#rounds .legend li")[0] == f"{slow} last in {often / ROUNDS:.0%}"
    assert set(texts(chromium, "#network g.host text:first-of-type")) == {
        f"{one['name']} rank {one['rank']}" for one in job["members"]
    }
    drops = cells(chromium, "switches", "drops/s")
    assert drops == ["none"]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.usefixtures("snapshot")
def test_it_fits(chromium: Browser, page: str, width: int, dark: bool) -> None:
    chromium.visit(page, width, dark)
    looks(chromium, 1)
    size = chromium.call("Page.getLayoutMetrics")["cssContentSize"]
    assert size["width"] <= width
    ground = chromium.value("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") != dark


@pytest.mark.usefixtures("snapshot")
def test_keys_pause_and_go_on(chromium: Browser, page: str) -> None:
    chromium.visit(page)
    looks(chromium, 1)
    for key in ("Pause", "Go on"):
        assert chromium.value("document.getElementById('pause').textContent") == key
        chromium.press("p")
    focusable = chromium.value(
        "[...document.querySelectorAll('main [tabindex=\"0\"]')].map((one) => one.id)"
    )
    assert focusable == ["jobs", "members", "links", "switches"]


def test_only_reads_and_only_for_its_own_page(page: str) -> None:
    status, headers, body = asked(page)
    assert (status, body[:15]) == (200, b"<!doctype html>")
    assert headers["Content-Security-Policy"].startswith(HEADER)
    assert "Access-Control-Allow-Origin" not in headers
    assert asked(page, Host="evil.example")[0] == 421  # a name that was made to point here
    assert asked(page, "/events", Host="evil.example:8265")[0] == 421
    for path in ("/none", "/../serving.py", "/frames/0", "/%2e%2e/command.py"):
        assert asked(page, path)[0] == 404
    for method in ("POST", "PUT", "DELETE"):
        assert asked(page, method=method)[0] == 405


def test_an_address_that_is_taken_is_refused(
    page: str, capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    taken = page.removeprefix("http://").strip("/")
    assert main(["web", str(place), "--listen", taken]) == 2
    said = capsys.readouterr().err
    why = "address already in use; name another --listen"
    assert said == f"iswitch web: cannot listen at {taken}: {why}\n"
    assert main(["web", "--listen", taken, str(place), "--trace", "x.pcapng"]) == 2
    assert "leave one out" in capsys.readouterr().err


def test_other_addresses_bring_a_warning(place: Path) -> None:
    with web("--listen", "0.0.0.0:0", str(place), said=["whoever can connect"]) as url:
        assert asked(url.replace("0.0.0.0", "127.0.0.1"))[0] == 200


def test_names_of_this_server() -> None:
    for host in ("localhost:8265", "LOCALHOST", "127.0.0.1:1", "127.0.0.1", "[::1]:80", "[::1]",
                 "10.1.2.3:80", "box:8265"):  # fmt: skip
        assert is_ours(host, {"localhost", "box"}), host
    for host in ("", "evil.example", "localhost.evil.example:80", "127.0.0.1.evil.example", ":80"):
        assert not is_ours(host, {"localhost", "box"}), host
    assert url_of("127.0.0.1", 8265) == "http://127.0.0.1:8265/"
    assert url_of("::1", 8265) == "http://[::1]:8265/"


def test_a_switch_that_restarts_is_seen_again(chromium: Browser, tmp_path: Path) -> None:
    place = tmp_path / "s1.sock"
    with ExitStack() as page:
        with running_switch("127.0.0.1:0", "--watch", str(place)):
            chromium.visit(page.enter_context(web(str(place))))
            chromium.until("document.querySelectorAll('#findings .fine').length")
        chromium.until("!!document.querySelector('#findings .stops')")
        assert texts(chromium, "#findings .stops b") == ["switch lost"]
        (told,) = cells(chromium, "switches", "listening")
        assert re.fullmatch(r"no answer for \d+ s", told)
        with running_switch("127.0.0.1:0", "--watch", str(place)):
            chromium.until("document.querySelectorAll('#findings .fine').length")


def test_it_waits_for_the_next_network(
    chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iswitch.watch.places.folder", lambda: tmp_path)
    tmp_path.chmod(0o700)
    with web("--every", "0.1", folder=tmp_path) as url:
        chromium.visit(url)
        chromium.until("document.getElementById('nothing').textContent")
        (said,) = texts(chromium, "#nothing")
        assert said.startswith("no network runs here; start one with `iswitch run`")
        for title in ("star:2 (loopback)", "star:3 (loopback)"):
            with made_run(title) as run:
                assert run is not None
                Network(title).write(run.folder)
                with running_switch("127.0.0.1:0", "--watch", str(run.folder / "s1.sock")):
                    chromium.until(f"document.getElementById('title').textContent === '{title}'")
            chromium.until("!document.getElementById('nothing').hidden")


def test_the_picture_of_readme_can_be_made_again(chromium: Browser, tmp_path: Path) -> None:
    made, shown = tmp_path / "web.png", ROOT / "docs" / "web.png"
    make(made, chromium)
    assert "(docs/web.png)" in (ROOT / "README.md").read_text()
    with Image.open(made) as new, Image.open(shown) as old:
        assert {path.stat().st_size < MOST_OF_A_PICTURE for path in (made, shown)} == {True}
        assert min(new.n_frames, old.n_frames) >= 8  # type: ignore[attr-defined]
        assert new.width == old.width
    told = [one.split("(")[0] for one in texts(chromium, "#findings li")]
    assert told == ["lossy linkthe way to h2 ", "stragglerh2 ", "stragglerh3 "]


def test_a_learning_curve_is_shown(chromium: Browser, tmp_path: Path) -> None:
    curve = Curve("ppo in CartPole-v1", 195.0)
    for at in range(3 * POINTS):
        curve.add((at / 10, at, at / 5))
    assert POINTS / 2 < len(curve.points) <= POINTS
    curve.write(tmp_path)
    Network("star:2 (loopback)").write(tmp_path)
    with (
        running_switch("127.0.0.1:0", "--watch", str(tmp_path / "s1.sock")),
        web(str(tmp_path)) as url,
    ):
        chromium.visit(url)
        looks(chromium, 1)
        seconds, iteration, value = curve.points[-1]
        after = f"after {iteration:,} iterations, {seconds:.0f} s"
        assert texts(chromium, "#curve h3") == [f"{curve.title}: mean return {value:.1f} {after}"]
        shown = chromium.value("document.querySelector('#curve polyline').points.length")
        assert shown == len(curve.points)
        assert texts(chromium, "#title") == ["star:2 (loopback)"]
        curve.write(tmp_path)
        (tmp_path / CURVE).unlink()
        chromium.until("document.getElementById('curve-part').hidden")


def test_a_trace_is_played(chromium: Browser, tmp_path: Path) -> None:
    trace = str(tmp_path / "job.pcapng")
    assert main(["generate", trace, "--numel", "20000", "--rounds", "4", "--slow", "2"]) == 0
    with web("--trace", trace, "--topology", "star:4") as url:
        chromium.visit(url)
        looks(chromium, 1)
        chromium.until("Number(document.getElementById('position').value) > 0")  # it plays
        last = int(chromium.value("document.getElementById('position').max"))
        chromium.slide("position", last)
        chromium.until(f"document.body.dataset.frame === '{last}'")
        assert cells(chromium, "jobs", "round") == ["3"]
        assert len(texts(chromium, "#rounds rect.bar")) == 4
        assert set(texts(chromium, "#now .share")) == {"100%"}
        assert texts(chromium, "#network g.host text:first-of-type")[2] == "h3 rank 2"
        assert any("h3 (rank 2)" in one for one in texts(chromium, "#findings .costs"))
        chromium.press("ArrowLeft")
        chromium.until(f"document.body.dataset.frame === '{last - 1}'")
        chromium.slide("speed", 3)
        assert texts(chromium, "#pace") == ["1000x"]
        chromium.press(" ")
        chromium.until(f"document.body.dataset.frame === '{last}'")
        chromium.until("document.getElementById('play').textContent === 'Play'")


def test_frames_that_are_further_apart_show_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packets between two frames may be handled in another order, for speed."""
    trace = str(tmp_path / "job.pcapng")
    made = ["--numel", "30000", "--rounds", "5", "--loss", "1%", "--slow", "2", "--seed", "3"]
    assert main(["generate", trace, *made]) == 0
    found = []
    for frames in (1_000_000, 40):  # groups as they come; in layers
        monkeypatch.setattr(playing, "FRAMES", frames)
        args = parser(["web"]).parse_args(["web", "--trace", trace, "--topology", "star:4"])
        played = playing.Played(args)
        told = playing.parsed(played.frames[-1])
        members = [one for job in told["jobs"] for one in job["members"]]
        for one in members:
            assert one.pop("silent") + one.pop("lease") == pytest.approx(30.0)
        found.append((told, len(played.frames)))
    (one_by_one, many), (together, few) = found
    assert one_by_one == together
    assert few < 45 < many
    assert together["counters"]["aggregates"]
    assert together["drops"]["late"] + together["drops"]["duplicate"]
    assert len(together["jobs"][0]["rounds"]["recent"]) == 5
