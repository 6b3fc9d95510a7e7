"""What mpirun starts, in place of ssh and in place of the workers; both only pass something on.

The workers of a group run already when Open MPI is to connect them, and on their hosts nobody waits
for ssh. So `mpirun` gets this file twice, once as the agent that starts a daemon on a host, once as
the program that the daemons start:

    mpi_helper.py agent DIR HOST COMMAND...   hands the daemon's command to rank 0, and ends
    mpi_helper.py rank DIR                    hands the environment that a daemon has made for a
                                              rank to the worker of that rank, and stays as long

Alone with the standard library, since it is run as a script: `python -I -S mpi_helper.py`.
"""

from __future__ import annotations

import json
import os
import socket
import sys

PREFIXES = ("OMPI_", "PMIX_", "OPAL_", "ORTE_")
AGENTS = "agents"  # the socket in DIR at which rank 0 takes commands; a rank's has its number


def tell(path: str, message: object) -> None:
    """Send a message, and wait until the other side closes."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(json.dumps(message).encode() + b"\n")
        sock.recv(1)


def main(kind: str, folder: str, *rest: str) -> None:
    """Be one of the two."""
    if kind == "agent":
        tell(f"{folder}/{AGENTS}", [rest[0], " ".join(rest[1:])])
    else:
        made = {name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}
        tell(f"{folder}/{os.environ['OMPI_COMM_WORLD_RANK']}", made)


if __name__ == "__main__":
    main(*sys.argv[1:])
