"""Keep the corpus of each target in one text file: a line of hex for each input.

What follows a `#` is a comment: what the input once found. libFuzzer wants a folder with a file for
each input; `unpack` makes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"


def inputs(target: str) -> list[bytes]:
    """Read the inputs of a target, in the order of the file."""
    lines = (FOLDER / f"{target}.txt").read_text().splitlines()
    words = (line.partition("#")[0].strip() for line in lines)
    return [bytes.fromhex(word) for word in words if word]


def unpack(target: str, to: Path) -> None:
    """Write each input to a file of its own, with the name that libFuzzer would give it."""
    to.mkdir(parents=True, exist_ok=True)
    for content in inputs(target):
        (to / hashlib.sha1(content).hexdigest()).write_bytes(content)


def add(target: str, contents: Iterable[bytes], comment: str = "") -> int:
    """Append the inputs that the corpus lacks; return their number."""
    known = {*inputs(target), b""}
    new = sorted({*contents} - known, key=lambda content: (len(content), content))
    remark = f"  # {comment}" if comment else ""
    with (FOLDER / f"{target}.txt").open("a") as file:
        file.writelines(f"{content.hex()}{remark}\n" for content in new)
    return len(new)
