"""Times at which something may be due."""

from __future__ import annotations

import pytest

from iswitch.core.format.times import earlier

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("one", "other", "due"),
    [(None, None, None), (2.0, None, 2.0), (None, 0.0, 0.0), (0.0, 3.0, 0.0), (5.0, 4.0, 4.0)],
)
def test_earlier(one: float | None, other: float | None, due: float | None) -> None:
    assert earlier(one, other) == due
