"""The mutants, as data, and how one is put into a copy of the tree."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TABLE = Path(__file__).parent / "table"
SEEDS = Path(__file__).parent / "seeds.json"


class Rotten(ValueError):
    """An entry does not fit the code any more; the message says which, and how."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One defect.

    Attributes:
        name: short, for `--only`.
        what: what is broken, in words.
        file: where, from the root of the tree.
        old: the right text, which the file holds exactly once.
        new: the wrong text in its place.
        test: the unit test (a file, or one test of it) that fails with it; empty: none known.
        soak: whether soak must catch it, be there a unit test or not.
        survives: why nothing can catch it; empty: something must.
    """

    name: str
    what: str
    file: str
    old: str
    new: str
    test: str = ""
    soak: bool = False
    survives: str = ""

    def text(self, root: Path = ROOT) -> str:
        """The file with the defect in it.

        Raises:
            Rotten: the right text is not there, or more than once.
        """
        text = (root / self.file).read_text(encoding="utf-8")
        count = text.count(self.old)
        if count != 1:
            raise Rotten(f"{self.name}: {self.file} has its old text {count} times, not once")
        return text.replace(self.old, self.new)

    def apply(self, root: Path) -> None:
        """Put it into a copy of the tree.

        Raises:
            Rotten: it does not fit.
        """
        if root.resolve() == ROOT:
            raise ValueError("a mutant goes into a copy, not into the checkout")
        text, file = self.text(root), root / self.file
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            compiled.unlink()  # it could look newer than what is written now
        rewrite(file, text)


def rewrite(file: Path, text: str) -> None:
    """Write a file anew: the old one may have another name in another copy of the tree."""
    file.unlink()
    file.write_text(text, encoding="utf-8")


def mutants(table: Path = TABLE) -> list[Mutant]:
    """All of the table, by file and place in it."""
    found = []
    for path in sorted(table.glob("*.toml")):
        entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
        found += [Mutant(**entry) for entry in entries]
    return found


def seeds_known() -> dict[str, int]:
    """The first seed that showed each mutant when all were played last; many have none."""
    known: dict[str, int] = json.loads(SEEDS.read_text(encoding="utf-8"))
    return known


def keep_seed(name: str, seed: int | None) -> None:
    """Write down which seed shows a mutant; None: none does."""
    known = {**seeds_known(), name: seed}
    kept = {one.name: known[one.name] for one in mutants() if known.get(one.name) is not None}
    SEEDS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
