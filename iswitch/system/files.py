"""Small files that users name: read whole, but no more than they can sensibly hold, and written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from iswitch.outside import OutsideError, reading, writing

MOST = 16 << 20  # bytes of text; what people write by hand is smaller


def read_text(
    path: str,
    kind: Callable[[str], Exception] = OutsideError,
    most: int = MOST,
    check: Callable[[os.stat_result], None] = lambda _: None,
) -> str:
    """The text of a file in UTF-8.

    Args:
        path: of the file.
        kind: makes the error of its message.
        most: bytes; a larger file is refused before it fills the memory.
        check: looks at the status of the file before it is read, and raises.

    Raises:
        OutsideError: or what `kind` makes: it cannot be read, is too large, or no such text.
    """
    with reading(path, kind), open_at_once(path) as file:
        check(os.fstat(file.fileno()))
        content = file.read(most + 1)
        if len(content) <= most:
            return content.decode().replace("\r\n", "\n").replace("\r", "\n")
    raise kind(f"{path} has more than {most >> 10} KiB; name a smaller file")


def open_at_once(path: str) -> BinaryIO:
    """Open a file to be read; a FIFO that nobody writes to is empty, rather than waited for.

    Raises:
        OSError: it cannot be opened.
    """

    def opener(path: str, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_NONBLOCK)
        os.set_blocking(descriptor, True)
        return descriptor

    return open(path, "rb", opener=opener)


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file whole.

    Raises:
        OutsideError: it cannot be written: the disk is full, say.
    """
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    with writing(os.fspath(path)):
        Path(path).write_bytes(data)
