"""The keys of `iswitch top` that command a job: each asks back, then runs `iswitch ctl`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ACTIONS = {"h": "halt", "r": "reset", "f": "fbcast", "t": "seth"}
QUESTIONS = {
    "halt": "Halt job {job}: suspend it on all workers? y/n",
    "reset": "Reset job {job}: clear its buffers, void the rounds under way? y/n",
    "fbcast": "FBcast job {job}: send round {round} now, partial as it is? y/n",
    "seth": "SetH of job {job} to {typed}{what}? y/n",
}
MOST_DIGITS = 9


@dataclass(frozen=True)
class Target:
    """The job that commands are for, where they go, and the words that lead there."""

    job: int
    round: int
    segments: int
    switch: str
    entry: Sequence[str]


class Prompt:
    """Takes keys one by one, and runs a command once it is confirmed.

    Args:
        run: runs a command line, and returns what it prints.
    """

    def __init__(self, run: Callable[[Sequence[str]], str] | None = None) -> None:
        self._run = run or output_of
        self._action = ""
        self._typed = ""
        self._asks = False  # for y or n
        self._target: Target | None = None
        self.said = ""  # by the last command

    @property
    def is_open(self) -> bool:
        """Return whether the next key belongs to a question."""
        return bool(self._action)

    def line(self) -> str:
        """Return the question, or what the last command said; "": neither."""
        if not self._action or self._target is None:
            return self.said
        if not self._asks:
            return f"SetH of job {self._target.job} to H (0: all), then Enter: {self._typed}_"
        what = " (every worker's)" * (self._typed == "0")
        return QUESTIONS[self._action].format(
            job=self._target.job, round=self._target.round, typed=self._typed, what=what
        )

    def key(self, key: str, target: Target | None) -> None:
        """Handle a key.

        Args:
            key: the character.
            target: the chosen job; None: there is none.
        """
        if not self._action:
            self.said = ""
            if key in ACTIONS and target is None:
                self.said = "there is no job to command"
            elif key in ACTIONS:
                self._action, self._target, self._typed = ACTIONS[key], target, ""
                self._asks = self._action != "seth"
        elif not self._asks:
            self._type(key)
        elif key in "yY":
            self._act()
        else:
            self._forget("nothing was done")

    def _type(self, key: str) -> None:
        if key in "\r\n" and self._typed:
            self._asks = True
        elif key in "\x7f\b":
            self._typed = self._typed[:-1]
        elif key.isascii() and key.isdigit() and len(self._typed) < MOST_DIGITS:
            self._typed += key
        else:
            self._forget("nothing was done")

    def _act(self) -> None:
        assert self._target is not None
        words = command(self._action, self._target, self._typed)
        self._forget("")
        self.said = self._run(words)

    def _forget(self, said: str) -> None:
        self._action, self.said = "", said


def command(action: str, target: Target, typed: str) -> list[str]:
    """Return the command line of an action."""
    own = {
        "seth": [typed],
        "fbcast": [str(target.round), "0", str(target.segments)],
    }.get(action, [])
    words = ["ctl", action, *own, "--job", str(target.job), "--switch", target.switch]
    return [*target.entry, sys.executable, "-m", "iswitch", *words, "--timeout", "3"]


def output_of(words: Sequence[str]) -> str:
    """Run a command; return the last line that it prints."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=15)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it could not be done: {error}"
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"
