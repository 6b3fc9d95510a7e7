"""Reads and writes small files that users name; refuses files too large to be meant."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from iswitch.outside import OutsideError, UsageError, reading, writing

MOST = 16 << 20  # bytes of text; what people write by hand is smaller


def read_text(
    path: str,
    kind: Callable[[str], Exception] = OutsideError,
    most: int = MOST,
    check: Callable[[os.stat_result], None] = lambda _: None,
) -> str:
    """Read the text of a file in UTF-8.

    Args:
        path: path of the file.
        kind: makes an error from a message.
        most: bytes; a larger file is refused before it fills the memory.
        check: looks at the status of the file before it is read, and raises.

    Raises:
        OutsideError: the file cannot be read, is too large, or is not UTF-8; the error is one that
            `kind` makes.
    """
    with reading(path, kind), open_at_once(path) as file:
        check(os.fstat(file.fileno()))
        content = file.read(most + 1)
        if len(content) <= most:
            return content.decode().replace("\r\n", "\n").replace("\r", "\n")
    raise kind(f"{path} has more than {most >> 10} KiB; name a smaller file")


def open_at_once(path: str) -> BinaryIO:
    """Open a file for reading without waiting: a FIFO without a writer reads as empty.

    Raises:
        OSError: the file cannot be opened.
    """

    def opener(path: str, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_NONBLOCK)
        os.set_blocking(descriptor, True)
        return descriptor

    return open(path, "rb", opener=opener)


def json_text(value: Any) -> str:
    """Write JSON; null stands for a number that is not finite, which JSON does not have."""

    def finite(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: finite(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [finite(one) for one in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(finite(value), indent=1, allow_nan=False)


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file whole.

    Raises:
        OutsideError: it cannot be written: the disk is full, say.
    """
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    with whole(path):
        Path(path).write_bytes(data)


def write_each(writers: Iterable[tuple[str | None, Callable[[str], None]]]) -> None:
    """Call each writer with its path, unless that is None.

    Raises:
        OutsideError: some files cannot be written; it names them. All others are complete.
    """
    failed: list[str] = []
    for path, writer in writers:
        try:
            if path:
                writer(path)
        except OutsideError as error:
            failed.append(str(error))
    if failed:
        raise OutsideError("; ".join(failed))


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[None]:
    """Remove a file if the `with` block that writes it fails or is interrupted by Ctrl-C.

    Devices and FIFOs are never removed.

    Raises:
        OutsideError: the file cannot be written: the disk is full, say.
    """
    try:
        with writing(os.fspath(path)):
            yield
    except BaseException:
        if os.path.isfile(path) and not os.path.islink(path):
            with suppress(OSError):
                os.unlink(path)
        raise


def check_unread(path: str | None, *read: str | None) -> None:
    """Refuse to write a file that this command also reads, under whatever name.

    Args:
        path: path of the file to be written.
        read: what the command reads: files, or text that may name one.

    Raises:
        UsageError: writing it would destroy what is read.
    """
    if path is None or not os.path.isfile(path):
        return
    for other in read:
        with suppress(OSError, ValueError):  # no file, or a text that can be no name of one
            if other and os.path.samefile(path, other):
                raise UsageError(f"{path} is {other} itself, which is read; name another file")


def check_writable(path: str | None, *read: str | None) -> None:
    """Refuse a file that cannot be written, before anything is run for it.

    Args:
        path: path of the file.
        read: what the command reads: files, or text that may name one.

    Raises:
        OutsideError: the file cannot be written.
    """
    if path is None:
        return
    check_unread(path, *read)
    existed = os.path.exists(path)
    with writing(path):
        # A FIFO without a reader would be waited for.
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666))
        if not existed:
            os.unlink(path)  # a run that fails leaves no empty file
