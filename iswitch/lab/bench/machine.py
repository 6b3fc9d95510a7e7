"""Describes the computer and the software of a measurement."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def describe() -> dict[str, str]:
    """Describe the machine and its software; call it before anything is started."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return {
        "CPU": cpu_model(),
        "cores": str(cores()),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "NumPy": installed("numpy"),
        "iswitch": installed("iswitch"),
        "load before (1, 5, 15 min)": load,
    }


def cores() -> int:
    """Count the cores that this process and its children may use."""
    return len(os.sched_getaffinity(0))


def cpu_model() -> str:
    """Read the processor's name from the kernel."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def installed(package: str) -> str:
    """Look up the version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
