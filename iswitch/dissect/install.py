"""The dissector in a user's folder of Wireshark plugins: written, checked, removed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from iswitch.outside import UsageError, reason

from .plugin import HEAD, dissector

NAME = "iswitch.lua"
TSHARK_TIMEOUT = 60.0  # seconds


def install(folder: Path | None) -> None:
    """Write the plugin into a folder (None: the user's), and check that tshark loads it.

    Raises:
        UsageError: the plugin cannot be written or loaded.
    """
    path = (folder or personal_folder()) / NAME
    write(path, dissector())
    print(f"installed {path}")
    if folder is None and shutil.which("tshark"):
        print(f"{check_loaded()} loads it; a Wireshark that is running must be started again")


def uninstall(folder: Path | None) -> None:
    """Remove the plugin from a folder (None: the user's).

    Raises:
        UsageError: the folder holds no plugin, or one that is not ours.
    """
    path = (folder or personal_folder()) / NAME
    remove(path)
    print(f"removed {path}")


def personal_folder() -> Path:
    """Return the folder in which Wireshark looks for a user's own Lua plugins.

    Raises:
        UsageError: Wireshark was built without Lua.
    """
    if shutil.which("tshark") is None:
        return Path.home() / ".local/lib/wireshark/plugins"  # its default
    told = _tshark("-G", "folders").stdout
    found = re.search(r"^Personal Lua Plugins:\s*(.+)$", told, re.MULTILINE)
    if found is None:
        raise UsageError(
            "this tshark takes no plugins in Lua: it was built without, as `tshark --version` "
            "says; install a package with Lua, such as Debian's"
        )
    return Path(found[1])


def write(path: Path, text: str) -> None:
    """Write the plugin; replace a file only if it is a plugin of ours.

    Raises:
        UsageError: the file cannot be written, or is something else.
    """
    if path.exists() and not _is_ours(path):
        raise UsageError(f"{path} is another's; remove it, or name another --folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.write_text(text, encoding="utf-8")
        except OSError:
            path.unlink(missing_ok=True)  # half of it would be taken for another's
            raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {reason(error)}") from None


def remove(path: Path) -> None:
    """Remove the plugin.

    Raises:
        UsageError: the file is missing, is not ours, or cannot be removed.
    """
    if not path.exists():
        raise UsageError(f"{path} is not there: nothing to remove")
    if not _is_ours(path):
        raise UsageError(f"{path} is another's; remove it yourself")
    try:
        path.unlink()
    except OSError as error:
        raise UsageError(f"cannot remove {path}: {reason(error)}") from None


def check_loaded() -> str:
    """Check that tshark loads the plugin; return the name and version of tshark.

    Raises:
        UsageError: tshark does not run, or does not load the plugin.
    """
    done = _tshark("-G", "protocols")
    if not re.search(r"\tiswitch$", done.stdout, re.MULTILINE):
        said = [line for line in done.stderr.splitlines() if "as user" not in line]
        raise UsageError(
            "tshark does not load it: " + (" ".join(said) or "are plugins in Lua switched off?")
        )
    version = re.search(r"\d+(\.\d+)+", _tshark("--version").stdout)
    return f"tshark {version[0]}" if version else "tshark"


def _is_ours(path: Path) -> bool:
    try:
        return path.read_text(encoding="utf-8", errors="replace").startswith(HEAD)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _tshark(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["tshark", *words], capture_output=True, text=True, timeout=TSHARK_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"tshark does not run: {error}; name the --folder") from None
