"""Values of control packets, drawn at random."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from iswitch.core.format.wire import (
    MOST_NAMED,
    RANKS,
    SHOW_PADDING,
    VALUES,
    AckJob,
    AckRanks,
    AckWho,
    Action,
    Awaited,
    Control,
    Present,
    Show,
    Status,
    TreeJoin,
)

BITS = {"B": 8, "H": 16, "I": 32}
hosts = st.tuples(*[st.integers(0, 255)] * 4).map(lambda four: ".".join(map(str, four)))
shorts = st.integers(0, 2**16 - 1)
awaited = st.builds(Awaited, hosts, shorts, shorts, hosts, shorts)
present = st.builds(Present, hosts, shorts, shorts, st.integers(0, 2**32 - 1))


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a kind, every field over all that its bytes can hold."""
    if kind is None:
        return st.none()
    if kind is Show:
        padding = st.binary(min_size=SHOW_PADDING, max_size=SHOW_PADDING)
        return st.builds(kind, shorts, shorts, padding)
    codes = kind.FORMAT.format.lstrip(">")
    numbers = [st.integers(0, 2 ** BITS[code] - 1) for code in codes]
    if kind in (TreeJoin, AckRanks):
        bitmap = st.integers(0, RANKS).flatmap(lambda bits: st.integers(0, (1 << bits) - 1))
        return st.builds(kind, *numbers, bitmap)
    if kind in (AckWho, AckJob):
        entry = awaited if kind is AckWho else present
        return st.builds(kind, *numbers, st.lists(entry, max_size=MOST_NAMED).map(tuple))
    return st.builds(kind, *numbers)


@st.composite
def controls(draw: st.DrawFn) -> Control:
    action = draw(st.sampled_from(Action))
    value = draw(st.one_of([values(kind) for kind in VALUES[action]]))
    status = draw(st.integers(0, 255)) if action is Action.ACK else Status.OK
    job, request = draw(st.integers(0, 2**16 - 1)), draw(st.integers(0, 2**32 - 1))
    return Control(action, job, request, value, status)
