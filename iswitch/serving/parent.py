"""The switch above a switch: where it is, which port leads to it, and whether it answers."""

from __future__ import annotations

import socket

from iswitch.core.format.packets import Address
from iswitch.core.jobs.hierarchy import Hierarchy
from iswitch.outside import UsageError, reason

from .settings import Settings

ANYWHERE = "0.0.0.0"
UNHEARD = 8  # Joins in a row, which take 2 s, without an answer


def parent_of(settings: Settings) -> Address | None:
    """Find the parent: its IPv4 address and UDP port, and the port of this switch towards it.

    Raises:
        UsageError: the parent has no port or no address, or no such port leads to it.
    """
    if settings.parent is None:
        return None
    return Address(*resolved(settings.parent), uplink(settings))


def resolved(parent: tuple[str, int]) -> tuple[str, int]:
    """Look up the IPv4 address of the parent's host.

    Raises:
        UsageError: the host has no address, or the port is missing.
    """
    host, port = parent
    if not port:
        raise UsageError("--parent needs the port it listens at, such as 10.26.255.254:26963")
    try:
        return socket.gethostbyname(host), port
    except OSError as error:
        raise UsageError(f"--parent {host}: {reason(error)}; name a host or address") from None


def uplink(settings: Settings) -> int:
    """Find the index of the port that leads to the parent: the last, unless one is named."""
    if not settings.ports:
        return 0
    if settings.uplink is None:
        return len(settings.ports) - 1
    if settings.uplink not in settings.ports:
        raise UsageError(
            f"--uplink {settings.uplink} is none of --ports {','.join(settings.ports)}"
        )
    return settings.ports.index(settings.uplink)


def check_parent(settings: Settings, host: str, port: int) -> None:
    """Refuse a parent that is the switch itself.

    Args:
        settings: settings of this switch.
        host: address at which it listens.
        port: the UDP port it listens at.

    Raises:
        UsageError: the parent listens there.
    """
    if settings.parent is None:
        return
    above, at = resolved(settings.parent)
    anywhere = ANYWHERE in (host, above)
    if at == port and (above == host or (anywhere and is_here(above))):
        given = "{}:{}".format(*settings.parent)
        raise UsageError(f"--parent {given} is this switch; name the one above it")


def is_here(host: str) -> bool:
    """Tell whether an IPv4 address is one of this machine's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((host, 0))
        except OSError:
            return False
    return True


def unheard(hierarchy: Hierarchy | None) -> list[int]:
    """List the jobs whose Joins to the parent were repeated for seconds, and not answered.

    Other threads than the switch's may call this.

    Args:
        hierarchy: speaks to the parent; None: there is none.
    """
    uplinks = list(hierarchy.uplinks.items()) if hierarchy else []
    return [job for job, one in uplinks if one.is_joining and one.requests.sends >= UNHEARD]
