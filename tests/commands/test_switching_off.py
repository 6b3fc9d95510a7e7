"""ISWITCH_FAST and ISWITCH_SHM take 0 or 1; any other value is told once, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from iswitch.fast import loading
from iswitch.ports.rings import meeting
from iswitch.system import switches

pytestmark = pytest.mark.unit

SWITCHES = {"ISWITCH_FAST": loading.wanted, "ISWITCH_SHM": meeting.is_wanted}


@pytest.mark.parametrize(("name", "is_wanted"), SWITCHES.items(), ids=SWITCHES)
def test_a_value_that_means_nothing_is_told_once(
    name: str,
    is_wanted: Callable[[], bool],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    switches._say_of.cache_clear()
    monkeypatch.delenv(name, raising=False)
    assert is_wanted()
    for value, wanted in (("", True), ("1", True), ("0", False)):
        monkeypatch.setenv(name, value)
        assert is_wanted() == wanted
    assert not capsys.readouterr().err
    for value in ("maybe", "false"):
        monkeypatch.setenv(name, value)
        assert is_wanted()
        assert is_wanted()
        assert capsys.readouterr().err == (
            f"{name} is {value!r}, which switches nothing off: write {name}=0, or unset it\n"
        )


def test_a_path_of_shared_memory_is_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ISWITCH_SHM", str(tmp_path / "s1.shm"))
    assert meeting.is_wanted()
    assert not capsys.readouterr().err
