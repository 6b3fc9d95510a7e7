"""Show a switch, a whole network or a trace as a page in the browser: live, or at any speed.

iswitch web                       the network that iswitch run, demo, train or bench started last
iswitch web /tmp/s1.sock          the switch of `iswitch switch --watch /tmp/s1.sock`
iswitch web --trace s1.pcapng     a trace, with a slider; options as for `iswitch replay`

Serves the page until Ctrl-C. Whoever watches can change nothing. docs/web.md.
"""

from __future__ import annotations

import argparse

from iswitch.faults.units import TIME
from iswitch.lab.options import host_port, port_here, quantity

from .ctl import add_place
from .replay import add_trace

PORT = 8265
LISTEN = f"127.0.0.1:{PORT}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_place(parser)
    parser.add_argument(
        "--listen",
        type=listen_at,
        default=LISTEN,
        metavar="[HOST:]PORT",
        help="where to serve the page; port 0: any (default: %(default)s)",
    )
    parser.add_argument(
        "--every",
        type=quantity(0.1, TIME),
        default=0.5,
        metavar="SECONDS",
        help="how often to look, while anybody watches (default: %(default)s)",
    )
    add_trace(parser, "--trace")


def run(args: argparse.Namespace) -> int:
    """Serve it; return the exit status."""
    from iswitch.lab.web.command import web

    return web(args)


def listen_at(text: str) -> tuple[str, int]:
    """Parse HOST[:PORT], or a port of this machine."""
    if text.isdecimal():
        return port_here(text)
    return host_port(text if ":" in text else f"{text}:{PORT}")
