"""The process of a command line: `iswitch`, `python -m iswitch`."""

import sys


def main() -> int:
    """Run the command line of this process; return the exit status.

    It imports everything inside the `try`, so that Ctrl-C during an import prints one sentence.
    """
    try:
        from iswitch.system.interrupts import end_at_once, ignore_interrupts, ignore_requests

        end_at_once()
        if sys.argv[1:2] == ["switch"]:  # what other commands start would inherit it
            ignore_requests()
        from iswitch.system.boundary import own_process

        own_process()
        from .cli import main as run

        status = run()
        ignore_interrupts()
        return status
    except KeyboardInterrupt:
        print("iswitch: stopped by SIGINT", file=sys.stderr)
        return 130
    except (OSError, ImportError, MemoryError) as error:  # there is not enough to be loaded
        print(f"iswitch: cannot be loaded: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
