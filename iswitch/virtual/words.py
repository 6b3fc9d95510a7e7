"""Words for streams between a process in virtual time and its world, which stand for a ToS.

CONNECTING  begin to connect
ENDING      send no more bytes
CLOSING     close
OPENED      the other side has taken the connection
REFUSED     nothing listens there
COMES       at a listener: a connection has come, see `arrival`
DATA        bytes, in both directions
ENDED       there will be no more bytes
RESET       the other side had closed the connection when bytes came there, or never took it;
            from a process: it will not take the connection
LOST        no bytes come through any more; the burst says why
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iswitch.core.format.packets import Burst

CONNECTING, ENDING, CLOSING, OPENED, REFUSED, COMES, DATA, ENDED, RESET, LOST = range(-10, -20, -1)


def arrival(burst: Burst) -> list[Any]:
    """Return the number of a connection that COMES, and host and port of its other side."""
    found: list[Any] = json.loads(burst.rows.tobytes())
    return found
