"""Executes the course's notebooks; `python -m tests.docs.notebooks` stores their outputs.

All run in one kernel, which saves the time to start six. A cell with the tag `rounding` prints
figures whose last digits depend on the machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.support import ROOT

COURSE = ROOT / "docs" / "tutorial"
NOTEBOOKS = sorted(COURSE.glob("*.ipynb"))
PATIENCE = 300  # seconds for a cell

Notebook = Any  # nbformat has no types


def read(path: Path) -> Notebook:
    """Read a notebook as it is stored."""
    return nbformat.read(path, as_version=4)


def executed(paths: list[Path]) -> list[Notebook]:
    """Execute notebooks, each as if it had a kernel of its own; return them with their outputs."""
    notebooks = [read(path) for path in paths]
    whole = nbformat.v4.new_notebook(metadata=notebooks[0].metadata)
    for notebook in notebooks:
        begin = nbformat.v4.new_code_cell(f"%cd -q {COURSE}\n%reset -f")
        whole.cells += [begin, *notebook.cells]
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["ISWITCH_FAST"] = "0"  # the simulated switch is Python anyway
    NotebookClient(
        whole, timeout=PATIENCE, kernel_name="python3", record_timing=False, coalesce_streams=True
    ).execute()
    for notebook in notebooks:
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        for number, cell in enumerate(code, 1):
            cell.execution_count = number
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = number
    return notebooks


def main() -> None:
    """Execute the notebooks, and write them with their outputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--to", type=Path, default=COURSE, help="a folder (default: where they are)"
    )
    folder = parser.parse_args().to
    for path, notebook in zip(NOTEBOOKS, executed(NOTEBOOKS), strict=True):
        nbformat.write(notebook, folder / path.name)
        print(f"{path.name}: {(folder / path.name).stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
