"""The Wireshark dissector on what tshark captures itself, in a network of namespaces."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from scapy.layers.inet import UDP

from iswitch.core.format.wire import PORT
from iswitch.dissect.scapy import ISwitchSuper
from tests.ports.test_raw import PATIENCE, allreduce, running
from tests.traces.test_dissect_scapy import afresh
from tests.traces.test_dissector import assert_same, comparable, expected, seen
from tests.traces.test_dissector_limits import rdpcap_one_by_one

pytestmark = pytest.mark.serial

__all__ = ["afresh"]  # for every test


@pytest.mark.root(reason="raw ports need root")
def test_super_datagrams_of_a_real_host(tmp_path: Path) -> None:
    """A capture of tshark's own on a host's interface, before the kernel has cut anything."""
    path = tmp_path / "host.pcapng"
    with running("star:2") as world:
        command = ["tshark", "-i", "h2-eth0", "-w", str(path), "-q", "-B", "64"]
        watcher = world.network.popen("h2", command, stderr=subprocess.PIPE)
        assert watcher.stderr is not None
        while b"Capturing on" not in watcher.stderr.readline():
            pass
        time.sleep(1)  # it says so before it does
        allreduce(world, 20_003)
        world.end()
        time.sleep(0.5)
        watcher.send_signal(signal.SIGINT)
        watcher.communicate(timeout=PATIENCE)
    found, wanted, supers, packets = seen(path, tmp_path), rdpcap_one_by_one(path), 0, 0
    for packet, theirs in zip(wanted, found, strict=True):
        if UDP not in packet or not theirs:
            assert UDP not in packet or PORT not in (packet[UDP].sport, packet[UDP].dport)
            continue
        assert not {"malformed", "assumed", "unmatched"} & theirs.keys()
        assert_same(comparable(theirs), expected(packet))
        supers += ISwitchSuper in packet
        packets += len(theirs.get("seg", ())) * ("elements" in theirs)
    assert supers > 10
    assert packets >= 2 * 3 * 55  # of three rounds, up and down
