"""Imports run one way between rooms, as ARCHITECTURE.md has it, and importing stays cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import networkx
import pytest

from iswitch.cli import COMMANDS
from tests.support import ROOT

pytestmark = pytest.mark.unit

PURE = ("iswitch.core", "iswitch.ethernet", "iswitch.faults", "iswitch.sim", "worker_lib.protocol")
OUTSIDE_WORLD = {
    "socket", "time", "datetime", "random", "secrets", "threading", "select", "selectors", "os",
    "asyncio", "subprocess", "multiprocessing", "signal", "ctypes", "io", "pathlib", "tempfile",
}  # fmt: skip


class Imports(NamedTuple):
    """What a module imports, by full name: anywhere in it, and when it is loaded."""

    all: set[str]
    at_load: set[str]


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {
    name_of(path): path
    for package in ("iswitch", "worker_lib", "topologies", "p4")
    for path in sorted((ROOT / package).rglob("*.py"))
}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def targets(module: str, is_package: bool, node: ast.AST) -> list[str]:
    """The modules that one import statement loads."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        parts = module.split(".")
        up = node.level - is_package
        base = ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])
    modules = [f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}" in PATHS]
    return modules if len(modules) == len(node.names) else [base, *modules]


def imports_of(module: str, source: str, is_package: bool) -> Imports:
    found = Imports(set(), set())

    def visit(node: ast.AST, at_load: bool) -> None:
        names = targets(module, is_package, node)
        found.all.update(names)
        if at_load:
            found.at_load.update(names)
        deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, at_load and not deferred and not is_type_checking(node))

    visit(ast.parse(source), True)
    return found


MODULES = {
    name: imports_of(name, path.read_text(encoding="utf-8"), path.name == "__init__.py")
    for name, path in PATHS.items()
}


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def project(names: set[str]) -> set[str]:
    packages = ("iswitch", "worker_lib", "topologies", "p4", "tests")
    return {name for name in names if within(name, *packages)}


def test_the_reader_of_imports() -> None:
    """It sees relative, late and type-only imports, and tells which are loaded."""
    source = """
import os.path
from ... import cli
from ..udp import UdpPort
from . import mmsg
if TYPE_CHECKING:
    from ...core.format.wire import Ack
def late():
    import socket
class Body:
    import json
"""
    found = imports_of("iswitch.ports.kernel.made_up", source, False)
    early = {"os.path", "iswitch.cli", "iswitch.ports.udp", "json", "iswitch.ports.kernel.mmsg"}
    assert found == Imports(early | {"iswitch.core.format.wire", "socket"}, early)
    assert imports_of("iswitch.cli", "from .host import Host", True).all == {"iswitch.cli.host"}


def room(module: str) -> str:
    """The folder that a module is in. What is built of topologies is one room with them."""
    if module == "iswitch.__main__":
        return "iswitch/cli"
    path = str(PATHS[module].parent.relative_to(ROOT))
    return "topologies" if path.startswith("topologies/") else path


# Names that a package hands on when they are wanted are no imports of its room.
HANDED_ON = {"worker_lib"}
ARROWS: dict[str, set[str]] = {room(module): set() for module in MODULES}
for module, imports in MODULES.items():
    if module not in HANDED_ON:
        ARROWS[room(module)] |= {room(name) for name in imports.all if name in PATHS}


def table() -> dict[str, set[str]]:
    """The rooms of ARCHITECTURE.md in their order, and what each may import."""
    lines = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()
    first = lines.index("| room | what is in it | may import |") + 2
    rows: dict[str, set[str]] = {}
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        name, _, others = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name.strip("`")] = {other.strip("` ") for other in others.split(",")} - {"-"}
    return rows


def test_the_table_of_rooms_is_what_is_imported() -> None:
    assert table() == {name: rooms - {name} for name, rooms in ARROWS.items()}


def test_no_room_imports_one_below_it() -> None:
    seen: set[str] = set()
    for name, rooms in table().items():
        assert rooms <= seen, name
        seen.add(name)


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = networkx.DiGraph(
        (module, name)
        for module, imports in MODULES.items()
        if module not in HANDED_ON
        for name in imports.all
        if name in PATHS and name != module
    )
    circles = [set(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1]
    assert circles == []


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, *PURE)])
def test_pure_rooms_know_no_socket_clock_thread_file_or_chance(name: str) -> None:
    roots = {imported.partition(".")[0] for imported in MODULES[name].all}
    assert not roots & OUTSIDE_WORLD
    source = PATHS[name].read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source)))
    used = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    chance = {name for name in used if name.startswith(("np.random.", "numpy.random."))}
    # Faults are seeded: a line makes a generator of its own.
    assert chance == ({"np.random.default_rng"} if name == "iswitch.faults.line" else set())
    called = {node.id for node in nodes if isinstance(node, ast.Name)}
    assert not called & {"__import__", "open", "print", "input"}


def test_the_product_does_without_what_measures_or_shows_it() -> None:
    for name in ARROWS:
        if not name.startswith(("iswitch/lab", "iswitch/cli")):
            assert not [other for other in ARROWS[name] if other.startswith("iswitch/lab")], name
    assert [name for name, rooms in ARROWS.items() if "iswitch/cli" in rooms] == ["iswitch/cli"]


def test_the_p4_program_knows_nothing_of_the_switch() -> None:
    assert ARROWS["p4"] <= {"p4"}


def test_scapy_is_for_its_layers_only() -> None:
    importers = {n for n, i in MODULES.items() if any(within(x, "scapy") for x in i.all)}
    assert importers == {"iswitch.dissect.scapy", "iswitch.dissect.layer_fields"}


def test_a_description_is_passive() -> None:
    """What a network is made of, and how it is written, needs nothing of the machine."""
    passive = ("description", "parts", "plan", "specs", "toml", "drawing", "validation", "errors")
    for name in (f"topologies.{name}" for name in passive):
        roots = {imported.partition(".")[0] for imported in MODULES[name].all}
        assert not roots & (OUTSIDE_WORLD - {"pathlib"}), name
        assert not {
            i
            for i in MODULES[name].all
            if within(i, "topologies") and i.rpartition(".")[2] not in passive
        }, name


# What importing costs


def run(code: str, *options: str) -> str:
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    "module", ["iswitch", "worker_lib", "topologies", "topologies.netns", "iswitch.cli"]
)
def test_importing_loads_nothing_heavy(module: str) -> None:
    heavy = ["numpy", "ml_dtypes", "rich", "matplotlib", "gymnasium", "torch", "asyncio"]
    heavy += ["pyroute2", "mininet"]
    show = f"import sys; print(*[name for name in {heavy!r} if name in sys.modules])"
    assert run(f"import {module}; {show}").split() == []
    assert "numpy" in run(f"import iswitch.core.switch; {show}").split()  # it would be seen


def test_only_the_chosen_command_is_imported() -> None:
    show = "print(*[name for name in sys.modules if name.startswith('iswitch.cli.')])"
    code = f"import sys; from iswitch.cli import parser; parser({{}}).format_help(); {show}"
    none = set(run(code.format("[]")).split())
    assert set(run(code.format("['soak']")).split()) - none >= {"iswitch.cli.soak"}
    assert not none & {f"iswitch.cli.{name}" for name in COMMANDS}


def test_the_port_number_is_written_once() -> None:
    """All else imports it; text for people may name it."""
    holders = {
        name
        for name, path in PATHS.items()
        if "26963" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and node.value == 26963
    }
    assert holders == {"iswitch.core.format.wire"}
