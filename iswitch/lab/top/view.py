"""Draws a scene for a terminal of any size: what is wrong first, then the figures.

Rows that do not fit are left out from the end; the worst stand first.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from iswitch.watch.change import Job, Link, Member
from iswitch.watch.judging import (
    OFTEN,
    Finding,
    Scene,
    findings,
    is_lossy,
    ms,
    sent_again,
    stragglers,
)
from iswitch.watch.rows import among, depth, is_silent, job_rows, link_rows, member_rows, severity

WIDE = 110  # columns, from which there is room for more figures
KEYS = "h Halt  r Reset  f FBcast  t SetH  j next job  q quit"
BAD, NOTABLE, GOOD, FAINT = (
    Style(color="red", bold=True), Style(color="yellow"), Style(color="green"), Style(dim=True),
)  # fmt: skip
MOST_FINDINGS = 5
MOST_JOBS = 3  # in a small terminal


def draw(
    scene: Scene, size: tuple[int, int], foot: str = KEYS, chosen: int | None = None
) -> RenderableType:
    """Draw a scene.

    Args:
        scene: what is known of the network.
        size: columns and rows of the terminal.
        foot: the last line.
        chosen: the job that keys act on; None: there is none.
    """
    width, height = size
    wide = width >= WIDE
    found = findings(scene)
    parts: list[RenderableType] = [title(scene), *told(scene, found)]
    drops = drop_lines(scene, width)
    jobs = job_rows(scene)
    for_jobs = min(len(jobs), max(MOST_JOBS, height // 4))
    left = height - len(parts) - len(drops) - 1 - for_jobs - 1
    links, members = link_rows(scene), member_rows(scene)
    for_links = min(len(links) + 1, max(left // 3, left - len(members) - 1)) if links else 0
    for_members = left - for_links
    parts.append(job_table(jobs, holdings(scene), for_jobs, wide, chosen))
    if members and for_members > 1:
        parts.append(member_table(members, for_members - 1, wide, scene.several))
    if for_links > 1:
        parts.append(link_table(links[: for_links - 1], wide))
    parts += drops
    parts.append(Text(foot, style="reverse", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def title(scene: Scene) -> Text:
    """Name the network, and say how many switches answer."""
    total = len(scene.changes) + len(scene.gone)
    switches = f"{total} switch{'es' * (total != 1)}"
    if scene.gone:
        switches += f", {len(scene.gone)} not answering"
    named = scene.network.title or next(
        (str(change.now["listening"]) for change in scene.changes.values()), "no switch"
    )
    now = max((change.now["time"] for change in scene.changes.values()), default=time.time())
    text = f"iswitch top: {named}, {switches}, {time.strftime('%H:%M:%S', time.localtime(now))}"
    if scene.others:
        text += f"; started last of {len(scene.others) + 1}: `iswitch top {scene.others[0]}` shows "
        text += "another" if len(scene.others) > 1 else "the other"
    return Text(text, style="bold", no_wrap=True, overflow="ellipsis")


def told(scene: Scene, found: Sequence[Finding]) -> list[Text]:
    """Write what is wrong, or that nothing is."""
    if not found:
        if not scene.changes:
            return [Text("! no switch answers yet", style=NOTABLE)]
        busy = any(job.rounds_per_second for change in scene.changes.values()
                   for job in change.jobs())  # fmt: skip
        text = "nothing is wrong" if busy else "idle: no rounds; nothing is wrong"
        return [Text(f"+ {text}", style=GOOD)]
    lines = []
    for one in found[:MOST_FINDINGS]:
        mark, style = ("x", BAD) if one.stops else ("!", NOTABLE)
        line = Text.assemble((f"{mark} {one.what.upper()} ", style), one.told)
        line.no_wrap, line.overflow = True, "ellipsis"
        lines.append(line)
    if len(found) > MOST_FINDINGS:
        lines.append(Text(f"! and {len(found) - MOST_FINDINGS} more", style=NOTABLE))
    return lines


def table(columns: Iterable[str]) -> Table:
    """Make a table without lines; a name that ends in > is of a column of numbers."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for name in columns:
        right = name.endswith(">")
        made.add_column(
            name.rstrip(">"), justify="right" if right else "left", no_wrap=True,
            overflow="ellipsis",
        )  # fmt: skip
    return made


def job_table(
    rows: Sequence[tuple[str, Job]],
    has: dict[int, str],
    room: int,
    wide: bool,
    chosen: int | None,
) -> Table:
    """Draw as many jobs as there is room for, each with what it `has` of memory that it shares."""
    more = ("memory>", "slots open>", "vector") if wide else ()
    more = ("has", *more) if has else more
    names = ("job", "state", "workers>", "H>", "round>", "rounds/s>", "first-last>", "longest>")
    made = table((*names, *more))
    shown = rows if len(rows) <= room else rows[: room - 1]
    for _, job in shown:
        now, shape = job.now, job.now["shape"]
        mark = ">" if now["job"] == chosen and len(rows) > 1 else ""
        good = now["state"] == "running"
        spread = job.spread
        cells: list[Text | str] = [
            f"{mark}{now['job']}" + f" p{now['priority']}" * (now["priority"] > 0),
            Text(now["state"], style=GOOD if good else NOTABLE),
            f"{now['workers']}/{now['expected']}" if now["expected"] else str(now["workers"]),
            f"{now['threshold']}{'*' * now['threshold_set']}",
            f"{now['round']:,}",
            f"{job.rounds_per_second:,.1f}",
            "-" if spread is None else ms(spread),
            ms(now["rounds"]["longest"]) if now["rounds"]["measured"] else "-",
        ]
        if has:
            cells.append(has.get(now["job"], "-"))
        if wide:
            slots = now["slots"]
            cells += [
                nbytes(now["reserved"]),
                "-" if slots is None else f"{slots['open']:,}/{slots['limit']:,}",
                f"{shape['elements']:,} {shape['dtype']} {shape['op']}" if shape else "-",
            ]
        made.add_row(*cells)
    if len(shown) < len(rows):
        made.add_row(Text(f"+{len(rows) - len(shown)}", style=FAINT))
    return made


def holdings(scene: Scene) -> dict[int, str]:
    """Say what each job has of shared memory, at the topmost switch where it shares some."""
    found: dict[int, str] = {}
    for name in sorted(scene.changes, key=lambda name: depth(scene, name)):
        for job in scene.changes[name].jobs():
            if said := holds(job):
                found.setdefault(job.now["job"], said)
    return found


def holds(job: Job) -> str:
    """Say what a job has of memory that it shares: lane and turn, slots, or what is added here."""
    now = job.now
    if now["lane"]:
        turn = {"has": ", its turn", "waits": ", waits"}.get(now["turn"], "")
        return f"lane {now['lane']}{turn}"
    if now["added"] is not None:
        share = job.share_added
        return "no sums yet" if share is None else f"{share:.0%} added"
    slots, shape = now["slots"], now["shape"]
    if slots is None or shape is None or slots["limit"] >= 2 * shape["segments"]:
        return ""
    return f"{slots['limit'] // 2:,} slots"


def member_table(rows: Sequence[tuple[str, Member]], room: int, wide: bool, several: bool) -> Table:
    """Draw as many members as there is room for, each with its job if there are `several`."""
    more = ("pkt/s>", "asked>", "lease>", "address") if wide else ()
    names = ("at", "Mbit/s>", "last in>", "late by>", "missing>", "again/s>")
    made = table(("member", "rank>", *["job>"] * several, *names, *more))
    shown = rows if len(rows) <= room else rows[: room - 1]
    for switch, member in shown:
        now = member.now
        name = "switch " * (now["type"] == "switch") + now["name"]
        late = NOTABLE if among(member, stragglers(member.job)) else Style()
        again = NOTABLE if among(member, sent_again(member.job)) else Style()
        cells: list[Text | str] = [
            Text(name, style=(BAD, NOTABLE, Style())[severity(member)]),
            "-" if now["rank"] is None else str(now["rank"]),
            *[str(member.job.now["job"])] * several,
            switch,
            f"{8 * member.change.rate('bytes') / 1e6:,.1f}",
            Text(f"{member.last:.0%}", style=late if member.last >= OFTEN else ""),
            Text(ms(member.behind) if member.behind else "-", style=late),
            "-" if now["missing"] is None else f"{now['missing']:,}",
            Text(f"{member.again:,.0f}", style=again),
        ]
        if wide:
            cells += [
                f"{member.change.rate('packets'):,.0f}",
                f"{member.change.rate('asked'):,.0f}",
                Text(f"{now['lease']:.0f} s", style=BAD if is_silent(member) else FAINT),
                Text(f"{now['host']}:{now['port']}", style=FAINT),
            ]
        made.add_row(*cells)
    if len(shown) < len(rows):
        made.add_row(Text(f"and {len(rows) - len(shown)} more", style=FAINT))
    return made


def link_table(rows: Sequence[tuple[str, Link]], wide: bool) -> Table:
    """Draw the links."""
    more = ("pkt/s in>", "pkt/s out>", "queue full>") if wide else ()
    names = ("link", "to", "Mbit/s in>", "out>", "load", "lost in>", "lost out>", "again/s>")
    made = table((*names, *more))
    for switch, link in rows:
        now, load = link.now, link.load
        ill = any(is_lossy(link, way) for way in ("in", "out"))
        name = f"{switch} udp" if now["name"] == "udp" else now["name"]
        cells: list[Text | str] = [
            Text(name, style=NOTABLE if ill else Style()),
            now["peer"] or "-",
            f"{link.bits('rx') / 1e6:,.1f}",
            f"{link.bits('tx') / 1e6:,.1f}",
            "-" if load is None else bar(load),
            *(
                Text(f"{link.lost(way):.1%}", style=NOTABLE if is_lossy(link, way) else FAINT)
                for way in ("in", "out")
            ),
            f"{link.again:,.0f}",
        ]
        if wide:
            full = link.change.rate("queue_in") + link.change.rate("queue_out")
            cells += [
                *(f"{link.change.rate(f'{way}_packets'):,.0f}" for way in ("rx", "tx")),
                f"{full:,.0f}",
            ]
        made.add_row(*cells)
    return made


def bar(share: float) -> Text:
    """Draw a share of a rate as a bar and a number."""
    full = min(round(8 * share), 8)
    style = BAD if share > 0.9 else NOTABLE if share > 0.7 else GOOD
    return Text.assemble(("#" * full, style), ("." * (8 - full), FAINT), f" {share:.0%}")


def drop_lines(scene: Scene, width: int) -> list[Text]:
    """Write each switch's memory, the share it adds, and its drops, in three lines at most."""
    lines = []
    for name, change in scene.changes.items():
        memory, drops = change.now["memory"], change.drops()
        said = f"{name}: memory {nbytes(memory['reserved'])} of {nbytes(memory['limit'])}"
        if change.now["policy"] != "static":
            said += f", {change.now['policy']}"
        if (slots := change.now["slots"]) is not None:
            said += f", {slots['taken']:,} of {slots['limit']:,} slots"
        worst = sorted(drops.items(), key=lambda one: -one[1])
        if (share := change.share_added()) is not None:
            said += f"; added here: {share:.0%}"
        said += "; drops/s: " + (", ".join(f"{why} {rate(n)}" for why, n in worst) or "none")
        lines.append(Text(said, no_wrap=True, overflow="ellipsis", style=FAINT))
    dropping = [line for line in lines if not line.plain.endswith("none")]
    told = [line for line in lines if line in dropping or "; added here: " in line.plain]
    shown = (told or lines)[:3]
    for line in shown:
        line.truncate(width, overflow="ellipsis")
        line.style = "" if line in dropping else FAINT
    return shown


def rate(value: float) -> str:
    """Write a rate, with a digit behind the point if it is small."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def nbytes(value: float) -> str:
    """Write a number of bytes in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.{0 if unit == 'B' or value >= 100 else 1}f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
