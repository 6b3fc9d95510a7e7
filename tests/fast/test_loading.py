"""Numba that cannot be used: switches go on in Python."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from iswitch.core.switch import Switch
from iswitch.fast import engine, keeping, loading
from iswitch.lab.launch.processes import Child, Fleet
from iswitch.lab.launch.switches import Switches, SwitchFailed
from iswitch.lab.launch.worlds import make_world
from iswitch.ports.udp import UdpPort
from tests.support import python
from topologies import Topology


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


def test_compiled_code_is_kept_only_where_nobody_else_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ISWITCH_FAST", raising=False)
    monkeypatch.setattr(loading, "installed", lambda: True)
    mine = tmp_path / "mine"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(mine))
    assert loading.available()
    assert keeping.cache().stat().st_mode & 0o777 == mine.stat().st_mode & 0o777 == 0o700
    for path, mode in ((keeping.cache(), 0o770), (keeping.cache(), 0o1777), (mine, 0o707)):
        path.chmod(mode)
        loading._refuse.cache_clear()
        assert not loading.available()
        assert not loading.available()
        said = capsys.readouterr().err
        assert f"others can write to {path}" in said
        assert "NUMBA_CACHE_DIR" in said
        assert said.count("\n") == 1, "it is said once"
        path.chmod(0o700)
    mine.chmod(0o1777)  # as /tmp: nobody can replace what is this user's own
    assert loading.available()


@pytest.mark.root(reason="only root can give files away")
def test_compiled_code_of_another_user_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert not keeping.trouble()
    os.chown(keeping.cache(), 65534, -1)
    assert keeping.trouble() == f"{keeping.cache()} belongs to another user"


def test_code_of_another_place_or_age_is_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To Numba it is other code: one copy's kernels must not pass for compiled in the other."""
    folders = {keeping.cache()}
    monkeypatch.setattr(keeping, "MINE", shutil.copytree(keeping.MINE, tmp_path / "fast"))
    folders.add(keeping.cache())
    os.utime(keeping.MINE / "adding.py", (1, 1))
    folders.add(keeping.cache())
    assert len(folders) == 3


def test_code_for_another_kind_of_processor_is_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home directory may be that of several machines, which Numba compiles for one by one."""
    folders = {keeping.cache()}
    monkeypatch.setattr(keeping, "PROCESSORS", tmp_path / "cpuinfo")
    folders.add(keeping.cache())  # nothing is told of the processor
    for about in ("flags : fpu sse2\ncpu MHz : 800", "flags : fpu sse2 avx512f\ncpu MHz : 800"):
        keeping.PROCESSORS.write_text(f"{about}\n\nprocessor : 1\n{about} amx\n")
        folders.add(keeping.cache())
        keeping.PROCESSORS.write_text(f"{about}.123\n\nprocessor : 1\nflags : fpu\n")
        folders.add(keeping.cache())
    assert len(folders) == 4


PARTS = """
import sys, time
for part in range(1, 3):
    print(f"{part} of 4 parts are compiled", file=sys.stderr, flush=True)
    time.sleep(0.2)
"""
RESIDENT = """
import sys
from pathlib import Path
import worker_lib
from iswitch.core.switch import Switch
from iswitch.fast import loading

def resident():
    words = Path("/proc/self/smaps_rollup").read_text().partition("Rss:")[2].split()
    return int(words[0]) / 1024

sys.modules["scipy"] = None  # Numba imports it where it is installed
before = resident()
for name in loading.KERNELS:
    loading.load(name)
print(before, resident() - before)
"""


@pytest.mark.skipif(not loading.installed(), reason="Numba is not installed")
def test_kernels_take_at_most_70_mb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_BOUNDSCHECK", raising=False)
    without, more = map(float, python("-c", RESIDENT).stdout.split())
    assert without < 60
    assert more < 70


def test_kernels_are_compiled_before_the_first_switch_has_to_listen_in_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[tuple[str, Child]] = []

    class Recording(Fleet):
        def start(self, name: str, arguments: Sequence[str], *_: Any, **_more: Any) -> Child:
            ended = [child.process.returncode for _, child in started]
            assert ended == [0] * len(started)
            child = super().start(name, ["-c", PARTS])
            started.append((" ".join(arguments[:2]), child))
            return child

    monkeypatch.setattr(loading, "available", lambda: True)
    monkeypatch.setattr(loading, "is_compiled", lambda: False)
    with Recording() as fleet:
        switches = Switches(fleet, make_world("loopback", Topology.parse("star:2")))
        with pytest.raises(SwitchFailed, match=r"the switch .* ended with status 0"):
            switches.start()
        (compiler, _), (switch, serving) = started
        assert [compiler, switch] == ["-m iswitch.fast", "-m iswitch"]
        # The compiler has ended, and must not pass for a process that failed.
        assert fleet.children == [serving]
    told = [loading.COMPILING, "1 of 4 parts are compiled", "2 of 4 parts are compiled"]
    assert capsys.readouterr().err.splitlines() == told


@pytest.mark.parametrize("is_compiled", [True, False])
def test_who_compiles_tells_how_far_it_is(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loading, "is_compiled", lambda: is_compiled)
    monkeypatch.setattr(loading, "load", lambda *_, **__: None)
    loading.load_all()
    first, *rest = capsys.readouterr().err.splitlines() or [""]
    assert first == ("" if is_compiled else loading.COMPILING)
    assert rest[-1:] == ([] if is_compiled else ["4 of 4 parts are compiled"])


def test_only_what_is_as_in_the_file_is_given_back() -> None:
    """Pages that the loader has written to would come back without what it wrote."""
    library = f"/lib/{loading.COMPILER}.so"
    mappings = [
        (library, "r--p", 0),
        (library, "r-xp", 0),
        (library, "r--p", 1792),  # relocated
        (library, "rw-p", 0),
        ("/lib/libc.so", "r-xp", 0),
    ]
    smaps = "".join(
        f"{i:x}-{i + 4096:x} {rights} 00000000 08:01 7   {file}\nPrivate_Dirty: {dirty} kB\n"
        for i, (file, rights, dirty) in enumerate(mappings)
    )
    assert loading._as_in_file(smaps, loading.COMPILER) == [(0, 4096), (1, 4097)]
