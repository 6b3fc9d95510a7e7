"""The UDP ports from which a switch speaks to the switch above: one for each job, its line.

Data names no job; its sender's address does. So a switch with several jobs needs several addresses.
A job has the same line in each process of a switch: so a restarted switch speaks from the port that
its parent knows. Lines lie above the ports that Linux gives to sockets by itself.
"""

from __future__ import annotations

FIRST, SPAN = 61000, 4536  # ports of lines
LINES = SPAN - 1  # lines 1 to LINES; line 0 is the port at which the switch listens
STEP = 257  # between the lines of neighbouring ports: switches of one host stay apart


def line_of(job: int) -> int:
    """Return the line of a job; jobs whose numbers differ by LINES share one."""
    return 1 + job % LINES


def port_of(line: int, listening: int) -> int:
    """Return the UDP port of a line of a switch that listens at port `listening`."""
    if not line:
        return listening
    port = FIRST + (listening * STEP + line) % SPAN
    return FIRST - 1 if port == listening else port


def line_at(port: int, listening: int) -> int | None:
    """Return the line that has a UDP port at a switch that listens at `listening`, or None."""
    if port == listening:
        return 0
    usual = listening if port == FIRST - 1 else port
    line = (usual - FIRST - listening * STEP) % SPAN
    return line if 1 <= line <= LINES and port_of(line, listening) == port else None
