"""The checks of `iswitch doctor`: the meaning of each, and the cost and mend of a failure.

A check asks a `Host` and judges the answer. A new check is a function and a line in CHECKS.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from iswitch.fast.keeping import MEND
from iswitch.lab.options import PIP_DEMO
from iswitch.outside import extra
from iswitch.system.boundary import DESCRIPTORS
from p4.tools import CLI, COMPILER, HOME, PIP, SWITCH
from worker_lib.protocol.window import CEILING

from .host import PACKETS, Host

PROCESSES = 5  # of the demo: a switch and four workers
BACKLOG = 1000  # packets, the kernel's default
CAP_NET_ADMIN, CAP_NET_RAW = 12, 13  # linux/capability.h
AS_ROOT = "run as root (sudo)"
ALL = "pip install -e . (in a checkout of iswitch)"
RL = extra("rl")
NETWORKS = extra("netns,mininet")
FAST = extra("fast")
TREE = extra("tree")
NO_TREE = "no strategy `tree`"
MPI = extra("mpi")
SCAPY = extra("scapy")
WEB = extra("web")
METRICS = extra("metrics")
TRACE = extra("trace")
FEDERATED = extra("federated")
DASK = extra("dask")
TSHARK = "`iswitch dissector` does not see whether its plugin loads"
NO_P4 = "no `--world bmv2`, no `--switch bmv2`"
P4_TOOLS = f"build p4c and behavioral-model as docs/p4.md says, and name their prefix by {HOME}"
APT = "apt-get install --no-install-recommends"

State = Literal["ok", "limited", "missing"]


class Finding(NamedTuple):
    """The finding of a check: the state, its cost, and the mend."""

    state: State
    found: str
    cost: str = ""
    mend: str = ""


@dataclass(frozen=True)
class Result:
    """One line of the report."""

    name: str
    state: State
    found: str
    cost: str
    mend: str
    vital: bool


@dataclass(frozen=True)
class Check:
    """Something to check; `vital`: the loopback world cannot run without it."""

    name: str
    look: Callable[[Host], Finding]
    vital: bool = False

    def run(self, host: Host) -> Result:
        """Run the check; a failure is a finding, too."""
        try:
            finding = self.look(host)
        except Exception as error:
            what = f"cannot be tried: {type(error).__name__}: {error}"
            finding = Finding("missing", what, "unknown; whatever uses it may fail")
        return Result(self.name, *finding, self.vital)


def system(host: Host) -> Finding:
    """Check the kernel: 5.0 brought UDP_GRO, the newest feature that iswitch uses."""
    name, release = host.system()
    if name != "Linux":
        return Finding("missing", f"{name} {release}", "only Linux is supported", "run on Linux")
    version = tuple(map(int, re.findall(r"\d+", release)[:2]))
    if version < (5, 0):
        cost = "no super-datagrams: a tenth of the throughput"
        return Finding("limited", release, cost, "Linux 5.0 or newer")
    return Finding("ok", release)


def python(host: Host) -> Finding:
    """Check for the oldest Python that is tested."""
    version = host.python()
    found = ".".join(map(str, version))
    if version < (3, 11):
        return Finding("missing", found, "nothing runs", "install Python 3.11 or newer")
    return Finding("ok", found)


def numpy(host: Host) -> Finding:
    """Check for NumPy 2.0, which made np.seterr local to a context."""
    mend = "pip install 'numpy>=2.0'"
    try:
        version = host.numpy()
    except ImportError as error:
        return Finding("missing", str(error), "nothing runs", mend)
    if int(version.split(".")[0]) < 2:
        return Finding("missing", version, "nothing runs", mend)
    return Finding("ok", version)


def segment(host: Host) -> Finding:
    """Check that super-datagrams can be sent."""
    if host.exchange(offload=True).sent_whole:
        return Finding("ok", f"{PACKETS} packets left in one call")
    cost = "sends packets one by one: several times the CPU time per byte"
    return Finding("limited", "refused by the kernel", cost, "Linux 4.18 or newer")


def gro(host: Host) -> Finding:
    """Check that super-datagrams can be received."""
    if host.exchange(offload=True).came_whole:
        return Finding("ok", f"{PACKETS} packets came as one")
    cost = "receives packets one by one: several times the CPU time per byte"
    return Finding("limited", "packets came apart", cost, "Linux 5.0 or newer")


def batches(host: Host) -> Finding:
    """Check that a system call can move many packets."""
    seen = host.exchange(offload=False)
    if seen.intact == PACKETS:
        return Finding("ok", f"up to {seen.most_at_once} packets at once")
    cost = "UDP over the loopback device loses or changes packets: nothing runs"
    mend = "ip link set lo up; let local UDP through the firewall"
    return Finding("missing", f"{seen.intact} of {PACKETS} packets came intact", cost, mend)


def tos(host: Host) -> Finding:
    """Check the ToS byte, which marks the protocol's packets."""
    from iswitch.core.format.wire import TOS_DATA

    seen = host.exchange(offload=False).tos
    if seen == {TOS_DATA}:
        return Finding("ok", f"0x{TOS_DATA:02X} arrived")
    found = ", ".join(f"0x{value:02X}" for value in sorted(seen)) or "no packet"
    cost = "packets are not recognised as the protocol's: nothing runs"
    mend = "remove firewall rules that set the ToS byte (DSCP)"
    return Finding("missing", f"sent 0x{TOS_DATA:02X}, came {found}", cost, mend)


def overflow(host: Host) -> Finding:
    """Check that the kernel counts its own drops."""
    count = host.overflow()
    if count:
        return Finding("ok", f"{count} forced drops were counted")
    cost = "what the kernel drops at a socket is repaired, but not shown as rx_overflow"
    return Finding("limited", "forced drops were not counted", cost)


def receive_buffer(host: Host) -> Finding:
    """Check the buffers for packets that come while the process is busy."""
    each = min(host.buffers().receive // 4, CEILING) >> 10
    cost = (
        f"the workers of a job share what they have under way: four have {each} KiB each, of "
        f"{CEILING >> 10} at most; small windows take up to 1.5 times the CPU time per byte"
    )
    return _buffer(host, host.buffers().receive, "net.core.rmem_max", cost)


def send_buffer(host: Host) -> Finding:
    """Check the buffers for packets of a broadcast."""
    cost = "sending waits more often for the device: slower broadcasts"
    return _buffer(host, host.buffers().send, "net.core.wmem_max", cost)


def _buffer(host: Host, got: int, parameter: str, cost: str) -> Finding:
    from iswitch.ports.udp import BUFFER

    limit = host.sysctl(parameter)
    shown = "not shown here" if limit is None else _mib(limit)
    found = f"{_mib(got)} of {_mib(BUFFER)} ({parameter.rpartition('.')[2]}: {shown})"
    if got >= BUFFER:
        return Finding("ok", found)
    return Finding("limited", found, cost, f"as root: sysctl -w {parameter}={BUFFER}")


def _mib(size: int) -> str:
    return f"{size / 2**20:.3g} MiB"


def backlog(host: Host) -> Finding:
    """Check the queue between a virtual device and the sockets."""
    parameter = "net.core.netdev_max_backlog"
    length = host.sysctl(parameter)
    if length is None:
        return Finding("ok", "not shown here (a container?)")
    if length >= BACKLOG:
        return Finding("ok", f"{length} packets")
    cost = "bursts over loopback and veth are dropped before they reach a socket, unseen by it"
    mend = f"as root: sysctl -w {parameter}={BACKLOG}"
    return Finding("limited", f"{length} packets", cost, mend)


def descriptors(host: Host) -> Finding:
    """Check the limit of sockets, pipes and files."""
    most = host.descriptors()
    if most in range(DESCRIPTORS):
        cost = "a switch and four workers open nearly as many, larger networks more: nothing runs"
        return Finding("missing", f"{most} in a process", cost, "ulimit -n 1024")
    return Finding("ok", "no limit" if most < 0 else f"{most:,} in a process")


def cores(host: Host) -> Finding:
    """Check the cores: processes that wait for one another run best at once."""
    count = host.cores()
    if count >= PROCESSES:
        return Finding("ok", str(count))
    cost = (
        f"the demo's {PROCESSES} processes share {count} core{'s' * (count > 1)}: the same "
        "results, later; times measured here say little about real machines"
    )
    return Finding("limited", str(count), cost, f"{PROCESSES} cores or more")


def privileges(host: Host) -> Finding:
    """Check the privileges that raw ports and namespaces need."""
    held = host.capabilities()
    wanted = {"CAP_NET_ADMIN": CAP_NET_ADMIN, "CAP_NET_RAW": CAP_NET_RAW}
    lacking = [name for name, bit in wanted.items() if not held >> bit & 1]
    who = "root" if host.user() == 0 else f"user {host.user()}"
    if not lacking:
        return Finding("ok", f"{who}, with {' and '.join(wanted)}")
    cost = "only --world loopback and sim work; raw switch ports, namespaces and Mininet do not"
    state: State = "missing" if len(lacking) == len(wanted) else "limited"
    return Finding(state, f"{who}, without {' and '.join(lacking)}", cost, AS_ROOT)


def packet_socket(host: Host) -> Finding:
    """Check that AF_PACKET sockets, which raw ports use, can be opened."""
    if host.packet_socket():
        return Finding("ok", "can be opened")
    return Finding("missing", "not permitted", "no raw switch ports", AS_ROOT)


def namespaces(host: Host) -> Finding:
    """Check that network namespaces can be made."""
    cost = "no topologies of hosts and switches on this machine, no Mininet"
    return {
        "yes": Finding("ok", "can be made"),
        "user": Finding(
            "limited",
            "only in a user namespace",
            "topologies need a shell of their own; no Mininet",
            f"unshare --user --map-root-user --net; or {AS_ROOT}",
        ),
        "no": Finding("missing", "not permitted", cost, AS_ROOT),
    }[host.namespaces()]


def program(name: str, cost: str, debian: str, host: Host) -> Finding:
    """Check for an optional program, which a Debian package holds."""
    return _there(host.program(name), "not found", cost, f"{APT} {debian}")


def p4_tool(name: str, host: Host) -> Finding:
    """Check for a program that the P4 switch needs."""
    return _there(host.p4_tool(name), "not found", NO_P4, P4_TOOLS)


def p4_cli(host: Host) -> Finding:
    """Check the CLI of the P4 switch, which needs a Python package."""
    found = p4_tool(CLI, host)
    if found.state == "ok" and (complaint := host.p4_cli()):
        return Finding("missing", f"{found.found} does not load: {complaint}", NO_P4, PIP)
    return found


def package(name: str, cost: str, mend: str, host: Host) -> Finding:
    """Check for an optional Python package."""
    return _there(host.version(name), "not installed", cost, mend)


def torch(host: Host) -> Finding:
    """Check for PyTorch, and that the installation tells it of the backend."""
    found = package("torch", "no `iswitch train`, worker_lib.torch, `gloo`", RL, host)
    if found.state == "ok" and not host.torch_knows_iswitch():
        return Finding(
            "limited",
            f'{found.found}, which does not find the backend "iswitch"',
            'init_process_group("iswitch") fails: Unknown backend type',
            f"{ALL} once more, or `import worker_lib.torch` in the script",
        )
    return found


def fast(host: Host) -> Finding:
    """Check for the compiled fast path; compile it, so that no switch or worker has to wait."""
    cost = "packets are handled in Python: half the throughput (docs/performance.md)"
    version = host.version("numba")
    if version is None:
        return Finding("missing", "Numba is not installed", cost, FAST)
    if not host.wants_fast():
        return Finding("limited", "switched off by ISWITCH_FAST=0", cost, "unset ISWITCH_FAST")
    trouble = host.fast_trouble()
    if trouble:
        return Finding("limited", trouble, cost, MEND)
    seconds, compiles = host.load_fast()
    took = f"in {seconds:.1f} s, once" if compiles else f"before: {seconds:.1f} s to load"
    return Finding("ok", f"compiled {took} (Numba {version})")


def shared_memory(host: Host) -> Finding:
    """Check for shared memory between a switch and workers of this machine; say who uses it."""
    cost = "workers of this machine exchange packets with their switch by UDP"
    if not host.has_rings():
        return Finding("limited", "no sealed memory, or not x86-64", cost, "Linux 5.1, x86-64")
    if host.wants_rings() == "0":
        return Finding("limited", "switched off by ISWITCH_SHM=0", cost, "unset ISWITCH_SHM")
    return Finding("ok", "used by a switch and workers of this machine")


def _there(found: str | None, lacking: str, cost: str, mend: str) -> Finding:
    return Finding("missing", lacking, cost, mend) if found is None else Finding("ok", found)


CHECKS = (
    Check("kernel", system, vital=True),
    Check("Python", python, vital=True),
    Check("NumPy", numpy, vital=True),
    Check("recvmmsg, sendmmsg", batches, vital=True),
    Check("IP_RECVTOS", tos, vital=True),
    Check("UDP_SEGMENT", segment),
    Check("UDP_GRO", gro),
    Check("SO_RXQ_OVFL", overflow),
    Check("receive buffer", receive_buffer),
    Check("send buffer", send_buffer),
    Check("netdev_max_backlog", backlog),
    Check("open files", descriptors, vital=True),
    Check("cores", cores),
    Check("fast path", fast),
    Check("shared memory", shared_memory),
    Check("privileges", privileges),
    Check("AF_PACKET", packet_socket),
    Check("network namespaces", namespaces),
    Check("gymnasium", partial(package, "gymnasium", "`iswitch demo` has no CartPole", PIP_DEMO)),
    Check("matplotlib", partial(package, "matplotlib", "`iswitch demo` draws no figure", PIP_DEMO)),
    Check("torch", torch),
    Check("MuJoCo", partial(package, "mujoco", "`iswitch train` lacks Hopper, HalfCheetah", RL)),
    Check("ALE", partial(package, "ale_py", "`iswitch train` has no Atari games", RL)),
    Check("tensorboardX", partial(package, "tensorboardX", "no `iswitch train`", RL)),
    Check("ml_dtypes", partial(package, "ml_dtypes", "no bfloat16, no worker_lib.torch", ALL)),
    Check("pyroute2", partial(package, "pyroute2", "no networks of namespaces", NETWORKS)),
    Check("Mininet", partial(package, "mininet", "no networks of Mininet's", NETWORKS)),
    Check("mnexec", partial(program, "mnexec", "no hosts and switches of Mininet's", "mininet")),
    Check("networkx", partial(package, "networkx", NO_TREE, TREE)),
    Check("SciPy", partial(package, "scipy", f"{NO_TREE}, no `place --policy fastest`", TREE)),
    Check("mpi4py", partial(package, "mpi4py", "no strategy `mpi`", MPI)),
    Check("mpirun", partial(program, "mpirun", "no strategy `mpi`", "openmpi-bin")),
    Check("scapy", partial(package, "scapy", "no layers for scapy: iswitch.dissect.scapy", SCAPY)),
    Check("aiohttp", partial(package, "aiohttp", "no `iswitch web`", WEB)),
    Check("prometheus_client", partial(package, "prometheus_client", "no --metrics", METRICS)),
    Check("OpenTelemetry", partial(package, "opentelemetry-sdk", "no ISWITCH_TRACE", TRACE)),
    Check("scikit-learn", partial(package, "scikit-learn", "no `--data digits`", FEDERATED)),
    Check("Dask", partial(package, "distributed", "no `simulate --scheduler`", DASK)),
    Check("tshark", partial(program, "tshark", TSHARK, "tshark")),
    Check(COMPILER, partial(p4_tool, COMPILER)),
    Check(SWITCH, partial(p4_tool, SWITCH)),
    Check(CLI, p4_cli),
    Check("rich", partial(package, "rich", "plain tables, no progress bars", ALL)),
)
