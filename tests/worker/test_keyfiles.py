"""Keys from files and the environment, to switches, workers and ctl; no key on a command line."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.core.format.keys import Keys, KeyUnusable
from iswitch.core.format.wire import NO_RANK, TOS_CONTROL, Ack, Action, Control, Status
from iswitch.system.keyfiles import key_in, read_key, read_keys
from tests.conftest import StartSwitch, Where
from tests.support import ROOT
from worker_lib import Refused, SwitchUnreachable, Worker
from worker_lib.command_errors import CommandRefused
from worker_lib.controller import Controller

Private = Callable[..., str]
PATIENCE = 20.0
SEVEN, OTHERS = b"the key of job seven", bytes(range(32))
FILE = f"""
7 = "{SEVEN.decode()}"   # for the tests
default = "hex:{OTHERS.hex()}"
"""


@pytest.fixture
def private(tmp_path: Path) -> Private:
    def write(text: str | bytes, mode: int = 0o600) -> str:
        path = tmp_path / f"file{len(list(tmp_path.iterdir()))}"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(mode)
        return str(path)

    return write


def mac_of(keys: Keys, job: int, text: bytes) -> bytes:
    key = keys.of(job)
    assert key is not None
    return bytes(key.mac(text))


def same(found: Keys, job: int, secret: bytes) -> bool:
    key = found.of(job)
    return key is not None and key.mac(b"x") == mac_of(Keys(default=secret), 0, b"x")


# Reading


def test_keys_of_a_file(private: Private) -> None:
    keys = read_keys(private(FILE))
    assert same(keys, 7, SEVEN)
    assert same(keys, 8, OTHERS)
    assert read_keys(private('0 = "a"\n65535 = "b"')).of(1) is None


def test_users_of_keys(private: Private) -> None:
    keys = read_keys(private('7 = "a"\n[ada]\n8 = "b"\n9 = "c"\n[bob]\n10 = "d"\n'))
    assert [keys.user_of(job) for job in range(7, 12)] == ["", "ada", "ada", "bob", ""]
    assert same(keys, 9, b"c")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "holds no key"),
        ("[ada]", "holds no key"),
        ('[ada]\ndefault = "x"', "'default' is no job with a key"),
        ('7 = "a"\n[ada]\n7 = "b"', "job 7 has two keys; leave one of them out"),
        ("7 = 8", "'7' is no job with a key"),
        ('seven = "x"', "'seven' is no job with a key"),
        ('65536 = "x"', "'65536' is no job with a key"),
        ('7 = ""', "7: a key is 1 to 64 bytes, not 0"),
        (f'default = "{"x" * 65}"', "default: a key is 1 to 64 bytes, not 65"),
        ('7 = "hex:0"', "pairs of digits"),
        ("7 = secret", "write lines such as"),
        ('7 = "a"\n7 = "b"', "write lines such as"),
        (b"\xff", "not UTF-8 .*; write bytes as hex: and their digits"),
    ],
)
def test_files_that_are_no_keys(text: str, wrong: str, private: Private) -> None:
    with pytest.raises(KeyUnusable, match=wrong):
        read_keys(private(text))


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o666])
@pytest.mark.parametrize("read", [read_key, read_keys])
def test_what_everybody_may_read_is_refused(
    mode: int, read: Callable[[str], object], private: Private
) -> None:
    path = private('7 = "secret"', mode)
    with pytest.raises(KeyUnusable, match=f"chmod 600 {path}") as caught:
        read(path)
    assert "secret" not in str(caught.value)
    os.chmod(path, 0o640)
    read(path)


def test_one_key_in_a_file(private: Private) -> None:
    assert read_key(private("  a key \n")) == b"a key"
    assert read_key(private("hex:00ff\n")) == b"\0\xff"
    wrong = {"": "and no key; write one", "a\nb": "leave one key in it", "hex:q": "pairs"}
    for text, told in wrong.items():
        with pytest.raises(KeyUnusable, match=told):
            read_key(private(text))
    with pytest.raises(KeyUnusable, match="cannot read /nosuch: No such file"):
        read_key("/nosuch")


def test_the_key_in_the_environment(private: Private) -> None:
    path = private("from a file")
    assert key_in({}) is None
    assert key_in({"ISWITCH_KEY": "", "ISWITCH_KEY_FILE": ""}) is None
    assert key_in({"ISWITCH_KEY": "hex:2a"}) == b"*"
    assert key_in({"ISWITCH_KEY_FILE": path}) == b"from a file"
    with pytest.raises(KeyUnusable, match="unset one"):
        key_in({"ISWITCH_KEY": "a", "ISWITCH_KEY_FILE": path})
    with pytest.raises(KeyUnusable, match="ISWITCH_KEY: a key is 1 to 64 bytes"):
        key_in({"ISWITCH_KEY": "x" * 65})


# Worlds


@pytest.fixture(scope="module")
def keyed(start_switch: StartSwitch, tmp_path_factory: pytest.TempPathFactory) -> Where:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.touch(0o600)
    path.write_text(f'7 = "{SEVEN.decode()}"\n8 = "hex:{OTHERS.hex()}"\n')
    return start_switch("127.0.0.1:0", "--keys", str(path))[1]


def sums(where: Where, job: int, key: bytes | None, workers: int = 3) -> list[float]:
    def work(_: int) -> float:
        with Worker(where, job, 5000, workers, timeout=PATIENCE, key=key) as worker:
            for _ in range(3):
                total = worker.allreduce(np.ones(5000, np.float32))
            worker.set_threshold(0)
            return float(total[-1])

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, range(workers)))


def test_workers_with_the_key_sum(keyed: Where) -> None:
    assert sums(keyed, 7, SEVEN) == [3.0] * 3
    assert sums(keyed, 8, OTHERS) == [3.0] * 3
    assert sums(keyed, 9, None) == [3.0] * 3


def test_a_worker_without_the_key_is_refused(keyed: Where) -> None:
    with pytest.raises(Refused, match=r"the job is keyed.*ISWITCH_KEY_FILE") as caught:
        Worker(keyed, 7, 10, timeout=2)
    assert caught.value.status is Status.DENIED


@pytest.mark.parametrize(("job", "key"), [(7, b"another"), (9, SEVEN)])
def test_a_worker_with_another_key_is_told_at_the_end(keyed: Where, job: int, key: bytes) -> None:
    with pytest.raises(SwitchUnreachable, match="the key differs, or it is not keyed there"):
        Worker(keyed, job, 10, timeout=0.5, key=key)


@pytest.mark.parametrize("key", [b"", b"x" * 65, "text"])
def test_what_cannot_be_a_key(key: bytes) -> None:
    with pytest.raises(ValueError, match="key: a key is 1 to 64 bytes"):
        Worker(("127.0.0.1", 1), 7, 10, key=key)


def test_a_forged_denial_does_not_end_a_worker(keyed: Where) -> None:
    """Somebody answers everything with DENIED, without the key, before the switch does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as liar:
        liar.bind(("127.0.0.1", 0))
        liar.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS_CONTROL)
        liar.settimeout(0.2)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as behind:
            behind.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS_CONTROL)
            behind.connect(keyed)
            behind.settimeout(0.2)
            denied = threading.Event()
            stop = threading.Event()

            def lie() -> None:
                while not stop.is_set():
                    try:
                        payload, peer = liar.recvfrom(2000)
                    except TimeoutError:
                        continue
                    packet = Control.parse(payload[:-16])
                    ack = Ack(packet.action)
                    no = Control(Action.ACK, packet.job, packet.request, ack, Status.DENIED)
                    liar.sendto(no.build(), peer)
                    denied.set()
                    time.sleep(0.05)
                    behind.send(payload)
                    liar.sendto(behind.recv(2000), peer)

            thread = threading.Thread(target=lie)
            thread.start()
            try:
                worker = Worker(liar.getsockname(), 7, 10, timeout=PATIENCE, key=SEVEN)
                assert denied.is_set()
                assert worker.set_threshold(1) == 1
                worker.leave()
            finally:
                stop.set()
                thread.join()


def test_a_controller_joins_again_and_again(keyed: Where) -> None:
    with Controller(keyed, 7, key=SEVEN) as controller:
        for _ in range(3):
            with controller.membership() as ack:
                assert ack.rank == NO_RANK
        controller.join()
        controller.leave()
        controller.join()
        controller.leave()


def test_a_controller_with_a_place_goes_on_where_another_was(keyed: Where) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        place = sock.getsockname()
    for requests in (5, 0):
        with Controller(keyed, 7, key=SEVEN, bind=place) as c, c.membership():
            for _ in range(1 + requests):
                c.request(Action.RESET)


def test_a_controller_without_the_key(keyed: Where) -> None:
    with (
        Controller(keyed, 7, timeout=1) as controller,
        pytest.raises(CommandRefused, match="--key-file"),
    ):
        controller.join()
    with (
        Controller(keyed, 7, timeout=0.5, key=b"another") as controller,
        pytest.raises(SwitchUnreachable, match="the key differs"),
    ):
        controller.join()


# Commands


def ctl(where: Where, job: int, *options: str) -> list[str]:
    return ["ctl", "status", "--switch", "{}:{}".format(*where), "--job", str(job), *options]


def test_ctl_takes_the_key_from_a_file_or_the_environment(
    keyed: Where,
    private: Private,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = private(SEVEN)
    assert main(ctl(keyed, 7)) == 1
    said = capsys.readouterr().err
    assert "--key-file" in said
    assert said.endswith("; `iswitch ctl jobs --job N` lists jobs with N's key\n")
    assert main(ctl(keyed, 7, "--key-file", path)) == 0
    monkeypatch.setenv("ISWITCH_KEY", SEVEN.decode())
    assert main(ctl(keyed, 7)) == 0
    monkeypatch.delenv("ISWITCH_KEY")
    monkeypatch.setenv("ISWITCH_KEY_FILE", path)
    assert main(ctl(keyed, 7)) == 0
    os.chmod(path, 0o644)
    capsys.readouterr()
    assert main(ctl(keyed, 7)) == 2
    assert f"chmod 600 {path}" in capsys.readouterr().err


def test_from_env_reads_the_key(
    keyed: Where,
    private: Private,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"SWITCH": "{}:{}".format(*keyed), "JOB": "7"}.items():
        monkeypatch.setenv(f"ISWITCH_{name}", value)
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("ISWITCH_KEY_FILE", private(SEVEN))
    with Worker.from_env(10) as worker:
        assert worker.allreduce(np.ones(10, np.float32)).sum() == 10
    monkeypatch.delenv("ISWITCH_KEY_FILE")
    with pytest.raises(Refused):
        Worker.from_env(10)
    Worker.from_env(10, key=SEVEN).leave()


def test_a_switch_without_keys_takes_that_of_the_environment(
    start_switch: StartSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISWITCH_KEY", SEVEN.decode())
    _, where = start_switch()
    assert sums(where, 3, SEVEN) == [3.0] * 3
    with pytest.raises(Refused):
        Worker(where, 4, 10, timeout=2)


@pytest.mark.parametrize(
    ("text", "mode", "wrong"),
    [('7 = "k"', 0o644, "chmod 600"), ("7 = k", 0o600, '7 = "KEY"'), (None, 0, "cannot read")],
)
def test_a_switch_says_what_is_wrong_with_its_keys(
    text: str | None,
    mode: int,
    wrong: str,
    private: Private,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = "/nosuch" if text is None else private(text, mode)
    assert main(["switch", "--listen", "127.0.0.1:0", "--keys", path]) == 2
    assert wrong in capsys.readouterr().err


def test_keys_as_documented(tmp_path: Path, start_switch: StartSwitch) -> None:
    page = (ROOT / "docs" / "switch.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (commands,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    lines = [line.partition(" #")[0].split() for line in commands.splitlines()]
    assert [words[:2] for words in lines] == [["chmod", "600"], ["iswitch", "switch"]]
    path = tmp_path / lines[0][2]
    path.write_text(text)
    path.chmod(int(lines[0][1], 8))
    assert lines[1][2:] == ["--keys", path.name]
    _, where = start_switch("127.0.0.1:0", "--keys", str(path))
    keys = read_keys(str(path))
    assert len({mac_of(keys, job, b"") for job in (7, 8, 9, 10)}) == 3
    with Worker(where, 8, 10, timeout=PATIENCE, key=b"any text, 64 bytes at most") as worker:
        assert worker.rank == 0


SUMS = """
import os, sys
import numpy as np
from pathlib import Path
from worker_lib import Worker
with Worker.from_env(1000) as worker:
    print(int(worker.allreduce(np.ones(1000, np.float32))[0]), flush=True)
    seen = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
    worker.allreduce(np.ones(1000, np.float32))
secret = b"".join((b"the key", b" of job seven"))
print(any(secret in line for line in seen))
"""


@pytest.mark.parametrize("way", ["file", "option", "text"])
def test_run_hands_the_key_on(way: str, private: Private, tmp_path: Path) -> None:
    """To switches and commands, in a tree; no command line holds it."""
    script = tmp_path / "sums.py"
    script.write_text(SUMS)
    path = private(SEVEN)
    env = {k: v for k, v in os.environ.items() if not k.startswith("ISWITCH_KEY")}
    env |= {"file": {"ISWITCH_KEY_FILE": path}, "text": {"ISWITCH_KEY": SEVEN.decode()}}.get(
        way, {}
    )
    options = ["--key-file", path] if way == "option" else []
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "iswitch", "run", "--topology", "rack:2x2", *options]
    out = subprocess.run(
        [*command, "--json", str(report), "--", sys.executable, str(script)],
        cwd=ROOT,
        env=env | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    said = [line.partition("| ")[2] for line in out.splitlines()]
    assert sorted(said) == ["4"] * 4 + ["False"] * 4
    counters = json.loads(report.read_text())["switches"]
    assert all(n["bad_mac"] == 0 for n in counters.values())


def test_run_says_what_is_wrong_with_the_key(
    private: Private, capsys: pytest.CaptureFixture[str]
) -> None:
    path = private("key", 0o644)
    words = ["run", "--topology", "star:1", "--key-file", path, "--", "true"]
    env = dict(os.environ)
    try:
        assert main(words) == 2
    finally:
        os.environ.clear()
        os.environ.update(env)
    assert f"chmod 600 {path}" in capsys.readouterr().err
