"""Which histories reach a mutant: all others are the same with it and without it.

A probe stands before the statement that the mutant changes, in a tree that is sound otherwise.
A history that never passes the probe never runs what is changed. So soak need not play it.
Run as `python -m tests.mutants.reach SEED...` in such a tree, this plays the seeds.
"""

from __future__ import annotations

import ast
import builtins
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.mutants.table import Mutant, rewrite

PROBES = "reached_mutants"  # a set among the builtins: a probe needs no import


def put_probes(mutants: Iterable[Mutant], root: Path) -> set[str]:
    """Put a probe before each mutant's statement.

    Returns:
        the names of the others: they change what runs at an import, so every history reaches them.
    """
    files: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        files[mutant.file].append(mutant)
    always = set()
    for name, group in files.items():
        text = (root / name).read_text(encoding="utf-8")
        lines, tree = text.splitlines(keepends=True), ast.parse(text)
        at = [(line_of_probe(tree, lines, mutant), mutant) for mutant in group]
        for line, mutant in sorted(at, key=lambda pair: -pair[0]):
            if not line:
                always.add(mutant.name)
                continue
            below = lines[line - 1]
            indent = below[: len(below) - len(below.lstrip())]
            lines.insert(line - 1, f"{indent}{PROBES}.add({mutant.name!r})\n")
        rewrite(root / name, "".join(lines))
    return always


def line_of_probe(tree: ast.Module, lines: list[str], mutant: Mutant) -> int:
    """Find the line of the innermost statement that holds what a mutant changes.

    Returns:
        its number, from 1; 0 where the text is outside of all functions.
    """
    text, old = "".join(lines), mutant.old.rstrip()
    before = text[: text.index(mutant.old)] + old[: len(old) - len(old.lstrip())]
    first = before.count("\n") + 1
    last = first + old.strip().count("\n")
    found = 0
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for block in blocks(function):
            begins = [statement.lineno for statement in block if statement.lineno <= first]
            if not begins or last > (block[-1].end_lineno or 0):
                continue
            own_line = not lines[begins[-1] - 1].lstrip().startswith(("elif ", "@"))
            if own_line and starts_its_line(block, begins[-1], lines):
                found = max(found, begins[-1])
    return found


def blocks(function: ast.FunctionDef) -> Iterable[list[ast.stmt]]:
    """Yield all lists of statements in a function, without its docstring."""
    for node in ast.walk(function):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block:
                skip = node is function and ast.get_docstring(function) is not None
                yield block[skip:]


def starts_its_line(block: list[ast.stmt], line: int, lines: list[str]) -> bool:
    """Tell whether a statement is the first on its line: `if halted: return` holds another."""
    columns = [statement.col_offset for statement in block if statement.lineno == line]
    return not lines[line - 1][: min(columns)].strip()


def main(seeds: list[int]) -> None:
    reached: set[str] = set()
    setattr(builtins, PROBES, reached)
    from iswitch.lab.soak.many import play_seed  # its modules have probes

    for seed in seeds:
        reached.clear()
        result = play_seed(seed)
        print(json.dumps({"seed": seed, "reached": sorted(reached)}), flush=True)
        if result.violation:
            raise SystemExit(f"without any mutant: seed {seed}: {result.message}")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
