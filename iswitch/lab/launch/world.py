"""A topology made real: what every world says of its nodes, its switches and their environment."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Self

from iswitch.core.jobs.policies import POLICIES
from iswitch.lab.options import option_words
from iswitch.outside import UsageError
from iswitch.watch.places import Watch, made_run

if TYPE_CHECKING:
    from topologies import Topology

OF_MEMORY = "--memory", "--policy", "--slots"  # options of switches in virtual time


class World(ABC):
    """A topology made real: a context that builds it and removes it.

    By default nothing is built, and every node is this machine.

    Args:
        topology: topology that is built.
        offload: send super-frames whole.

    Attributes:
        of: options of `iswitch switch` for single switches besides, by name.
        title: names the network for people: the topology, and the kind of world.
    """

    def __init__(self, topology: Topology, offload: bool) -> None:
        self.topology = topology
        self.offload = offload
        self.of: Mapping[str, Sequence[str]] = {}
        self.title = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def place(self, node: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """Make a context in which processes start at a node."""
        return nullcontext()

    def watched(self, title: str) -> AbstractContextManager[Watch | None]:
        """Make a context in which switches show themselves, as `title`; None: they cannot."""
        return made_run(title)

    @abstractmethod
    def switch_options(self, name: str, listening: Mapping[str, str]) -> list[str]:
        """List the options of a switch.

        Args:
            name: the switch.
            listening: the addresses of the switches started so far, by name: of its parents, and
                after a restart its own.
        """

    @abstractmethod
    def address(self, host: str) -> str:
        """Return the IP address of a host."""

    def environment(self, host: str) -> dict[str, str]:  # noqa: ARG002
        """Return the variables that programs on a host need, and that silence torch.

        torch warns of each address that no name server resolves.
        """
        return {"TORCH_CPP_LOG_LEVEL": "ERROR"}

    def necessary(self, host: str, number: int) -> dict[str, str]:  # noqa: ARG002
        """Return the variables that a process gets whatever the user has set.

        Args:
            host: its host.
            number: its number among all processes.
        """
        return {}

    def meeting(self, host: str) -> str:
        """Return the IP address at which a host's processes meet others of their job."""
        return self.address(host)

    def reserve(self, hosts: Sequence[str]) -> list[tuple[str, int]] | None:  # noqa: ARG002
        """Choose an address for a process on each host; None: the kernel chooses them."""
        return None

    def entry(self, node: str) -> str:  # noqa: ARG002
        """Return the prefix that runs a command at a node; "": the node is this machine."""
        return ""


def check_policy(options: Sequence[str], topology: Topology, mend: str) -> None:
    """Refuse a policy that passes on what finds no slot where no switch is above another.

    Args:
        options: more of `iswitch switch` for all switches, each apart from its value.
        topology: has the switches.
        mend: what to do instead; `{policy}` and `{slots}` stand for what is given.

    Raises:
        UsageError: the only switch would be static, since it has none above.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--policy", choices=POLICIES, default="static")
    parser.add_argument("--slots", default="N")
    found = parser.parse_known_args(options)[0]
    if POLICIES[found.policy].passes_on and len(topology.tree) == 1:
        raise UsageError(
            f"--switch=--policy={found.policy}: {topology.name} is one switch, with none "
            f"above it to pass anything on to; {mend.format(**vars(found))}"
        )


def more_options(kind: str, bmv2: Collection[str], chosen: Sequence[str]) -> list[str]:
    """Return the options of `iswitch switch` that `--switch` names for all switches.

    Args:
        kind: kind of the world.
        bmv2: the switches that are P4 programs.
        chosen: the texts of `--switch`.

    Raises:
        UsageError: switches of this kind do not have them.
    """
    texts = [text for text in chosen if text.startswith("-")]
    if texts and bmv2:
        raise UsageError(f"--switch={texts[0]}: a P4 program has no such options; leave it out")
    options = [word for text in texts for word in option_words(text)]
    others = [word for word in options if word.startswith("--") and word not in OF_MEMORY]
    if kind == "sim" and others:
        raise UsageError(
            f"--switch={others[0]}: in virtual time switches have {', '.join(OF_MEMORY)} only; "
            "leave it out, or use another world"
        )
    return options
