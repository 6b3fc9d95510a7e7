"""torch.distributed through an iSwitch; to import it registers the backend "iswitch".

import worker_lib.torch
torch.distributed.init_process_group("iswitch", init_method="iswitch://127.0.0.1:26963/7")
"""

from __future__ import annotations

try:
    from torch import distributed
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "worker_lib.torch needs PyTorch: pip install '.[torch]' (in a checkout of iswitch)",
        name=error.name,
    ) from None
from torch.distributed.rendezvous import register_rendezvous_handler

from .address import SCHEME, rendezvous
from .channels import Options
from .group import SwitchGroup, create
from .hook import SwitchState, ddp_hook

__all__ = ["Options", "SwitchGroup", "SwitchState", "ddp_hook"]

distributed.Backend.register_backend(SCHEME, create, extended_api=True, devices=["cpu", "cuda"])
register_rendezvous_handler(SCHEME, rendezvous)  # type: ignore[no-untyped-call]
