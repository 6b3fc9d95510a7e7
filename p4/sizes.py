"""Reads the sizes of the data plane from `sizes.p4`, which has the reasons."""

from __future__ import annotations

import re
from pathlib import Path

PROGRAM = Path(__file__).parent
DEFINE = re.compile(r"^#define (\w+) (\w+)$", re.MULTILINE)

SIZES = {
    name: int(number, 0)
    for name, number in DEFINE.findall((PROGRAM / "sizes.p4").read_text(encoding="utf-8"))
}
