"""What tests of rings share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from iswitch.system.private import folder


@pytest.fixture
def path() -> Iterator[Path]:
    """Of a UNIX socket, in this user's folder."""
    at = folder() / f"test-{os.getpid()}"
    at.parent.mkdir(mode=0o700, exist_ok=True)
    yield at
    assert not at.exists()
