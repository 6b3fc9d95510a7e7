"""Reads and writes topologies as TOML files; docs/topologies.md describes the format."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from iswitch.outside import reading

from .errors import TopologyError
from .parts import Host, Link, Switch
from .plan import SUBNET, Plan
from .specs import MAX_HOSTS, P, parse_seed, parse_subnet

MAX_LINKS = 4 * MAX_HOSTS
KINDS = {int: "a whole number", str: "a text in quotes", list: "a list", dict: "a table"}
TOP = {"subnet": str, "hosts": list, "switches": list, "link": dict, "links": list, "seed": int}


def loads(text: str, make: type[P], name: str = "") -> P:
    """Read a topology, an object of the class `make`; `name` is what messages call it.

    Raises:
        TopologyError: not TOML, not a topology, or one that could not be built.
    """
    with reading(name or "the text", TopologyError):
        try:
            return build(tomllib.loads(text), make, name)
        except (tomllib.TOMLDecodeError, TopologyError) as error:
            raise TopologyError(f"{name}: {error}" if name else str(error)) from error


def build(data: dict[str, Any], make: type[P], name: str) -> P:
    """Make a topology of the tables in a file.

    Raises:
        TopologyError: an unknown key, a missing one, or a value of another type.
    """
    expect("the file", data, TOP)
    nodes = len(data.get("hosts", [])) + len(data.get("switches", []))
    if nodes > MAX_HOSTS or len(data.get("links", [])) > MAX_LINKS:
        raise TopologyError(f"there are more than {MAX_HOSTS} nodes or {MAX_LINKS} links")
    common = data.get("link", {})
    for host in data.get("hosts", []):
        if not isinstance(host, str):
            raise TopologyError(f'host {host!r} is not a name; write hosts = ["h1", "h2"]')
    for switch in data.get("switches", []):
        expect("a switch", switch, {"name": str, "parent": str}, "name")
    for link in data.get("links", []):
        expect("a link", link, {"a": str, "b": str, **dict.fromkeys(link, object)}, "a", "b")
    return make(
        tuple(Host(host) for host in data.get("hosts", [])),
        tuple(Switch(**switch) for switch in data.get("switches", [])),
        tuple(Link.of(**(common | link)) for link in data.get("links", [])),
        parse_subnet(data.get("subnet", str(SUBNET))),
        name,
        parse_seed(str(data.get("seed", 0))),
    )


def expect(what: str, table: object, types: Mapping[str, type], *needed: str) -> None:
    """Check that a table has the keys it needs, no others, and values of the right types."""
    if not isinstance(table, dict):
        raise TopologyError(f"{what} is {table!r}; write a table with {', '.join(types)}")
    for key, value in table.items():  # first of all: a misspelt key is also a missing one
        if key not in types:
            raise TopologyError(f"{what} has a {key!r}; it can have {', '.join(types)}")
        if not isinstance(value, types[key]):
            kind = KINDS.get(types[key], f"a {types[key].__name__}")
            raise TopologyError(f"{what}: {key} is {value!r}; give {kind}")
    for key in needed:
        if key not in table:
            raise TopologyError(f"{what} has no {key!r}; it needs {' and '.join(needed)}")


def dumps(topology: Plan) -> str:
    """Write the text of a file that reads back as an equal topology.

    Settings that all links share are written once.
    """
    every = [link.settings() for link in topology.links]
    common = {k: v for k, v in every[0].items() if all(k in s and s[k] == v for s in every)}
    lines = [f'subnet = "{topology.subnet}"']
    lines += [f"seed = {topology.seed}"] if topology.seed else []
    lines += ["hosts = ["]
    lines += [f'  "{host.name}",' for host in topology.hosts] + ["]"]
    if common:
        lines += ["", "[link]", *map(pair, common.items())]
    for switch in topology.switches:
        lines += ["", "[[switches]]", pair(("name", switch.name))]
        if switch.parent is not None:
            lines.append(pair(("parent", switch.parent)))
    for link, settings in zip(topology.links, every, strict=True):
        own = {key: value for key, value in settings.items() if key not in common}
        lines += ["", "[[links]]", *map(pair, {"a": link.a, "b": link.b, **own}.items())]
    return "\n".join(lines) + "\n"


def pair(item: tuple[str, str | int]) -> str:
    """Write a line of TOML; no name and no quantity needs escapes."""
    key, value = item
    return f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
