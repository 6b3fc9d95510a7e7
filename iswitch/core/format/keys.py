"""Keyed jobs: a MAC at the end of every control packet, made and checked here.

The MAC is BLAKE2b of all bytes before it: 16 bytes, keyed with the job's key (RFC 7693).
All holders of the key can write any control packet of the job; others can write none. A MAC does
not prove who sent a packet, or when: see docs/protocol.md, "Keyed jobs". Data packets have no MAC.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from hmac import compare_digest

import numpy as np

from iswitch.outside import OutsideError

from .packets import Outgoing
from .wire import TOS_CONTROL, Header

MAC_SIZE = 16
MAX_KEY = 64  # bytes; BLAKE2b takes no longer one


class KeyUnusable(OutsideError, ValueError):
    """A key that cannot be used; the message names the mend, and not the key."""


def secret_of(text: str) -> bytes:
    """Read a key from text: its bytes in UTF-8, or the hexadecimal digits behind `hex:`.

    Raises:
        KeyUnusable: no hexadecimal digits, or a key of a wrong length.
    """
    digits = text.removeprefix("hex:")
    try:
        secret = bytes.fromhex(digits) if digits != text else text.encode()
    except UnicodeEncodeError:
        raise KeyUnusable("a key in writing is UTF-8; write other bytes after hex:") from None
    except ValueError:
        raise KeyUnusable("after hex: a key has pairs of digits 0-9 and a-f") from None
    Key(secret)
    return secret


class Key:
    """A key, which the members and switches of a job share.

    Args:
        secret: 1 to 64 bytes.

    Raises:
        KeyUnusable: `secret` is not 1 to 64 bytes.
    """

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes) or not 1 <= len(secret) <= MAX_KEY:
            what = f"{len(secret)} bytes" if isinstance(secret, bytes) else type(secret).__name__
            raise KeyUnusable(f"a key is 1 to {MAX_KEY} bytes, not {what}; 32 random ones serve")
        self._secret = secret

    def __repr__(self) -> str:
        return "Key(...)"  # it must not get into a log

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        return hash(self._secret)

    @property
    def secret(self) -> bytes:
        """Return the bytes, for another implementation of the MAC; they must not get into a log."""
        return self._secret

    def mac(self, packet: bytes) -> bytes:
        """Return the MAC of a packet."""
        return blake2b(packet, digest_size=MAC_SIZE, key=self._secret).digest()

    def opened(self, payload: bytes) -> bytes | None:
        """Return the packet without its MAC; None: the MAC is wrong or missing."""
        packet, given = payload[:-MAC_SIZE], payload[-MAC_SIZE:]
        return packet if compare_digest(self.mac(packet), given) else None

    def sealed(self, out: Outgoing) -> Outgoing:
        """Add the MAC to a control packet; leave data as it is."""
        if out.tos != TOS_CONTROL:
            return out
        packet = out.rows.tobytes()
        rows = np.frombuffer(packet + self.mac(packet), np.uint8).reshape(1, -1)
        return Outgoing(out.peers, out.tos, rows, rows.shape[1])


class Keys:
    """The keys of a switch, by job.

    Args:
        by_job: keys by job number.
        default: key of all other jobs; None: they have none.
        users: names of users, by the numbers of the jobs whose keys they have.

    Raises:
        KeyUnusable: the bytes of one cannot be a key.
    """

    def __init__(
        self,
        by_job: Mapping[int, bytes] | None = None,
        default: bytes | None = None,
        users: Mapping[int, str] | None = None,
    ) -> None:
        self._by_job = {job: Key(secret) for job, secret in (by_job or {}).items()}
        self._default = None if default is None else Key(default)
        self._users = dict(users or {})

    def __bool__(self) -> bool:
        return bool(self._by_job) or self._default is not None

    def of(self, job: int) -> Key | None:
        """Return a job's key; None: the job is not keyed."""
        return self._by_job.get(job, self._default)

    @property
    def users(self) -> frozenset[str]:
        """Return the names of all users."""
        return frozenset(self._users.values())

    def user_of(self, job: int) -> str:
        """Return the name of the user who has a job's key; "": none is named."""
        return self._users.get(job, "")

    def sealed(self, sends: list[Outgoing]) -> list[Outgoing]:
        """Add MACs to the control packets of keyed jobs."""
        return [self._sealed(out) for out in sends] if self else sends

    def _sealed(self, out: Outgoing) -> Outgoing:
        if out.tos != TOS_CONTROL:
            return out
        key = self.of(Header.parse(out.rows.tobytes()).job)
        return out if key is None else key.sealed(out)
