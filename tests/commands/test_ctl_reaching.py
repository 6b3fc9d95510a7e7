"""Which switch iswitch ctl asks, and what it says of others where that one gives no answer."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iswitch.cli import main
from iswitch.watch.places import Network
from tests.commands.test_ctl import PATIENCE
from tests.conftest import StartSwitch
from tests.support import ROOT


def test_a_wrong_key_is_told_as_such_and_no_other_network_is(
    start_switch: StartSwitch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    keys, key = tmp_path / "keys.toml", tmp_path / "key"
    for path, text in ((keys, '7 = "of seven"\n'), (key, "of eight")):
        path.touch(0o600)
        path.write_text(text)
    _, where = start_switch("127.0.0.1:0", "--keys", str(keys))
    monkeypatch.setattr("iswitch.lab.control.asking.PORT", where[1])
    monkeypatch.setattr("iswitch.lab.control.asking.runs", lambda: [tmp_path])
    Network("star:2 (netns)").write(tmp_path)
    words = ["ctl", "jobs", "--job", "7", "--key-file", str(key), "--timeout", "0.3"]
    limit, said = time.monotonic() + PATIENCE, ""
    while "no answer with the right MAC from the switch" not in said:  # a busy one is slow
        assert time.monotonic() < limit, said
        assert main(words) == 1
        said = capsys.readouterr().err
    assert said.endswith("; give it with --key-file FILE, ISWITCH_KEY or ISWITCH_KEY_FILE\n")


def test_a_switch_is_found_by_its_socket_or_its_network(
    start_switch: StartSwitch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o700)
    place, other = tmp_path / "s1.sock", tmp_path / "other"
    _, (host, port) = start_switch("127.0.0.1:0", "--watch", str(place))
    for where in (place, tmp_path):
        assert main(["ctl", "jobs", str(where)]) == 0
        assert capsys.readouterr().out.startswith("0 jobs, ")
    other.mkdir(0o700)
    entry = ["env", "ISWITCH_LOG_LEVEL=error"]  # as if it led to a namespace
    Network("star:2 (netns)", control=f"{host}:{port}", entry=entry).write(other)
    done = subprocess.run(
        [sys.executable, "-m", "iswitch", "ctl", "queue", str(other), "--json"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["switch"] == f"{host}:{port}", done.stderr
    assert done.stderr == ""
    switches = {"leaf1": f"{host}:{port}", "root": "127.0.0.1:9"}
    Network("rack:1x2", switches=switches, control=f"{host}:{port}").write(other)
    assert main(["ctl", "jobs", str(other)]) == 0
    assert capsys.readouterr().err == (
        f"iswitch ctl: asks leaf1 at {host}:{port}, one of 2 switches; {other}/root.sock names "
        "another\n"
    )
    for more, said in (
        (["jobs", str(place), "--switch", ":1"], "both name a switch; leave one out"),
        (["status", "--job", "1", str(tmp_path / "none")], "none does not exist"),
    ):
        assert main(["ctl", *more]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["ctl", "jobs", "--switch", str(place)])
    said = f"take it without --switch: iswitch ctl jobs {place}"
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_network_that_runs_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Unless a switch is named; the default one is made to be one that does not answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        where = "{}:{}".format(*silent.getsockname())
        monkeypatch.setattr("iswitch.lab.control.asking.PORT", silent.getsockname()[1])
        monkeypatch.setattr("iswitch.lab.control.asking.runs", lambda: [tmp_path])
        entry = ["ip", "netns", "exec", "isw-h1"]
        Network("star:2 (netns)", control="10.0.0.1:26963", entry=entry).write(tmp_path)
        command = ["ctl", "jobs", "--timeout", "0.2"]
        assert main(command) == 1
        said = capsys.readouterr().err
        assert said.endswith(
            "star:2 (netns) runs: `iswitch ctl snapshot` shows it, and `ip netns exec isw-h1 "
            "iswitch ctl ... --switch 10.0.0.1:26963` asks it\n"
        )
        newer = tmp_path / "newer"
        newer.mkdir()
        Network("rack:2x2 (loopback)", control="127.0.0.1:7").write(newer)
        monkeypatch.setattr("iswitch.lab.control.asking.runs", lambda: [newer, tmp_path])
        assert main(command) == 1
        assert capsys.readouterr().err.endswith(
            f"; rack:2x2 (loopback) runs: `iswitch ctl snapshot {newer}` shows it, and `iswitch "
            f"ctl ... --switch 127.0.0.1:7` asks it; star:2 (netns) runs: `iswitch ctl snapshot "
            f"{tmp_path}` shows it, and `ip netns exec isw-h1 iswitch ctl ... --switch "
            "10.0.0.1:26963` asks it\n"
        )
        monkeypatch.setattr("iswitch.lab.control.asking.runs", lambda: [tmp_path])
        Network("star:2 (sim)").write(tmp_path)
        assert main([*command, "--json"]) == 1
        message = json.loads(capsys.readouterr().out)["message"]
        assert message.endswith("; star:2 (sim) runs: `iswitch ctl snapshot` shows it")
        assert main([*command, "--switch", where]) == 1
        assert "star:2" not in capsys.readouterr().err
