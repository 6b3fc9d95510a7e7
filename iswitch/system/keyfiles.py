"""Reads keys from files and the environment, never from a command line, which all users can read.

A key is written as text (its UTF-8 bytes are the key) or as `hex:` and hexadecimal digits. Errors
never hold a key.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping

from iswitch.core.format.keys import Keys, KeyUnusable, secret_of
from iswitch.outside import reading

from .files import read_text

KEY, KEY_FILE = "ISWITCH_KEY", "ISWITCH_KEY_FILE"  # in the environment
LINES = 'write lines such as 7 = "KEY"'
MOST = 4 << 20  # bytes of a file: a line for every job


def read_key(path: str) -> bytes:
    """Read the key from a file that holds nothing else but white space.

    Raises:
        KeyUnusable: the file cannot be read, or others can, or there is no key in it.
    """
    new = f"write one: (umask 077; echo hex:$(openssl rand -hex 32) > {path})"
    text = _private(path, new).strip()
    if not text:
        raise KeyUnusable(f"{path} is empty, and no key; {new}")
    if "\n" in text:
        raise KeyUnusable(
            f"{path} has several lines; leave one key in it, or give the file to iswitch switch "
            "--keys, if they are keys of several jobs"
        )
    return _secret(path, text)


def read_keys(path: str) -> Keys:
    """Read a switch's keys from TOML: `7 = "KEY"` for job 7, `default = "KEY"` for others.

    Those in a table `[NAME]` are of the jobs of a user.

    Raises:
        KeyUnusable: the file is unreadable, malformed, or readable by other users.
    """
    text = _private(path, LINES)
    try:
        with reading(path, KeyUnusable):
            table = tomllib.loads(text)
    except KeyUnusable as error:
        raise KeyUnusable(f"{error}; {LINES}") from None
    by_job: dict[int, bytes] = {}
    default: bytes | None = None
    users: dict[int, str] = {}
    for user, name, key in _entries(table):
        is_job = name.isascii() and name.isdecimal() and len(name) <= 5 and int(name) <= 0xFFFF
        if not isinstance(key, str) or not (is_job or (name == "default" and not user)):
            raise KeyUnusable(
                f'{path}: {name!r} is no job with a key; write 7 = "KEY" or default = "KEY"'
            )
        secret = _secret(f"{path}: {name}", key)
        if not is_job:
            default = secret
            continue
        if int(name) in by_job:
            raise KeyUnusable(f"{path}: job {int(name)} has two keys; leave one of them out")
        by_job[int(name)] = secret
        if user:
            users[int(name)] = user
    if not by_job and default is None:
        raise KeyUnusable(f"{path} holds no key; {LINES}")
    return Keys(by_job, default, users)


def _entries(table: Mapping[str, object]) -> Iterator[tuple[str, str, object]]:
    """Yield the entries of a file of keys: user or "", name and text of each."""
    for name, text in table.items():
        if isinstance(text, dict):
            yield from ((name, inner, key) for inner, key in text.items())
        else:
            yield "", name, text


def key_in(environment: Mapping[str, str]) -> bytes | None:
    """Read the key from ISWITCH_KEY or the file ISWITCH_KEY_FILE; None: neither is set.

    Raises:
        KeyUnusable: both are set, or the text is no key.
    """
    text, path = environment.get(KEY), environment.get(KEY_FILE)
    if text and path:
        raise KeyUnusable(f"both {KEY} and {KEY_FILE} are set; unset one of them")
    if path:
        return read_key(path)
    return _secret(KEY, text) if text else None


def given_key(path: str | None) -> bytes | None:
    """Read the key from the file named, else from the environment; None: there is none.

    Raises:
        KeyUnusable: the file or the variable holds no key.
    """
    return read_key(path) if path else key_in(os.environ)


def given_keys(path: str | None) -> Keys:
    """Read the keys from the file named; without a file, use the environment's key for every job.

    Raises:
        KeyUnusable: the file or the variable holds no key.
    """
    return read_keys(path) if path else Keys(default=key_in(os.environ))


def _secret(where: str, text: str) -> bytes:
    try:
        return secret_of(text)
    except KeyUnusable as error:
        raise KeyUnusable(f"{where}: {error}") from None


def _private(path: str, new: str) -> str:
    """Read a file, and refuse one that everybody may read or write.

    Args:
        path: the file.
        new: how to write such a file, if there is none.
    """

    def check(status: os.stat_result) -> None:
        if status.st_mode & (stat.S_IROTH | stat.S_IWOTH):
            raise KeyUnusable(
                f"{path} can be read or written by everybody on this machine: chmod 600 {path}"
            )

    try:
        return read_text(path, KeyUnusable, MOST, check)
    except KeyUnusable as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise KeyUnusable(f"{error}; mend its name, or {new}") from None
        if isinstance(error.__cause__, UnicodeDecodeError):
            raise KeyUnusable(f"{error}; write bytes as hex: and their digits") from None
        raise
