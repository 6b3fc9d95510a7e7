"""torch.distributed through an iSwitch: the backend "iswitch".

import torch
torch.distributed.init_process_group("iswitch", init_method="iswitch://127.0.0.1:26963/7")

PyTorch imports this package when it is imported itself (entry point `torch.backends`), so it loads
the rest on first use.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .channels import Options
    from .group import SwitchGroup
    from .hook import SwitchState, ddp_hook

__all__ = ["Options", "SwitchGroup", "SwitchState", "ddp_hook"]
HOMES = {"Options": ".channels", "SwitchGroup": ".group"}  # all else: .hook

NAME = "iswitch"  # of the backend

log = logging.getLogger(__name__)


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(HOMES.get(name, ".hook"), __name__), name)


def __dir__() -> list[str]:
    """List the public names, imported yet or not."""
    return __all__


def autoload() -> None:
    """Register the backend while PyTorch is imported, which must not fail for it."""
    try:
        _register()
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise
        from iswitch.outside import extra

        log.warning(
            "PyTorch does not take the backend %s; install one that does: %s",
            NAME,
            extra("torch"),
            exc_info=True,
        )


def _register() -> None:
    from torch import distributed

    if not distributed.is_available() or hasattr(distributed.Backend, NAME.upper()):
        return
    from torch.distributed.rendezvous import register_rendezvous_handler

    distributed.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    register_rendezvous_handler(NAME, _rendezvous)  # type: ignore[no-untyped-call]
    if "iswitch.virtual.install" in sys.modules:  # else no process is in virtual time
        _refuse_gloo(distributed.distributed_c10d)


def _refuse_gloo(c10d: Any) -> None:
    """Refuse groups of gloo's own in virtual time, which its sockets do not know."""
    from iswitch.virtual.sockets import real_only

    if hasattr(c10d, "ProcessGroupGloo"):
        c10d.ProcessGroupGloo = real_only(c10d.ProcessGroupGloo, "gloo")


def _create(opts: Any, options: Any) -> Any:
    from .creation import create

    return create(opts, options)


def _rendezvous(url: str, **arguments: Any) -> Iterator[Any]:
    from .address import rendezvous

    return rendezvous(url, **arguments)


try:
    autoload()
except ModuleNotFoundError as error:
    from iswitch.outside import extra

    raise ModuleNotFoundError(
        f"worker_lib.torch needs PyTorch: {extra('torch')}",
        name=error.name,
    ) from None
