"""What networks of namespaces leave, where they or their owner end in the middle."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout

import pytest

from tests.support import python
from tests.support.networks import PREFIX, gone, left
from tests.worlds.test_netns import as_root, bridge, network, output, pings
from topologies import (
    NetworkError,
    PrivilegeError,
    Topology,
    TopologyError,
    children,
    namespaces,
    netns,
)
from topologies.namespaces import CLAIMS, NAMESPACES, Claim
from topologies.netns import Network, clean

pytestmark = [pytest.mark.usefixtures("nothing_is_left"), pytest.mark.serial]

PATIENCE = 20.0  # seconds


@as_root
def test_closing_ends_the_children_and_theirs() -> None:
    with network("star:1") as net:
        child = net.popen("h1", ["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE)
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        child.stdout.close()
    assert child.returncode == -signal.SIGTERM
    assert gone(grandchild)


@as_root
def test_a_child_that_will_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "TERM_GRACE", 0.1)
    with network("star:1") as net:
        deaf = "trap '' TERM; echo; while :; do sleep 1; done"
        child = net.popen("h1", ["sh", "-c", deaf], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        child.stdout.close()
    assert child.returncode == -signal.SIGKILL


def living(net: Network, node: str, command: str) -> int:
    """A process on a node that its parent leaves alone, in a session of its own."""
    code = f"setsid sh -c 'echo $$; exec >&-; {command}' & wait"
    child = net.popen(node, ["sh", "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        return int(child.stdout.readline())


@as_root
@pytest.mark.parametrize("command", ["sleep 1000", "trap : TERM; while :; do sleep 1; done"])
def test_closing_ends_what_has_left_its_group(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "TERM_GRACE", 0.2)
    with network("star:1") as other, subprocess.Popen(["sleep", "1000"]) as stranger:
        neighbour = living(other, "h1", "sleep 1000")
        try:
            with network("star:1") as net:
                process = living(net, "h1", command)
            assert gone(process)
            assert not gone(neighbour, tries=1)
            assert stranger.poll() is None
        finally:
            stranger.kill()


@as_root
def test_a_network_that_is_closed_from_within_does_not_end_its_owner() -> None:
    net = network("star:1")
    net.start()
    with net.inside("h1"):
        net.close()


CRASH = f"""
import os, signal, subprocess
from topologies import Topology
from topologies.netns import Network
net = Network(Topology.parse("star:2,rate=1Gbit"), prefix="{PREFIX}")
net.start()
command = "sleep 1000 >&- 2>&- & echo $!; wait"
child = net.popen("h1", ["sh", "-c", command], stdout=subprocess.PIPE)
print(child.pid, int(child.stdout.readline()), *map(net.namespace, net.topology.nodes), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def crash() -> tuple[int, int, list[str]]:
    """A process that builds a network and dies: its child, the child's, and its namespaces."""
    done = python("-c", CRASH)
    assert done.returncode == -signal.SIGKILL, done.stderr
    child, grandchild, *names = done.stdout.split()
    return int(child), int(grandchild), names


@as_root
def test_what_a_crash_leaves_is_cleaned() -> None:
    with network("star:1") as alive:
        neighbour = living(alive, "h1", "sleep 1000")
        child, grandchild, names = crash()
        assert gone(child)
        assert not gone(grandchild, tries=1)
        assert set(names) <= left()
        assert set(clean()) >= set(names)
        assert gone(grandchild)
        assert not gone(neighbour, tries=1)
        assert not set(names) & left()
        assert (NAMESPACES / alive.namespace("h1")).exists()
        assert output(alive, "h1", "print(1)") == "1"


@as_root
def test_the_next_network_cleans_up() -> None:
    _, grandchild, names = crash()
    with network("star:1"):
        assert not set(names) & left()
        assert gone(grandchild)


@as_root
def test_what_another_process_is_cleaning_is_waited_for() -> None:
    """Else a network could be built beside the rest of one that has its name, and its hosts."""
    _, _, names = crash()
    claims = {claim.name: claim for claim in Claim.left_over()}
    with ThreadPoolExecutor(1) as pool:
        cleaning = pool.submit(clean)
        with pytest.raises(FutureTimeout):
            cleaning.result(0.5)
        for claim in claims.values():
            claim.release()
        assert not set(names) & set(cleaning.result(PATIENCE))
    assert any(name.startswith(f"{claim}-") for claim in claims for name in names)
    assert not set(names) & left()


@as_root
def test_who_dies_while_cleaning_is_followed() -> None:
    _, _, names = crash()
    for claim in list(Claim.left_over()):
        claim._lock.close()
    assert set(clean()) >= set(names)
    assert not set(names) & left()


@as_root
def test_a_maker_that_died_between_two_steps() -> None:
    """A claim without namespaces, and a name without a namespace behind it."""
    claim = Claim.new(PREFIX)
    (NAMESPACES / f"{claim.name}-h1").touch()
    assert f"{claim.name}-h1" not in clean()
    claim._lock.close()
    assert f"{claim.name}-h1" in clean()


@as_root
def test_what_is_not_ours_stays() -> None:
    """No claim, no cleaning, whatever the name; and another claim's name is not a prefix."""
    claim = Claim.new(PREFIX)
    strangers = [NAMESPACES / f"{PREFIX}-0-0-h1", NAMESPACES / f"{claim.name}0-h1"]
    strangers += [CLAIMS / PREFIX]
    for path in strangers:
        path.touch()
    try:
        clean()
        assert claim.release() == []
        assert all(path.exists() for path in strangers)
    finally:
        for path in strangers:
            path.unlink()


@as_root
def test_two_networks_at_once() -> None:
    with network("star:2") as one, network("star:2") as two:
        assert one.namespace("h1") != two.namespace("h1")
        bridge(one)
        assert pings(one, "h1", "h2")
        two.close()
        assert pings(one, "h2", "h1")


@as_root
def test_a_network_can_be_built_again() -> None:
    net = network("star:1")
    for _ in range(2):
        with net:
            with pytest.raises(NetworkError, match="is built already"):
                net.start()
            assert output(net, "h1", "print(1)") == "1"
        net.close()
    with pytest.raises(NetworkError, match="is not built"):
        net.namespace("h1")
    with pytest.raises(NetworkError, match="built is nothing"):
        net.popen("h1", ["true"])


@as_root
def test_a_failure_half_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netns, "token_bucket", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        network("star:2,rate=1Gbit").start()


@as_root
def test_a_kernel_that_lacks_something(monkeypatch: pytest.MonkeyPatch) -> None:
    nonsense = {"rate": 1000, "burst": 0, "limit": 1}
    monkeypatch.setattr(netns, "token_bucket", lambda _: nonsense)
    with pytest.raises(NetworkError, match=r"the kernel refuses tbf .* CONFIG_NET_SCH_TBF"):
        network("star:2,rate=1Gbit").start()


NO_ROOT = """
import os, sys
os.setgid(65534); os.setuid(65534)
from topologies import Topology
from topologies.netns import Network, clean
from topologies.errors import PrivilegeError
for act in (Network(Topology.parse("star:2")).start, clean):
    try:
        act()
    except PermissionError as error:
        print(type(error).__name__, error)
"""


@as_root
def test_without_root() -> None:
    CLAIMS.mkdir(parents=True, exist_ok=True)
    code = "import topologies.netns, pyroute2\n" + NO_ROOT  # before losing sight of the files
    done = python("-c", code)
    assert done.stdout.startswith("PrivilegeError building networks needs CAP_SYS_ADMIN"), done
    assert "run as root" in done.stdout


def test_the_privilege_error_is_a_permission_error() -> None:
    assert issubclass(PrivilegeError, PermissionError)
    assert issubclass(PrivilegeError, NetworkError)


@as_root
def test_without_pyroute2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    with pytest.raises(NetworkError, match="pip install -e"):
        network("star:1").start()


def test_misuse() -> None:
    with pytest.raises(ValueError, match="prefix 'Isw-1' is not 1 to 8 small letters"):
        Network(Topology.parse("star:1"), prefix="Isw-1").start()
    with pytest.raises(TopologyError, match="no node 'h2'"):
        network("star:1").ports("h2")
