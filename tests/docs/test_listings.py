"""Listings of the pages that build networks print what stands below them; Mininet's commands."""

from __future__ import annotations

import os
import shlex

import pytest

from tests.docs.test_docs import OF_MININET, SHOWN
from tests.support import python
from tests.support.networks import mn

pytestmark = pytest.mark.serial


@pytest.mark.parametrize(("listing", "output"), SHOWN)
def test_listing_with_its_output(listing: str, output: str) -> None:
    if ("netns" in listing or "mininet" in listing) and os.geteuid() != 0:
        pytest.skip("building namespaces needs root")
    done = python("-c", listing)
    assert done.stdout == output, done.stderr
    assert not done.stderr or "mininet" in listing  # which tells there what it does


@pytest.mark.root(reason="Mininet needs root")
@pytest.mark.parametrize("command", OF_MININET)
def test_commands_of_mininet(command: str) -> None:
    assert "Results: 0% dropped" in mn(*shlex.split(command)[1:])
