"""The parts of `topologies.mininet`; importing this loads Mininet.

Mininet 2.3 imports distutils, which warns of its end on Python 3.11.
"""

from __future__ import annotations

import warnings

from iswitch.outside import extra
from topologies.errors import NetworkError

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import mininet.net  # noqa: F401
except ImportError as error:
    raise NetworkError(
        f"Mininet is not there ({error}); {extra('netns,mininet')}, and for its mnexec "
        "apt-get install --no-install-recommends mininet"
    ) from error
