"""Starts a bmv2 that runs the program, and opens its CPU port and its runtime API."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from iswitch.ports.kernel.ethtool import offloads_off
from iswitch.ports.orphans import DiesWithParent
from p4.tools import PIP, SWITCH, cli_command, compile_program, find

from .port import CpuWire
from .runtime import Cli, RuntimeRefused

QUEUE = 16384  # packets of each port; the default of 64 loses the bursts of a broadcast
LISTEN_SECONDS = 20.0  # seconds for the switch to listen
PAUSE_SECONDS = 0.05  # between two tries to reach it
LO = 1  # index of the loopback interface
CPU_MTU = 2000  # a frame of 1514 bytes and the header in front of it, with room


class Bmv2Failed(Exception):
    """The software switch did not start; the message says why."""


@dataclass
class Bmv2:
    """A running switch."""

    process: subprocess.Popen[bytes]
    wire: CpuWire
    cli: Cli
    _undo: ExitStack

    def close(self) -> None:
        """End the switch, and remove its CPU port."""
        self._undo.close()


def start(ports: Sequence[str], udp_port: int, cpu_port: int, cache: Path) -> Bmv2:
    """Start a switch with these interfaces as its ports 0, 1, ...

    Its processes are in a session of their own, which Ctrl-C in a terminal does not reach: so the
    counters can still be read at the end.

    Raises:
        ToolMissing: the compiler or the switch is not installed.
        CompilationFailed: the program is refused.
        Bmv2Failed: the switch does not start.
    """
    program = compile_program(udp_port, cache)
    switch, cli = find(SWITCH), cli_command()
    inside, outside = f"cpu{os.getpid()}", f"cpu{os.getpid()}s"
    with ExitStack() as undo:
        link(inside, outside)
        undo.callback(unlink, inside)
        for ifname in (*ports, inside, outside):
            whole_frames_only(ifname)
        thrift = free_port()
        options = [f"-i{number}@{ifname}" for number, ifname in enumerate(ports)]
        process = subprocess.Popen(
            [switch, *options, f"-i{cpu_port}@{outside}", "--thrift-port", str(thrift),
             "--log-level", "error", str(program)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True, preexec_fn=DiesWithParent(),
        )  # fmt: skip
        undo.callback(stop, process)
        await_listening(process, thrift)
        try:
            runtime = Cli([*cli, "--thrift-port", str(thrift)])
        except RuntimeRefused as error:
            raise Bmv2Failed(
                f"{error}; simple_switch_CLI needs the Python package thrift: {PIP}"
            ) from None
        undo.callback(runtime.close)
        runtime.run([f"set_queue_depth {QUEUE}"])
        wire = CpuWire(inside)
        undo.callback(wire.close)
        return Bmv2(process, wire, runtime, undo.pop_all())
    raise AssertionError


def link(inside: str, outside: str) -> None:
    """Make the CPU port: a veth pair, of which one end is the switch's.

    Also set the loopback interface up: the runtime API needs it, and in a new namespace it is down.
    """
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with IPRoute() as netlink:
            netlink.link("set", index=LO, state="up")
            netlink.link("add", ifname=inside, kind="veth", peer={"ifname": outside}, mtu=CPU_MTU)
            for ifname in (inside, outside):
                disable_ipv6(ifname)
                (index,) = netlink.link_lookup(ifname=ifname)
                netlink.link("set", index=index, state="up", mtu=CPU_MTU)
    except NetlinkError as error:
        raise Bmv2Failed(f"the CPU port cannot be made: {error}; run as root") from None


def whole_frames_only(ifname: str) -> None:
    """Switch the offloads off.

    A bmv2 takes frames as they are on a wire. And it receives with libpcap: while super-frames are
    possible, libpcap reserves room for the largest one per frame, and 8 frames fill its ring.
    """
    try:
        offloads_off(ifname)
    except OSError as error:
        raise Bmv2Failed(f"the offloads of {ifname} stay on: {error.strerror}") from None


def disable_ipv6(ifname: str) -> None:
    """Keep the kernel from sending packets of its own into the switch."""
    path = Path(f"/proc/sys/net/ipv6/conf/{ifname}/disable_ipv6")
    if path.exists():
        path.write_text("1")


def unlink(ifname: str) -> None:
    """Remove a veth pair."""
    from pyroute2 import IPRoute

    with IPRoute() as netlink:
        for index in netlink.link_lookup(ifname=ifname):
            netlink.link("del", index=index)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the switch."""
    process.terminate()
    try:
        process.wait(3.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stderr is not None:
        process.stderr.close()


def free_port() -> int:
    """Return a free TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def await_listening(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the runtime API answers.

    Raises:
        Bmv2Failed: the API does not answer.
    """
    limit = time.monotonic() + LISTEN_SECONDS
    while time.monotonic() < limit:
        if process.poll() is not None:
            assert process.stderr is not None
            said = process.stderr.read().decode(errors="replace").strip()
            raise Bmv2Failed(f"simple_switch ended with status {process.returncode}: {said}")
        try:
            socket.create_connection(("127.0.0.1", port), PAUSE_SECONDS).close()
        except OSError:
            time.sleep(PAUSE_SECONDS)
        else:
            return
    raise Bmv2Failed(f"simple_switch does not listen at port {port} after {LISTEN_SECONDS:.0f} s")
