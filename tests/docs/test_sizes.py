"""Files stay short enough to be read in one sitting."""

from __future__ import annotations

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.unit

MOST = 400  # lines
TABLES = {"iswitch/core/format/wire.py"}  # formats of packets, one after the other
LONG = {"worker_lib/protocol/member.py"}  # too long as yet


def test_files_are_short() -> None:
    paths = [
        path
        for folder in ("iswitch", "worker_lib", "topologies", "p4", "tests")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(paths) > 400
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in paths}
    assert {name for name, count in lines.items() if count > MOST} == TABLES | LONG
