"""A switch in userspace that adds up gradients on their way through (iSwitch, ISCA 2019).

ARCHITECTURE.md shows the rooms. `core` knows no socket, clock, thread or random number; `ports` has
the sockets and clocks of a real network.
"""

__version__ = "0.1.0"
