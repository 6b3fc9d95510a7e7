"""Open MPI's own processes: the command of mpirun, and the daemon of a host."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import IO

from .errors import RendezvousError

HELPER = [sys.executable, "-I", "-S", str(Path(__file__).with_name("mpi_helper.py"))]
PREFIX = "iswitch-mpi-"  # of folders


BTLS = {"tcp": "tcp", "shm": "vader"}  # ways of Open MPI: ours, and its names for them


class Daemon:
    """Open MPI's daemon on this host, a child process; the end of the `with` statement kills it.

    By default the daemon moves to the background and prints nothing, and mpirun waits forever if it
    dies there. So it stays a child of this process, which can report what it prints.

    Daemons with one host name share a folder below TMPDIR. They overwrite one another's map of the
    machine and remove files that others are about to use, which now and then kills a daemon. All
    namespaces of a machine have one host name, so each daemon gets its own TMPDIR.
    """

    def __init__(self, command: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
        words = [word for word in shlex.split(command) if word != "--daemonize"]
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  (the daemon has it)
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=self._complaints,
            stderr=self._complaints,
            start_new_session=True,
            env={**os.environ, "TMPDIR": self._folder.name},
        )

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._complaints.close()
        self.remove()

    def remove(self) -> None:
        """Remove the daemon's files; they are also removed when this process ends."""
        self._folder.cleanup()

    def check(self) -> None:
        """Check that the daemon runs.

        Raises:
            RendezvousError: the daemon has ended; the message quotes its output.
        """
        status = self._process.poll()
        if status is not None:
            says = said(self._complaints) or "nothing"
            raise RendezvousError(
                f"Open MPI's daemon on this host has ended with status {status}; it says: {says}"
            )


def command(hosts: Sequence[str], folder: str, btl: str = "tcp") -> list[str]:
    """Return the mpirun command for ranks on these hosts.

    Args:
        hosts: address of each rank's host.
        folder: path of the folder with the sockets, see `mpi_helper`.
        btl: "tcp": through the links; "shm": through shared memory, on one host.
    """
    network = str(spanning(hosts))
    parameters = {
        "pml": "ob1",
        "btl": f"{BTLS[btl]},self",  # unless told, it would take shared memory where it can
        "btl_tcp_if_include": network,
        "plm_rsh_agent": shlex.join([*HELPER, "agent", folder]),
        "plm_rsh_no_tree_spawn": "1",
        "mpi_yield_when_idle": "1",  # it polls; others may need the core
    }
    if len(set(hosts)) > 1:
        parameters["oob_tcp_if_include"] = network
    slots = ",".join(f"{host}:{hosts.count(host)}" for host in dict.fromkeys(hosts))
    options = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    options += ["--oversubscribe", "--host", slots, "-n", str(len(hosts))]
    for name, value in parameters.items():
        options += ["--mca", name, value]
    return ["mpirun", *options, *HELPER, "rank", folder]


def spanning(hosts: Sequence[str]) -> IPv4Network:
    """Return the smallest network, /30 or larger, that contains all of these addresses.

    With a /32 network Open MPI 4.1.4 also uses other interfaces, and waits forever.
    """
    addresses = [IPv4Address(host) for host in hosts]
    found = IPv4Network((addresses[0], 30), strict=False)
    while not all(address in found for address in addresses):
        found = found.supernet()
    return found


def said(complaints: IO[bytes]) -> str:
    """Return what a process has written to its output file, stripped."""
    complaints.seek(0)
    return complaints.read().decode(errors="replace").strip()
