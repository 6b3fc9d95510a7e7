"""Mininet, with iSwitches: for `mn --custom topologies/mininet.py`, and for Python.

mn --custom topologies/mininet.py --topo star,4 --switch iswitch --controller none --test pingall

`mn` executes this file without saying where it is, and takes every name in it for one of its own:
so it imports from the installed package, and defines as few names as possible.
"""

from __future__ import annotations

from topologies.mn.network import Network
from topologies.mn.switch import ISwitch, P4Switch
from topologies.mn.topo import TOPOS as topos
from topologies.mn.topo import TopologyTopo

switches = {"iswitch": ISwitch, "bmv2": P4Switch}

__all__ = ["ISwitch", "Network", "P4Switch", "TopologyTopo", "switches", "topos"]
