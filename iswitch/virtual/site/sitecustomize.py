"""Moves a worker of `iswitch run --world sim` into virtual time before its program starts."""

import importlib
import os
import sys

if os.environ.get("ISWITCH_VIRTUAL"):
    try:
        from iswitch.virtual.install import enter
    except ImportError as error:
        print(
            f"--world sim: this Python ({sys.executable}) cannot import iswitch ({error}), so its "
            "programs know no virtual time; install iswitch there, or use another world",
            file=sys.stderr,
        )
        os._exit(2)
    enter()

# Python's own sitecustomize, if there is one, runs as if this one were not there.
_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _here]
sys.modules.pop("sitecustomize", None)
try:
    importlib.import_module("sitecustomize")
except ModuleNotFoundError:
    sys.modules["sitecustomize"] = type(sys)("sitecustomize")
