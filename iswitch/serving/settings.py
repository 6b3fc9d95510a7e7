"""Keeps the settings of a switch process, and checks that they agree."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

from iswitch.core.format.keys import Keys
from iswitch.core.format.wire import PORT
from iswitch.core.jobs.limits import Grants, Limits
from iswitch.core.jobs.policies import POLICIES
from iswitch.core.sums.pool import Pool
from iswitch.outside import UsageError
from iswitch.ports.reserved import SystemBuffers
from iswitch.system.files import check_unread
from iswitch.system.keyfiles import KEY_FILE, given_keys
from iswitch.system.logs import log

LISTEN = "127.0.0.1", PORT


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of `iswitch switch`, by their names there; its help says what each means."""

    listen: tuple[str, int] | None = None
    ports: Sequence[str] = ()
    world: str | None = None
    address: IPv4Address | None = None
    mac: bytes | None = None
    port: int | None = None
    capture: str | None = None
    parent: tuple[str, int] | None = None
    uplink: str | None = None
    hold: float | None = None  # seconds
    memory: float = 1024.0  # MiB
    slots: int = 0
    policy: str = "static"
    quota: Sequence[tuple[int | str | None, float]] = ()  # for whom, and MiB
    priority: Sequence[tuple[int | str | None, float]] = ()
    lease: float = 30.0  # seconds
    control_rate: float = 2000.0
    keys: str | None = None
    reproducible: bool = False
    counting: str = "exact"
    spin: float = 0.0  # seconds
    cpu: int | None = None
    replicate: bool = True
    offload: bool = True
    shm: bool = True
    shm_at: str | None = None
    shm_hosts: Sequence[str] = ()
    shm_links: Sequence[str] = ()
    fast: bool = True
    impair: Sequence[str] = ()
    seed: int | None = None
    json: bool = False
    watch: str | None = None  # path of a UNIX socket
    metrics: tuple[str, int] | None = None  # where to serve HTTP
    log_level: str = "warning"
    log_json: bool = False

    @property
    def udp_port(self) -> int:
        """Return the UDP port of a switch with ports of its own."""
        return self.port or PORT

    @property
    def limits(self) -> Limits:
        """Return the limits that the switch sets for its members."""
        memory = int(self.memory * 2**20)
        return Limits(
            memory,
            lease=self.lease,
            control_rate=self.control_rate,
            buffers=SystemBuffers(lambda line: log.warning("%s", line)),
            hold=self.hold,
            slots=self.slots,
            policy=self.policy,
            grants=self.grants,
        )

    @property
    def grants(self) -> Grants:
        """Return what the switch grants single jobs, and users of keys."""
        quotas = {who: int(mib * 2**20) for who, mib in self.quota}
        each = quotas.pop(None, None)
        named = {who: quota for who, quota in quotas.items() if who is not None}
        first = {who: int(number) for who, number in self.priority if who is not None}
        return Grants(named, each, first)

    def keyring(self) -> Keys:
        """Read the keys of the jobs.

        Raises:
            KeyUnusable: a file of keys cannot be used.
            UsageError: something is granted to a user whom it does not name.
        """
        keys = given_keys(self.keys)
        for option, granted in (("quota", self.quota), ("priority", self.priority)):
            named = [who for who, _ in granted]
            for who in named:
                if named.count(who) > 1:
                    of = "" if who is None else f" {who}=..."
                    raise UsageError(f"--{option}{of} is given twice; say it once")
                if isinstance(who, str) and who not in keys.users:
                    raise UsageError(
                        f"--{option} {who}=...: --keys names no such user; write [{who}] above the "
                        "keys of that user's jobs in that file, or the number of a job here"
                    )
        return keys

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            UsageError: two options contradict each other, or the capture would overwrite the keys.
        """
        of_ports = {
            "address": self.address,
            "mac": self.mac,
            "port": self.port,
            "uplink": self.uplink,
            "no-replicate": not self.replicate,
            "shm-at": self.shm_at,
        }
        for option, given in of_ports.items():
            if given and not self.ports:
                raise UsageError(
                    f"--{option} is for a switch with ports: name them with --ports IF,IF"
                )
        if self.shm_at and self.world == "bmv2":
            raise UsageError("--shm-at: a P4 program has ports only; leave it out")
        if self.shm_links and not self.shm_at:
            raise UsageError("--shm-link paces packets of --shm-at: name both, or leave it out")
        if self.ports and self.listen:
            raise UsageError(
                "--listen is for a switch without --ports; with them it has an --address"
            )
        if self.uplink and not self.parent:
            raise UsageError(
                f"--uplink {self.uplink} leads to no --parent; name it, or leave both out"
            )
        if self.hold is not None and not self.parent:
            raise UsageError("--hold is for a switch with a --parent; name it, or leave --hold out")
        if self.world not in (None, *(("raw", "bmv2") if self.ports else ("loopback",))):
            raise UsageError(
                f"--world {self.world}: a switch with --ports is raw or bmv2, one without is "
                "loopback"
            )
        check_unread(self.capture, self.keys, os.environ.get(KEY_FILE))
        if self.slots and self.counting != "exact":
            raise UsageError(
                f"--counting {self.counting} keeps a counter for each segment; leave out --slots"
            )
        self.check_slots()
        if self.world == "bmv2":
            self.check_p4()
        elif self.reproducible and self.counting != "exact":
            raise UsageError(
                f"--counting {self.counting} does not know whose packets it counts, so it cannot "
                "sum in rank order; leave out --reproducible"
            )

    def check_slots(self) -> None:
        """Refuse a number of shared slots that is missing, or beyond the memory.

        Raises:
            UsageError: the number is missing, or beyond the memory.
        """
        if not POLICIES[self.policy].passes_on:
            return
        if not self.slots:
            raise UsageError(
                f"--policy {self.policy} shares slots among the jobs; say how many: --slots N"
            )
        if Pool.memory(self.slots) > self.limits.memory:
            most = self.limits.memory // Pool.memory(1)
            raise UsageError(
                f"--slots {self.slots} do not fit into --memory; it has room for {most:,} of "
                f"{Pool.memory(1):,} bytes"
            )

    def check_p4(self) -> None:
        """Refuse what the P4 program cannot do.

        Raises:
            UsageError: an option asks for something that the program cannot do.
        """
        for option in ("capture", "impair", "reproducible", "slots", "policy"):
            given = getattr(self, option)
            if given and given != getattr(Settings, option):
                raise UsageError(
                    f"--{option} is not for --world bmv2: docs/p4.md says what the P4 program lacks"
                )
        if self.counting != "exact":
            raise UsageError(f"--counting {self.counting}: the P4 program counts exactly")
