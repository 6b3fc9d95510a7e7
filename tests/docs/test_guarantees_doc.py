"""Every test that docs/guarantees.md names exists, and every promise names one."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.unit

PAGE = (ROOT / "docs" / "guarantees.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)))


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_the_tests_exist(path: str, name: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert name in found if name else found


def test_every_promise_names_its_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "---" not in line]
    promises = [row.strip("| ").split(" | ") for row in rows if not row.startswith("| promise")]
    assert len(promises) > 20
    for promise, _, shown in promises:
        assert "`tests/" in shown or "the same" in shown, promise
