"""Programs that run on hosts of a network, and what becomes of the lines that they print."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from iswitch.outside import writing
from iswitch.system.files import write

from .processes import Child
from .restarts import Restarts

if TYPE_CHECKING:
    from topologies import Topology

COLOURS = (36, 33, 32, 35, 34, 31)  # of terminals (ECMA-48): cyan first, red last


class Program(NamedTuple):
    """A command that runs as the workers of one job.

    Attributes:
        command: the program and its arguments.
        job: number of the job.
        hosts: the host of each rank; processes on one host follow each other.
        per_host: processes on each host.
        name: what it is called beside others; "": it is alone.
        variables: what its environment has besides, by name.
    """

    command: Sequence[str]
    job: int
    hosts: Sequence[str]
    per_host: int = 1
    name: str = ""
    variables: Mapping[str, str] = MappingProxyType({})

    def called(self, rank: int) -> str:
        """Return what the lines of a process begin with."""
        host = self.hosts[rank]
        own = host if self.per_host == 1 else f"{host}.{rank % self.per_host}"
        return f"{self.name} {own}".lstrip()


def everywhere(topology: Topology, command: Sequence[str], job: int, per_host: int = 1) -> Program:
    """Make a program of which `per_host` processes run on every host of a network."""
    hosts = [host.name for host in topology.hosts for _ in range(per_host)]
    return Program(command, job, hosts, per_host)


@dataclass
class WorkerProcess:
    """One process of a program.

    Attributes:
        number: its number among the processes of all programs.
    """

    program: Program
    number: int
    host: str
    rank: int
    local_rank: int
    name: str  # what its lines begin with
    environment: Mapping[str, str]
    child: Child
    restarts: Restarts = field(default_factory=Restarts)
    status: int | None = None  # as a shell has it: 128 + n for a signal

    @property
    def own(self) -> str:
        """Return its name without that of its program."""
        return self.name.removeprefix(f"{self.program.name} ")

    @property
    def called(self) -> str:
        """Return its name, rank and process, for messages."""
        return f"{self.name} (rank {self.rank}, process {self.child.process.pid})"


class Printer:
    """Prints lines after the name of the process that wrote them, in colour on a terminal.

    Each program has a colour; each process, if there is only one program.
    """

    def __init__(self, programs: Sequence[Program]) -> None:
        names = {
            one.called(rank): at if len(programs) > 1 else rank
            for at, one in enumerate(programs)
            for rank in range(len(one.hosts))
        }
        width = max(map(len, names))
        plain = {name: f"{name:{width}} | " for name in names}
        coloured = {
            name: f"\x1b[{COLOURS[names[name] % len(COLOURS)]}m{text}\x1b[0m"
            for name, text in plain.items()
        }
        self._prefixes = {
            file: coloured if file.isatty() and not os.environ.get("NO_COLOR") else plain
            for file in (sys.stdout, sys.stderr)
        }

    def print(self, worker: WorkerProcess, line: str, is_error: bool) -> None:
        """Print a line, to stderr if it came from stderr."""
        file = sys.stderr if is_error else sys.stdout
        file.write(f"{self._prefixes[file][worker.name]}{line}\n")
        file.flush()


class Logs:
    """Writes the lines of each program to a file NAME.log, after the names of their hosts.

    Args:
        folder: the folder of the files.
        programs: the programs.

    Raises:
        OutsideError: a file cannot be written.
    """

    def __init__(self, folder: Path, programs: Sequence[Program]) -> None:
        self._paths = {one.name: folder / f"{one.name}.log" for one in programs}
        for path in self._paths.values():
            write(path, "")

    def note(self, worker: WorkerProcess, line: str) -> None:
        """Write a line of a process.

        Raises:
            OutsideError: it cannot be written: the disk is full, say.
        """
        path = self._paths[worker.program.name]
        with writing(str(path)), path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{worker.own} | {line}\n")
