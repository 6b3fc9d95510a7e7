"""Numba that cannot be used: switches go on in Python."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from iswitch.core.switch import Switch
from iswitch.fast import engine, loading
from iswitch.ports.udp import UdpPort


def test_a_switch_serves_in_python_where_numba_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(name: str) -> None:
        if name.endswith("switch_kernel"):
            raise trouble
        raise AssertionError(name)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "numba", MagicMock())
    monkeypatch.delitem(sys.modules, "iswitch.fast.switch_kernel", raising=False)
    monkeypatch.setattr(loading, "import_module", broken)
    for trouble in (
        ImportError("Numba needs NumPy 2.3 or less"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    ):
        port = UdpPort(("127.0.0.1", 0))
        served = engine.FastEngine(Switch(), port)
        served.load()
        assert served._lane is None
        assert str(trouble.args[-1]) in capsys.readouterr().err
        for one in (served._wake, served._waker):
            os.close(one)
        port.close()
