"""Options that commands share: their values, what they refuse, and words for what they say."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress

from iswitch.outside import UsageError, writing

MOST = 1e9  # of any quantity: 31 years, a petabyte
PIP_DEMO = "pip install -e '.[demo]' (in a checkout of iswitch)"


def host_port(text: str) -> tuple[str, int]:
    """Parse HOST:PORT, HOST or :PORT."""
    from iswitch.core.format.wire import PORT

    host, _, port = text.rpartition(":") if ":" in text else (text, "", str(PORT))
    if ":" in host:
        raise argparse.ArgumentTypeError(f"{text!r}: IPv4 only, such as 127.0.0.1:26963")
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: no such host: {error}") from None
    if not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:26963")
    return host or "0.0.0.0", int(port)


def quantity(least: float | None = None) -> Callable[[str], float]:
    """An argparse type: a number above 0, or of `least` or more, that clocks can still count."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        enough = value > 0 if least is None else value >= least
        if not enough or value > MOST:
            wanted = "above 0" if least is None else f"of {least:g} or more"
            wanted += f", {MOST:g} at most" if value > MOST else ""
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {wanted}")
        return value

    return parse


def command() -> str:
    """The command line, as it can be given again."""
    return shlex.join(["iswitch", *sys.argv[1:]])


def foot(chosen: str | None, page: str, kind: str) -> str:
    """The name of a file that a page's link saves: the one that was chosen, or like the page's."""
    return os.path.basename(chosen or f"{os.path.splitext(page)[0]}.{kind}")


def workers(count: int) -> str:
    """So many workers, in words."""
    return f"{count or 'no'} worker{'s' * (count != 1)}"


def check_unread(path: str | None, *read: str | None) -> None:
    """Refuse to write a file that the same command reads, by whatever name.

    Args:
        path: of the file to be written.
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
    """Whether a file can be written, before anything is run for it.

    Args:
        path: of the file.
        read: as for `check_unread`.

    Raises:
        OutsideError: it cannot.
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
