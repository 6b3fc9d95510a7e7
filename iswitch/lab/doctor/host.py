"""Probes the machine for `iswitch doctor`.

A probe tries a feature in the way in which ports use it, rather than look up a version. It returns
the outcome, or raises what the attempt raised.
"""

from __future__ import annotations

import os
import platform
import resource
import select
import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from iswitch.core.format.packets import Outgoing
    from iswitch.ports.udp import UdpPort

PACKETS = 44  # what a 64 kB super-datagram holds
ARRIVAL_TIMEOUT = 2.0  # seconds for packets to come over the loopback device
LOOPBACK = ("127.0.0.1", 0)

# In a process of its own, which alone changes namespaces.
UNSHARE = """
import ctypes, sys
unshare = ctypes.CDLL(None).unshare
NEWUSER, NEWNET = 0x10000000, 0x40000000
sys.exit(10 if not unshare(NEWNET) else 11 if not unshare(NEWUSER | NEWNET) else 12)
"""
UNSHARED = {10: "yes", 11: "user", 12: "no"}


class Exchange(NamedTuple):
    """The fate of equal packets sent over the loopback device."""

    intact: int  # packets that came, with the bytes that were sent
    sent_whole: bool  # as a super-datagram
    came_whole: bool
    most_at_once: int  # packets in a burst
    tos: frozenset[int]


class Buffers(NamedTuple):
    """Bytes of a socket's buffers."""

    receive: int
    send: int


class Host:
    """Probes this machine with the privileges of the user who runs the command."""

    def system(self) -> tuple[str, str]:
        """Return the operating system and the release of its kernel."""
        return platform.system(), platform.release()

    def python(self) -> tuple[int, ...]:
        """Return the version of this Python."""
        return tuple(sys.version_info[:3])

    def version(self, package: str) -> str | None:
        """Return the version of an installed distribution; None: not installed."""
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    def torch_knows_iswitch(self) -> bool:
        """Tell whether PyTorch finds the backend "iswitch" when it is imported."""
        return bool(metadata.entry_points(group="torch.backends", name="iswitch"))

    def program(self, name: str) -> str | None:
        """Find a program on the PATH; None: it is not there."""
        return shutil.which(name)

    def p4_tool(self, name: str) -> str | None:
        """Find a program that the P4 switch needs; None: it is not installed."""
        from p4.tools import ToolMissing, find

        try:
            return find(name)
        except ToolMissing:
            return None

    def p4_cli(self) -> str:
        """Load the CLI of the P4 switch, and return its complaint; "": it loads."""
        from p4.tools import cli_command

        done = subprocess.run(
            [*cli_command(), "--help"],
            capture_output=True,
            text=True,
            timeout=10 * ARRIVAL_TIMEOUT,
        )
        lines = done.stderr.strip().splitlines() or [f"it ends with status {done.returncode}"]
        return lines[-1] if done.returncode else ""

    def numpy(self) -> str:
        """Import NumPy, and return its version."""
        import numpy

        return numpy.__version__

    def sysctl(self, name: str) -> int | None:
        """Read a kernel parameter; None: not shown here (as in some containers)."""
        try:
            return int(Path("/proc/sys", *name.split(".")).read_text())
        except OSError:
            return None

    def exchange(self, offload: bool) -> Exchange:
        """Send a super-datagram's worth of packets from one UdpPort to another."""
        import numpy as np

        from iswitch.core.format.packets import Outgoing
        from iswitch.core.format.wire import MTU_PAYLOAD, TOS_DATA
        from iswitch.ports.udp import UdpPort

        numbers = np.arange(PACKETS * MTU_PAYLOAD).reshape(PACKETS, MTU_PAYLOAD)
        rows = (numbers % 251).astype(np.uint8)  # a prime: so all packets differ
        with (
            closing(UdpPort(LOOPBACK, offload=offload)) as sender,
            closing(UdpPort(LOOPBACK, offload=offload)) as receiver,
        ):
            sender.push([Outgoing((receiver.address,), TOS_DATA, rows, MTU_PAYLOAD)])
            came = intact = most = 0
            whole = True
            tos: set[int] = set()
            poller = select.poll()
            poller.register(receiver, select.POLLIN)
            limit = time.monotonic() + ARRIVAL_TIMEOUT
            while came < PACKETS and time.monotonic() < limit:
                poller.poll(ARRIVAL_TIMEOUT * 1000)
                for burst in receiver.pull():
                    n = len(burst.rows)
                    pieces = burst.by_size()
                    if len(pieces) == 1 and np.array_equal(pieces[0], rows[came : came + n]):
                        intact += n
                    came += n
                    most = max(most, n)
                    tos.add(burst.tos)
                    # Single packets lie a slot apart, those of a super-datagram side by side.
                    whole = whole and n > 1 and burst.rows.strides[0] == burst.rows.shape[1]
            return Exchange(intact, sender.offload, whole and came > 0, most, frozenset(tos))

    def overflow(self) -> int:
        """Make a port lose packets; return how many losses it reports."""
        import numpy as np

        from iswitch.core.format.packets import Outgoing
        from iswitch.core.format.wire import TOS_DATA
        from iswitch.ports.udp import UdpPort

        with (
            closing(UdpPort(LOOPBACK, offload=False)) as sender,
            closing(UdpPort(LOOPBACK, offload=False, buffer=4096)) as receiver,
        ):

            def packets(count: int) -> Outgoing:
                rows = np.zeros((count, 1000), np.uint8)
                return Outgoing((receiver.address,), TOS_DATA, rows, 1000)

            sender.push([packets(256)])
            _drain(receiver)
            sender.push([packets(1)])  # it brings the count
            _drain(receiver)
            return receiver.counters["rx_overflow"]

    def buffers(self) -> Buffers:
        """Return the bytes of the socket buffers that a port gets."""
        from iswitch.ports.udp import UdpPort

        with closing(UdpPort(LOOPBACK)) as port:
            send = port.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2
            return Buffers(port.buffer, send)

    def wants_fast(self) -> bool:
        """Return whether the environment allows the fast path."""
        from iswitch.fast import loading

        return loading.wanted()

    def fast_trouble(self) -> str:
        """Return why compiled code cannot be kept in its folder; "": it can."""
        from iswitch.fast import keeping

        return keeping.trouble()

    def load_fast(self) -> tuple[float, bool]:
        """Load all kernels, and compile those that are not compiled.

        Returns:
            the seconds, and whether kernels were compiled in them.

        Raises:
            ImportError: Numba cannot be imported.
        """
        from iswitch.fast import loading

        compiles = not loading.is_compiled()
        began = time.perf_counter()
        loading.load_all()
        return time.perf_counter() - began, compiles

    def has_rings(self) -> bool:
        """Return whether this machine can have rings in shared memory."""
        from iswitch.ports.rings.memory import supported

        return supported()

    def wants_rings(self) -> str:
        """Return what the environment says of shared memory; "": nothing."""
        from iswitch.ports.rings.meeting import VARIABLE

        return os.environ.get(VARIABLE, "")

    def descriptors(self) -> int:
        """Return how many files and sockets a process may have open; negative: no limit."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def cores(self) -> int:
        """Return the number of cores that this process may use."""
        return len(os.sched_getaffinity(0))

    def user(self) -> int:
        """Return the effective user id."""
        return os.geteuid()

    def capabilities(self) -> int:
        """Return the bitmap of the capabilities in force (capabilities(7))."""
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
        raise OSError("/proc/self/status names no capabilities")

    def packet_socket(self) -> bool:
        """Return whether an AF_PACKET socket can be opened."""
        try:
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
        except PermissionError:
            return False
        return True

    def namespaces(self) -> str:
        """Tell if network namespaces can be made: "yes", "no", or "user": in a user namespace."""
        child = subprocess.run(
            [sys.executable, "-I", "-S", "-c", UNSHARE],
            check=False,
            capture_output=True,
            timeout=10 * ARRIVAL_TIMEOUT,
        )
        if child.returncode not in UNSHARED:
            raise OSError(f"the trial process ended with status {child.returncode}")
        return UNSHARED[child.returncode]


def _drain(port: UdpPort) -> None:
    """Wait for packets, and take all that have come."""
    poller = select.poll()
    poller.register(port, select.POLLIN)
    poller.poll(ARRIVAL_TIMEOUT * 1000)
    while port.pull():
        pass
