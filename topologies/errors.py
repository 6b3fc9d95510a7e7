"""Errors of topologies, whose messages say how to mend them."""

from __future__ import annotations

from iswitch.outside import OutsideError


class TopologyError(OutsideError, ValueError):
    """A description that no builder could build; the message names the fault and the mend."""


class NetworkError(OutsideError, RuntimeError):
    """This machine cannot build the network; the message names what is missing and the mend."""


class PrivilegeError(NetworkError, PermissionError):
    """This process may not build networks."""
