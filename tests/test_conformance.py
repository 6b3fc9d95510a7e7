"""Every conformance case against the switch this package starts, over real sockets."""

from collections.abc import Iterator

import pytest

from tests.conformance.case import run
from tests.conformance.cases import CASES
from tests.conformance.client import Address, CaseSkipped


@pytest.mark.parametrize("name", CASES)
def test_conformance(name: str, switch: Address, jobs: Iterator[int]) -> None:
    """The switch keeps the promise this case is about."""
    try:
        run(CASES[name], switch, jobs)
    except CaseSkipped as skipped:
        pytest.skip(str(skipped))
