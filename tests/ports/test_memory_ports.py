"""No memory beside the switch itself: captures lose frames and say so, results name the mend."""

from __future__ import annotations

import signal
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address
from iswitch.core.format.pcapng import Direction
from iswitch.core.format.wire import TOS_DATA
from iswitch.ethernet.frame import Frames, Transmission
from iswitch.faults.parts import transmission
from iswitch.outside import IncompleteError
from iswitch.ports import capture as capturing
from iswitch.ports.capture import Capture
from iswitch.serving.opening import Opened
from iswitch.serving.process import run
from iswitch.serving.settings import Settings
from tests.commands.test_switch_command import PATIENCE, end, switch
from tests.ethernet.test_forwarding import super_datagram
from worker_lib import Worker, arguments

HERE, THERE = Address("127.0.0.1", 4000), Address("127.0.0.1", 5000)
STATISTICS = (5).to_bytes(4, "little")  # block type


def note(capture: Capture, value: int) -> None:
    rows = np.full((1, 40), value, np.uint8)
    capture.datagrams(Direction.IN, HERE, THERE, TOS_DATA, (rows, 40))


@pytest.mark.parametrize("where", ["on_the_wire", "packets", "_head"])
def test_a_capture_that_lacks_memory_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """In the writing thread, or the switch's: what is missing is counted, also in the file."""
    real, calls = getattr(capturing, where), iter(range(100))

    def scarce(*arguments: object) -> object:
        if next(calls) in (1, 3):
            raise MemoryError
        return real(*arguments)

    monkeypatch.setattr(capturing, where, scarce)
    counters = Counters()
    path = tmp_path / "some.pcapng"
    capture = Capture(path, ["lo"], counters)
    for value in (0xA0, 0xA1, 0xA2, 0xA3, 0xA4):
        note(capture, value)
    capture.close()
    held = path.read_bytes()
    found = [value for value in range(0xA0, 0xA5) if bytes([value]) * 40 in held]
    assert found == [0xA0, 0xA2, 0xA4]
    assert counters["capture_full"] == 2
    assert held.rfind(STATISTICS) > held.rfind(bytes([0xA4]) * 40)


def supers_of(n: int, frames: int) -> list[bytes]:
    """Super-datagrams that stand for so many frames each."""
    return [super_datagram(0, [b"x" * 1472] * frames, 1472) for _ in range(n)]


@pytest.mark.parametrize("fails", [0, 1])
@pytest.mark.parametrize("way", ["received", "sent", "datagrams"])
def test_all_frames_of_a_burst_for_which_memory_lacks_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, fails: int
) -> None:
    """From the row on at which it lacks; a row can stand for many frames."""
    counters = Counters()
    capture = Capture(tmp_path / "some.pcapng", ["lo"], counters)
    real, calls = capture._give, iter(range(100))

    def scarce(record: capturing._Record) -> None:
        if next(calls) == fails:
            raise MemoryError
        real(record)

    monkeypatch.setattr(capture, "_give", scarce)
    frames = Frames.of(0, supers_of(3, 4))
    if way == "received":
        capture.received(frames)
        expected = 4 * (3 - fails)
    elif way == "sent":
        capture.sent(transmission(frames), {2})
        expected = 4 * (2 - fails)
    else:
        rows = np.zeros((100, 1472), np.uint8)  # 44 in a super-datagram
        capture.datagrams(Direction.IN, HERE, THERE, TOS_DATA, (rows, 1472))
        expected = 100 - 44 * fails
    capture.close()
    assert counters["capture_full"] == expected


@pytest.mark.parametrize("owner", [Transmission, Frames])
def test_rows_that_cannot_be_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type
) -> None:
    """The switch's thread goes on."""
    counters = Counters()
    capture = Capture(tmp_path / "some.pcapng", ["lo"], counters)
    frames = Frames.of(0, supers_of(3, 4))
    one = transmission(frames)
    for name in ("whole", "row"):
        if hasattr(owner, name):
            monkeypatch.setattr(owner, name, Mock(side_effect=MemoryError))
    if owner is Transmission:
        capture.sent(one, ())
    else:
        capture.received(frames)
    capture.close()
    assert counters["capture_full"] == 12


def test_what_the_writing_thread_lacks_memory_for_counts_as_its_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = Counters()
    monkeypatch.setattr(capturing, "on_the_wire", Mock(side_effect=MemoryError))
    capture = Capture(tmp_path / "some.pcapng", ["lo"], counters)
    capture.received(Frames.of(0, supers_of(3, 4)))
    capture.close()
    assert counters["capture_full"] == 12


def test_a_capture_whose_thread_has_died_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda *_: None)
    monkeypatch.setattr(capturing, "packets", None)  # a TypeError
    capture = Capture(tmp_path / "some.pcapng", ["lo"], Counters())
    note(capture, 0xA0)
    with pytest.raises(OSError, match="ended early"):
        capture.close()


@pytest.mark.parametrize(
    ("missing", "failed", "said"),
    [
        (0, None, None),
        (0, OSError("ended early"), "x.pcapng is not complete: ended early"),
        (2, OSError("ended early"), "x.pcapng is not complete, 2 frames missing: ended early"),
        (2, None, "2 frames missing: the disk was too slow, or memory ran out"),
    ],
)
def test_a_switch_says_that_its_capture_is_not_complete(
    monkeypatch: pytest.MonkeyPatch, missing: int, failed: OSError | None, said: str | None
) -> None:
    monkeypatch.setattr(signal, "signal", Mock())
    counters = Counters()
    counters["capture_full"] = missing
    port = Mock(spec=["close"], close=Mock(side_effect=failed))  # it wraps no other port
    engine = Mock(port=port, given_up=0)
    settings = Settings(json=True, capture="x.pcapng")
    with pytest.raises(IncompleteError, match=said) if said else nullcontext():
        assert run(Opened(engine, "here", counters, Mock()), settings) == 0
    port.close.assert_called_once()


def test_a_result_for_which_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own: one sentence, nothing sent, and with `out` the next call is right."""

    def none(*_: object) -> None:
        raise MemoryError

    with switch() as (process, where):
        with Worker(where, 7, 100, 1, timeout=PATIENCE) as worker:
            vector = np.full(100, 3, np.float32)
            with monkeypatch.context() as patch:
                patch.setattr(arguments, "np", SimpleNamespace(empty=none, dtype=np.dtype))
                with pytest.raises(MemoryError, match=r"result of 400 bytes; give `out`"):
                    worker.allreduce(vector)
            assert set(worker.allreduce(vector, out=vector).tolist()) == {3.0}
        end(process)
