"""What tests of kernels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def checked() -> Iterator[None]:
    """Kernels that check every index; switches in processes of their own have those that do not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_BOUNDSCHECK", "1")
        patch.delenv("ISWITCH_FAST", raising=False)
        yield
