"""torchrun on two machines, each a namespace, with the switch on a third: as in the cookbook."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import BLOCK
from tests.support import ROOT, python

pytestmark = pytest.mark.serial

PATIENCE = 300.0  # seconds until a test is given up; every process imports torch by itself

TRAIN = """
import torch
import worker_lib.torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
distributed.init_process_group("iswitch")
rank, size = distributed.get_rank(), distributed.get_world_size()
torch.manual_seed(rank)
model = DistributedDataParallel(nn.Sequential(nn.Linear(50, 200), nn.ReLU(), nn.Linear(200, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.randn(8, 50)).square().mean().backward()
    optimizer.step()
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
all_weights = [torch.empty_like(weights) for _ in range(size)]
distributed.all_gather(all_weights, weights)
equal = all(torch.equal(weights, other) for other in all_weights)
told = torch.zeros(1, dtype=torch.int64)  # point-to-point: gloo, from one machine to the other
works = distributed.batch_isend_irecv([
    distributed.P2POp(distributed.isend, torch.tensor([rank]), (rank + size // 2) % size),
    distributed.P2POp(distributed.irecv, told, (rank - size // 2) % size),
])
for work in works:
    work.wait()
distributed.barrier()
print(f"rank {rank} of {size}: weights equal: {equal}, heard from {told.item()}", flush=True)
distributed.destroy_process_group()
"""


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.root(reason="building namespaces needs root")
def test_two_machines_and_the_switch_on_a_third(tmp_path: Path) -> None:
    """What docs/torch.md has for train.py does less: tests/torch/test_torch_doc.py."""
    script, told = tmp_path / "train.py", tmp_path / "told.json"
    script.write_text(TRAIN)
    (text,) = [
        text
        for tag, text in BLOCK.findall((ROOT / "docs" / "cookbook.md").read_text())
        if tag == "sh" and "torchrun" in text
    ]
    command = shlex.split(
        text.replace("torchrun", f"{sys.executable} -m torch.distributed.run")
        .replace("train.py", str(script))
        .replace("--world", f"--json {told} --world")
    )
    assert command[0] == "iswitch"
    done = python("-m", *command, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    # Two ranks write to one pipe, so a line's end may come after the other's line.
    heard = set(re.findall(r"rank \d of 4: weights equal: \w+, heard from \d", done.stdout))
    assert heard == {
        f"rank {rank} of 4: weights equal: True, heard from {(rank - 2) % 4}" for rank in range(4)
    }
    (switch,) = json.loads(told.read_text())["switches"].values()
    assert switch["accumulated"] > 0, switch
