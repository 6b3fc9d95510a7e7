"""Every listing of docs/torch.md runs as it stands there, in two processes."""

from __future__ import annotations

import pytest

from .conftest import Where
from .ranks import free_port, in_processes
from .test_docs import BLOCK, ROOT

LISTINGS = [t for tag, t in BLOCK.findall((ROOT / "docs" / "torch.md").read_text()) if tag == "py"]


def run(_rank: int, _size: int, code: str) -> None:
    exec(compile(code, "listing", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("listing", LISTINGS)
def test_listing(switch: Where, listing: str) -> None:
    assert "26963" in listing
    code = listing.replace("26963", str(switch[1]))
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    met_at_the_switch = {} if "iswitch://" in listing else address

    def variables(rank: int) -> dict[str, str]:
        return {"RANK": str(rank), "WORLD_SIZE": "2", **met_at_the_switch}

    in_processes(run, 2, code, variables=variables)
