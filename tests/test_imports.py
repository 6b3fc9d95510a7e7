"""Imports run one way: core <- ports, engine, sim <- worker_lib <- topologies <- soak <- cli.

Importing stays cheap.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from iswitch.cli import COMMANDS

ROOT = Path(__file__).parent.parent
CORE = [
    "units",
    "impairment",
    "outside",
    "wire",
    "packets",
    "who",
    "showing",
    "ranks",
    "buffers",
    "keys",
    "answers",
    "limits",
    "sources",
    "counters",
    "arbiter",
    "membership",
    "accelerator",
    "asynchronous",
    "paper",
    "job",
    "jobs",
    "relay",
    "hierarchy",
    "uplink",
    "requests",
    "admission",
    "control",
    "switch",
    "forward",
    "frame",
    "sorting",
    "segmentation",
    "forwarding",
    "issuing",
    "claims",
    "guard",
    "chassis",
    "pcapng",
    "parts",
    "made_up",
]
OUTSIDE_WORLD = {
    "socket",
    "time",
    "datetime",
    "random",
    "secrets",
    "threading",
    "select",
    "selectors",
    "os",
    "asyncio",
    "subprocess",
    "multiprocessing",
    "signal",
    "ctypes",
}


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
    inner = [f"{base}.{alias.name}" for alias in node.names]
    return [base, *(name for name in inner if name in PATHS)]


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
from .. import cli
from ..ports.udp import UdpPort
from . import mmsg
if TYPE_CHECKING:
    from ..wire import Ack
def late():
    import socket
class Body:
    import json
"""
    found = imports_of("iswitch.ports.made_up", source, False)
    early = {"os.path", "iswitch", "iswitch.cli", "iswitch.ports.udp", "json"}
    early |= {"iswitch.ports", "iswitch.ports.mmsg"}
    assert found == Imports(early | {"iswitch.wire", "socket"}, early)
    assert imports_of("iswitch.cli", "from .host import Host", True).all == {"iswitch.cli.host"}


def test_every_module_of_the_core_is_there() -> None:
    assert {f"iswitch.{name}" for name in CORE} <= set(MODULES)


@pytest.mark.parametrize("name", CORE)
def test_core_imports_the_core_only(name: str) -> None:
    inside = {"iswitch", "iswitch.line", *(f"iswitch.{core}" for core in CORE)}
    assert project(MODULES[f"iswitch.{name}"].all) <= inside


@pytest.mark.parametrize("name", CORE)
def test_core_knows_no_socket_clock_thread_or_chance(name: str) -> None:
    roots = {imported.partition(".")[0] for imported in MODULES[f"iswitch.{name}"].all}
    assert not roots & OUTSIDE_WORLD
    source = PATHS[f"iswitch.{name}"].read_text(encoding="utf-8")
    used = {ast.unparse(n) for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Attribute)}
    assert not {name for name in used if name.startswith(("np.random", "numpy.random"))}
    called = {n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)}
    assert not called & {"__import__", "open", "print", "input"}


def test_a_line_is_core_and_brings_its_own_chance() -> None:
    """Faults are seeded: no chance but that of a generator made for one line."""
    used = MODULES["iswitch.line"].all
    assert project(used) <= {"iswitch", "iswitch.impairment"}
    assert not {imported.partition(".")[0] for imported in used} & OUTSIDE_WORLD
    source = PATHS["iswitch.line"].read_text(encoding="utf-8")
    nodes = ast.walk(ast.parse(source))
    attributes = [ast.unparse(n) for n in nodes if isinstance(n, ast.Attribute)]
    chances = {name for name in attributes if name.startswith("np.random.")}
    assert chances == {"np.random.default_rng"}


def test_the_simulated_world_imports_the_core_only() -> None:
    """So it looks at no clock, and what is random in it is what a line draws."""
    inside = {"iswitch", "iswitch.line", *(f"iswitch.{core}" for core in CORE)}
    simulated = [name for name in MODULES if within(name, "iswitch.sim")]
    assert "iswitch.sim.network" in simulated
    for name in simulated:
        used = {i for i in MODULES[name].all if not within(i, "iswitch.sim")}
        assert project(used) <= inside, name
        assert not {imported.partition(".")[0] for imported in used} & OUTSIDE_WORLD, name


def test_ports_and_engine_do_not_look_up() -> None:
    lower = [name for name in MODULES if within(name, "iswitch.ports", "iswitch.engine")]
    assert "iswitch.ports.udp" in lower
    assert "iswitch.engine" in lower
    ports = [name for name in lower if within(name, "iswitch.ports")]
    assert not [name for name in ports if "iswitch.engine" in MODULES[name].all]
    for name in lower:
        up = {
            i
            for i in MODULES[name].all
            if within(i, "worker_lib", "topologies", "iswitch.cli", "iswitch.sim", "tests")
        }
        assert not up, name


def test_worker_lib_uses_little_of_the_switch() -> None:
    names = ("wire", "packets", "counters", "keys", "keyfiles", "ports.udp", "outside", "files")
    allowed = {f"iswitch.{name}" for name in names}
    workers = [name for name in MODULES if within(name, "worker_lib")]
    assert "worker_lib.client" in workers
    for name in workers:
        used = {i for i in project(MODULES[name].all) if not within(i, "worker_lib")}
        assert used <= allowed, name


def test_a_soak_is_of_simulated_worlds_and_for_the_cli() -> None:
    own = [name for name in MODULES if within(name, "iswitch.soak")]
    assert "iswitch.soak.run" in own
    others = ("worker_lib", "topologies", "iswitch.ports", "iswitch.engine", "iswitch.cli")
    for name in own:
        used = {i for i in MODULES[name].all if within(i, *others)}
        allowed = {"worker_lib", "topologies", "topologies.simulated"}
        allowed |= {f"worker_lib.{name}" for name in ("session", "versions", "waiting", "errors")}
        assert used <= allowed, name
        assert not {"socket", "time", "threading"} & MODULES[name].all, name
    users = {name for name, i in MODULES.items() if any(within(x, "iswitch.soak") for x in i.all)}
    assert all(within(name, "iswitch.soak", "iswitch.cli") for name in users)


def test_dissecting_is_for_people_only() -> None:
    """It needs formats alone, and nobody but the command line and tests needs it."""
    own = [name for name in MODULES if within(name, "iswitch.dissect")]
    assert "iswitch.dissect.scapy" in own
    formats = {f"iswitch.{name}" for name in ("wire", "keys")}
    for name in own:
        used = {i for i in project(MODULES[name].all) if not within(i, "iswitch.dissect")}
        assert used <= {"iswitch", *formats}, name
        assert not {imported.partition(".")[0] for imported in MODULES[name].all} & OUTSIDE_WORLD
    users = {n for n, i in MODULES.items() if any(within(x, "iswitch.dissect") for x in i.all)}
    assert all(within(name, "iswitch.dissect", "iswitch.cli") for name in users)
    importers = {n for n, i in MODULES.items() if any(within(x, "scapy") for x in i.all)}
    assert importers == {"iswitch.dissect.scapy"}


def test_a_bench_is_above_the_worker_library_and_for_the_cli() -> None:
    own = [name for name in MODULES if within(name, "iswitch.bench")]
    assert "iswitch.bench.member" in own
    for name in own:
        up = {i for i in MODULES[name].all if within(i, "topologies", "iswitch.cli", "tests")}
        assert not up, name
    users = {name for name, i in MODULES.items() if any(within(x, "iswitch.bench") for x in i.all)}
    assert all(within(name, "iswitch.bench", "iswitch.cli") for name in users)
    assert not project(MODULES["iswitch.page"].all)


def test_the_p4_program_knows_nothing_of_the_switch_and_its_control_plane_is_for_the_cli() -> None:
    """The generator and the tools stand alone; who asks the data plane is below the commands."""
    program = [name for name in MODULES if within(name, "p4")]
    assert "p4.lanes" in program
    for name in program:
        assert all(within(used, "p4") for used in project(MODULES[name].all)), name
    own = [name for name in MODULES if within(name, "iswitch.bmv2")]
    assert "iswitch.bmv2.link" in own
    for name in own:
        others = ("worker_lib", "topologies", "iswitch.cli", "iswitch.sim", "tests")
        assert not {i for i in MODULES[name].all if within(i, *others)}, name
    users = {name for name, i in MODULES.items() if any(within(x, "iswitch.bmv2") for x in i.all)}
    assert all(within(name, "iswitch.bmv2", "iswitch.cli") for name in users)
    users = {name for name, i in MODULES.items() if any(within(x, "p4") for x in i.all)}
    assert all(within(name, "p4", "iswitch.bmv2", "iswitch.cli") for name in users)


BUILDERS = (
    "netns", "mininet", "mn", "namespaces", "ethtool", "children", "simulated", "synthetic",
    "bridges",
)  # fmt: skip


def test_topologies_are_below_the_cli_only() -> None:
    for name, imports in MODULES.items():
        if not within(name, "topologies", "iswitch.cli", "iswitch.soak"):
            assert not {i for i in imports.all if within(i, "topologies")}, name
        if within(name, "topologies"):
            assert not {i for i in imports.all if within(i, "iswitch.cli", "tests")}, name


def test_a_description_is_passive() -> None:
    builders = [f"topologies.{name}" for name in BUILDERS]
    passive = [n for n in MODULES if within(n, "topologies") and not within(n, *builders)]
    assert "topologies.description" in passive
    for name in passive:
        roots = {imported.partition(".")[0] for imported in MODULES[name].all}
        assert not roots & OUTSIDE_WORLD, name
        assert not {i for i in MODULES[name].all if within(i, *builders)}, name


def test_nothing_imports_the_cli_but_itself() -> None:
    users = {name for name, i in MODULES.items() if any(within(x, "iswitch.cli") for x in i.all)}
    assert "iswitch.__main__" in users
    assert {name for name in users if not within(name, "iswitch.cli")} == {"iswitch.__main__"}


def test_no_import_cycles() -> None:
    """Among what is imported at load, packages' own files included."""
    graph = {
        name: {target for target in imports.at_load if target in MODULES and target != name}
        for name, imports in MODULES.items()
    }
    done: set[str] = set()
    while ready := {name for name in graph if name not in done and graph[name] <= done}:
        done |= ready
    assert set(graph) - done == set()


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
    assert "numpy" in run(f"import iswitch.switch; {show}").split()  # it would be seen


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
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value == 26963
    }
    assert holders == {"iswitch.wire"}
