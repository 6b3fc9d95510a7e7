"""All cases, by name, in the order of the page."""

from tests.conformance import (
    asynchronous,
    carrying,
    commands,
    elements,
    hostile,
    keyed,
    membership,
    owned,
    ranks,
    rounds,
    showing,
    strangers,
    turns,
)
from tests.conformance.case import REGISTERED, Case

_MODULES = (
    carrying, membership, strangers, ranks, rounds, owned, turns, commands, elements, asynchronous,
    showing, hostile, keyed,
)  # fmt: skip

CASES: dict[str, Case] = {
    name: case
    for module in _MODULES
    for name, case in REGISTERED.items()
    if case.run.__module__ == module.__name__
}
