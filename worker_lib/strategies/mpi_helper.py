"""The program that mpirun starts in place of ssh and in place of the workers.

The workers of a group already run when Open MPI connects them, and their hosts run no ssh server.
So `mpirun` gets this file twice: as the agent that starts a daemon on a host, and as the program
that the daemons start:

    mpi_helper.py agent DIR HOST COMMAND...   sends the daemon's command to rank 0, then ends
    mpi_helper.py rank DIR                    sends the environment that a daemon has made for a
                                              rank to that rank's worker, then waits until the
                                              worker ends

It uses only the standard library, since it runs as a script: `python -I -S mpi_helper.py`.
"""

from __future__ import annotations

import json
import os
import socket
import sys

PREFIXES = ("OMPI_", "PMIX_", "OPAL_", "ORTE_")
AGENTS = "agents"  # rank 0's socket in DIR for commands; a rank's socket is named by its number


def tell(path: str, message: object) -> None:
    """Send a message to a Unix socket, then wait until the other side closes."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(json.dumps(message).encode() + b"\n")
        sock.recv(1)


def main(kind: str, folder: str, *rest: str) -> None:
    """Run as an agent or as a rank's stand-in."""
    if kind == "agent":
        tell(f"{folder}/{AGENTS}", [rest[0], " ".join(rest[1:])])
    else:
        made = {name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}
        tell(f"{folder}/{os.environ['OMPI_COMM_WORLD_RANK']}", made)


if __name__ == "__main__":
    main(*sys.argv[1:])
