"""The listings of docs/federated.md: members and their coordinator, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import Where
from tests.docs.test_docs import BLOCK
from tests.support import ROOT

PAGE = ROOT / "docs" / "federated.md"
WHERE = '("127.0.0.1", 26963)'


def test_the_listings(switch: Where, tmp_path: Path) -> None:
    member, coordinator = (text for tag, text in BLOCK.findall(PAGE.read_text()) if tag == "python")
    assert WHERE in member
    assert WHERE in coordinator
    files = []
    for name, text in (("member", member), ("coordinator", coordinator)):
        files.append(tmp_path / f"{name}.py")
        files[-1].write_text(text.replace("26963", str(switch[1])))
    words = [[files[0], str(rank)] for rank in range(4)] + [[files[1]]]
    running = [
        subprocess.Popen(
            [sys.executable, *map(str, line)], stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "ISWITCH_FAST": "0"},
        )
        for line in words
    ]  # fmt: skip
    try:
        outputs = [one.communicate(timeout=60)[0] for one in running]
    finally:
        for one in running:
            one.kill()
    assert [one.returncode for one in running] == [0] * 5
    learned = "[1. 2. 3. 4. 5.]\n"
    assert outputs == [f"{rank} {learned}" for rank in range(4)] + [learned]
