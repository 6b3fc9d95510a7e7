"""The switch's runtime API: lines for `simple_switch_CLI`, and its answers.

Table entries, multicast groups, queue depths and counters are written and read by these lines,
which a plain bmv2 takes over Thrift. The control plane reads and writes registers at the CPU port
instead, in order with the packets.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from typing import IO, Protocol

PROMPT = b"RuntimeCmd: "
HANDLE = re.compile(r"handle (-?\d+)")
COUNTED = re.compile(r"(\d+) packets")
REFUSALS = ("Error", "Invalid", "Unknown", "Could not", "***")


class RuntimeRefused(Exception):
    """Raised when the switch refuses a line; the message has the line and the answer."""


class Runtime(Protocol):
    """Executes lines, and returns an answer to each."""

    def run(self, lines: Sequence[str]) -> list[str]:
        """Execute lines; return the answer to each.

        Raises:
            RuntimeRefused: a line was refused.
        """

    def close(self) -> None:
        """End the connection: no more lines will come."""


class Cli:
    """Runs `simple_switch_CLI`, and keeps it open.

    Args:
        command: the program and its arguments.

    Raises:
        RuntimeRefused: the program does not start.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # it ends with that
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in: IO[bytes] = self.process.stdin
        self._out: IO[bytes] = self.process.stdout
        self._said = b""
        try:
            self._read("start")
        except RuntimeRefused:
            self.close()
            raise

    def run(self, lines: Sequence[str]) -> list[str]:
        """Execute lines; return the answer to each.

        Raises:
            RuntimeRefused: a line was refused.
        """
        self._in.write("".join(f"{line}\n" for line in lines).encode())
        self._in.flush()
        answers = [self._read(line) for line in lines]
        for line, answer in zip(lines, answers, strict=True):
            if any(start.startswith(REFUSALS) for start in answer.splitlines()):
                raise RuntimeRefused(f"{line}: {answer}")
        return answers

    def close(self) -> None:
        """End the connection: no more lines will come."""
        self._in.close()
        self._out.close()
        self.process.wait()

    def _read(self, line: str) -> str:
        """Read what comes before the next prompt."""
        while PROMPT not in self._said:
            some = os.read(self._out.fileno(), 1 << 16)
            if not some:
                said = self._said.decode(errors="replace").strip()
                raise RuntimeRefused(f"{line}: {said or 'simple_switch_CLI has ended'}")
            self._said += some
        answer, self._said = self._said.split(PROMPT, 1)
        return answer.decode(errors="replace").strip()


def handle(answer: str) -> int:
    """Read the handle of a new object from an answer.

    Raises:
        RuntimeRefused: the answer has none.
    """
    found = HANDLE.search(answer)
    if not found:
        raise RuntimeRefused(f"no handle in {answer!r}")
    return int(found[1])


def packets(answer: str) -> int:
    """Read the packets of a counter from an answer.

    Raises:
        RuntimeRefused: the answer has none.
    """
    found = COUNTED.search(answer)
    if not found:
        raise RuntimeRefused(f"no count in {answer!r}")
    return int(found[1])
