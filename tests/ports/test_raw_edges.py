"""One end of a veth in this process, and ports that cannot be opened."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time

import pytest

from iswitch.cli import main
from iswitch.core.format.counters import Counters
from iswitch.ethernet.frame import Transmission
from iswitch.outside import UsageError
from iswitch.ports.frames import SOCKADDR_LL
from iswitch.ports.interface import RawPortError
from iswitch.ports.raw import RawPorts
from tests.ports.test_raw import ports
from tests.support import ROOT
from topologies import Topology
from topologies.netns import Network

pytestmark = [pytest.mark.root(reason="raw ports need root"), pytest.mark.serial]

FRAME = bytes.fromhex("02020202020204040404040488b5") + bytes(range(60))


def pulled(opened: RawPorts) -> list[tuple[int, bytes]]:
    for _ in range(100):
        found = []
        for frames in opened.pull():
            found += [(frames.ingress, frames.row(i)[10:]) for i in range(len(frames.lengths))]
        if found:
            return found
        time.sleep(0.01)
    return []


def test_frames_come_in_and_go_out_as_they_are() -> None:
    with ports() as (opened, (first, second)):
        second.send(FRAME)
        assert pulled(opened) == [(1, FRAME)]
        opened.push([[Transmission.single(0, FRAME)]])
        assert first.recv(2000) == FRAME
        assert pulled(opened) == []  # its own frames do not come back
        assert opened.counters["tx_frames"] == 1


def test_a_vlan_tag_is_kept() -> None:
    tagged = FRAME[:12] + bytes.fromhex("8100602a") + FRAME[12:]
    with ports() as (opened, (first, _)):
        first.send(FRAME)
        first.send(tagged)
        first.send(FRAME)
        time.sleep(0.05)
        assert pulled(opened) == [(0, FRAME), (0, tagged), (0, FRAME)]


def test_links_that_go_away_are_no_error() -> None:
    counters = Counters()
    with Network(Topology.parse("star:2"), prefix="iswtest") as network:
        with network.inside("s1"):
            opened = RawPorts(["s1-eth1", "s1-eth2"], counters=counters)
        from pyroute2 import IPRoute

        with network.inside("s1"), IPRoute() as netlink:
            for step in ("down", "gone"):
                (index,) = netlink.link_lookup(ifname="s1-eth1")
                if step == "down":
                    netlink.link("set", index=index, state="down")
                else:
                    netlink.link("del", index=index)
                assert pulled(opened) == []
                opened.push([[Transmission.single(port, FRAME) for port in (0, 1)]])
        opened.close()
    assert counters["tx_failed"] == 2
    assert counters["tx_frames"] == 2


def test_what_the_kernel_drops_is_counted() -> None:
    counters = Counters()
    with Network(Topology.parse("star:1"), prefix="iswtest") as network:
        with network.inside("s1"):
            opened = RawPorts(["s1-eth1"], buffer=1, counters=counters)
        with network.inside("h1"):
            host = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            host.bind(("h1-eth0", 0))
        for _ in range(500):
            host.send(FRAME)
        host.close()
        received = len(pulled(opened))
        opened.close()
    assert counters["rx_overflow"] == 500 - received > 0


def test_the_address_structure_has_the_kernels_size() -> None:
    assert SOCKADDR_LL.size == 20


def test_no_such_interface() -> None:
    with pytest.raises(RawPortError, match=r"no interface 'nosuch' here; there is .*lo"):
        RawPorts(["nosuch"])


UNPRIVILEGED = """
import os
os.setuid(65534)
from iswitch.ports.interface import RawPortError
from iswitch.ports.raw import RawPorts
try:
    RawPorts(["lo"])
except RawPortError as error:
    print(error.strerror)
"""


def test_no_privilege() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import numpy, ctypes\n"
    code += "import iswitch.ports.raw\n" + UNPRIVILEGED
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "CAP_NET_RAW" in out.stdout
    assert "sudo" in out.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ports", "lo"], "--address"),
        (["--ports", "nosuch", "--address", "10.26.255.254"], "no interface"),
        (["--address", "10.26.255.254"], "--ports"),
        (["--listen", ":0", "--capture", "/dev/null/x"], "cannot write"),
        (["--listen", ":0", "--capture", "/no/where.pcapng"], "cannot write /no/where.pcapng: No"),
        (["--ports", "lo", "--address", "1.2.3.4", "--capture", "/dev/null/x"], "cannot write"),
    ],
)
def test_usage(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit, UsageError):
        main(["switch", *options])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "02:69", "01:00:5e:00:00:01", "zz:zz:zz:zz:zz:zz"])
def test_a_mac_that_is_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["switch", "--ports", "lo", "--address", "1.2.3.4", "--mac", text])
    assert "02:69:0a:1a:ff:fe" in capsys.readouterr().err
