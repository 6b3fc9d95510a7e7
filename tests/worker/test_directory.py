"""Addresses in vectors: what sums of them tell."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.core.format.wire import DType
from worker_lib.asynchronous.directory import Directory

pytestmark = pytest.mark.unit

A, B = ("10.0.0.7", 40001), ("192.168.255.254", 65535)


@pytest.mark.parametrize("dtype", [d for d in DType if d < DType.BOOL])
def test_sums_tell_who_is_in_them(dtype: DType) -> None:
    """Also how many gradients; a greeting is none. Several of one worker are one address."""
    directory = Directory(3)
    kind = dtype.numpy
    entries = [directory.entry(0, A, kind, counts=True)] * 5
    entries += [directory.entry(5, B, kind, counts=False)] * 3
    total = np.zeros(directory.size, kind)
    for entry in entries:
        total = (total + entry).astype(kind)
    assert directory.contributions(total) == 5
    directory.learn(total)
    assert directory.addresses == {A, B}
    other = Directory(3)
    other.learn_packed(directory.pack())
    assert other.addresses == {A, B}


def test_two_in_one_place_tell_nothing() -> None:
    directory = Directory(2)
    kind = np.dtype(np.float32)
    directory.learn(directory.entry(1, A, kind, True) + directory.entry(1, B, kind, True))
    assert not directory.addresses


def test_who_has_no_place_is_not_listed_and_counts() -> None:
    directory = Directory(1)
    entry = directory.entry(2, A, np.dtype(np.float32), counts=True)
    directory.learn(entry)
    assert not directory.addresses
    assert directory.contributions(entry) == 1


def test_who_was_gone_is_learned_again() -> None:
    directory = Directory(2)
    entry = directory.entry(1, A, np.dtype(np.float32), counts=True)
    for _ in range(2):
        directory.learn(entry)
        assert directory.addresses == {A}
        directory.forget(A)
        assert not directory.addresses
