"""The directory of this user's UNIX sockets, which nobody else can write to.

Its path depends on the user alone, so that processes find each other whatever their environment is.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def folder() -> Path:
    """Return the directory of this user's UNIX sockets."""
    return Path("/tmp") / f"iswitch-{os.getuid()}"


def is_private(where: Path) -> bool:
    """Return whether only this user, or root, can have put something into a directory."""
    try:
        found = where.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
