"""The process of a worker: `python -m worker_lib.rl.worker_process PLAN`; see worker.py.

If a library cannot be loaded, for lack of memory say, the process prints an `error` message.
"""

from __future__ import annotations

import sys

from .plan import report

NO_MEMORY = ("failed to map", "allocate memory", "out of memory")  # of the linker, and of torch
MEND = "; free some memory, or raise ulimit -v"


def main() -> int:
    """Import worker.py and run it; return the exit status."""
    try:
        from .worker import main as run

        return run()
    except (ImportError, MemoryError, OSError, RuntimeError) as error:
        is_memory = isinstance(error, MemoryError) or any(text in str(error) for text in NO_MEMORY)
        if isinstance(error, RuntimeError) and not is_memory:
            raise
        what = (
            f"cannot load {error.name or 'a library'}: " if isinstance(error, ImportError) else ""
        )
        message = what + (str(error) or "out of memory") + MEND * is_memory
        report("error", message=message, outside=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
