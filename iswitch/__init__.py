"""A switch in userspace that adds up gradients on their way through (iSwitch, ISCA 2019).

The protocol core (`wire`, `arbiter`, `membership`, `accelerator`, `control`, `switch`) knows
no socket, clock, thread or random number; `ports` and `engine` bring those for a real network.
"""

__version__ = "0.1.0"
