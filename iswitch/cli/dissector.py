"""Teach Wireshark and tshark the protocol: put a dissector into your folder of Lua plugins.

  iswitch dissector --install      for the next start of Wireshark or tshark
  iswitch dissector --uninstall
  iswitch dissector --print > iswitch.lua && tshark -X lua_script:iswitch.lua ...

The folder is the one that tshark names, or ~/.local/lib/wireshark/plugins where there is no tshark.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--install", action="store_true", help="write the plugin")
    what.add_argument("--uninstall", action="store_true", help="remove it")
    what.add_argument("--print", action="store_true", help="print it, and write nothing")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="the folder, instead of yours")


def run(args: argparse.Namespace) -> int:
    """Install, remove or print the dissector."""
    from iswitch.dissect.install import install, uninstall
    from iswitch.dissect.plugin import dissector

    if args.print:
        print(dissector(), end="")
    else:
        (uninstall if args.uninstall else install)(args.folder)
    return 0
