"""Names in virtual time: those of the simulated hosts, and localhost; others are looked up."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from .patches import Patches
from .process import current

_real_host_name = socket.gethostname
_real_by_name = socket.gethostbyname
_real_by_address = socket.gethostbyaddr
_real_infos = socket.getaddrinfo


def _hosts() -> dict[str, str]:
    """Return the addresses of the hosts that the caller knows, by name."""
    task = current()
    return {} if task is None else task.process.home.hosts


def _host_name() -> str:
    """Return the name of the caller's host."""
    task = current()
    return _real_host_name() if task is None else task.process.home.name


def _by_name(name: str) -> str:
    """Return a host's address."""
    return _hosts().get(name) or _real_by_name(name)


def _by_address(address: str) -> tuple[str, list[str], list[str]]:
    """Return a host's name, no others, and its addresses."""
    for name, at in _hosts().items():
        if address in (name, at):
            return name, [], [at]
    return _real_by_address(address)


def _infos(host: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what sockets need to connect to a host, or to listen there, all of it IPv4."""
    found = _real_infos(_hosts().get(host, host), *args, **kwargs)
    if current() is None:
        return found
    return [info for info in found if info[0] == socket.AF_INET] or found


def install(patches: Patches) -> None:
    """Have threads in virtual time know the hosts of their network."""
    shown: dict[str, Callable[..., Any]] = {
        "gethostname": _host_name,
        "gethostbyname": _by_name,
        "gethostbyaddr": _by_address,
        "getaddrinfo": _infos,
    }
    for name, function in shown.items():
        patches.put(socket, name, function)
