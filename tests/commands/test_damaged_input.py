"""Damaged input of every kind to every option of every command: one sentence, never a traceback.

The options are found in the parsers, so a new one without a kind in KINDS fails here.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import random
import signal
import subprocess
import sys
import tomllib
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iswitch import cli
from iswitch.cli import main
from iswitch.lab.launch import processes
from iswitch.lab.soak import many
from iswitch.lab.soak.generate import generate
from iswitch.lab.training import files as training_files
from iswitch.outside import OutsideError
from iswitch.ports import engine
from iswitch.system import boundary, files
from tests.support import ROOT
from topologies import Topology, synthetic
from worker_lib import controller
from worker_lib.rl import checkpoint

# What each option takes, in all commands that have it; the flags take nothing.
KINDS = {
    "number": "workers iterations seed staleness threshold target_return checkpoint_every "
    "workers_per_host max_restarts job seconds rounds in_a_row compute port memory lease "
    "control_rate spin cpu timeout count start round seeds first processes numel slow",
    "text": "topology env switch settings sizes strategies topologies rate loss listen ports "
    "address mac parent uplink impair bind inject speed scenario delay jitter duplicate reorder",
    "topology": "topology topologies",
    "key": "key_file",
    "keys": "keys",
    "trace": "trace",
    "scenario": "scenario",
    "written": "json plot csv html pcapng capture out to folder trace",
    "chosen": "world strategy mode algorithm what counting view order dtype op help version",
    "command": "command",
}
OF = {dest: [k for k, names in KINDS.items() if dest in names.split()] for dest in
      {name for names in KINDS.values() for name in names.split()}}  # fmt: skip
NUMBERS = ["nan", "inf", "-inf", "-1", "0", "1e400", "1" + "0" * 30, "9" * 5000, "", "x", "²", "٣",
           "1_0", "0x10", "1e-300", "1e300"]  # fmt: skip
TEXTS = ["", " ", ",", ":", "=", "x" * 5000, "\udcff", "é..:1", "9" * 5000, "star:9" + "9" * 20,
         "star:2,rate=" + "9" * 5000, "star:2,delay=nan", "h1=x", "x:seed=" + "9" * 5000,
         "loss=1%,seed=" + "9" * 5000, "%s", "{}", "-", "--", "127.0.0.1:99999", "[::1]:1",
         "٣", "\x1b[2J"]  # fmt: skip
BASE = {
    "demo": [], "train": ["ppo", "--env", "CartPole-v1"], "run": ["--topology", "star:2"],
    "bench": [], "switch": [], "soak": [], "doctor": [], "dissector": ["--print"],
    "record": ["--topology", "star:2", "--to", "{folder}/to"],
    "replay": ["{folder}/good.pcapng"], "analyze": ["{folder}/good.pcapng"],
    "generate": ["{folder}/made.pcapng", "--numel", "100", "--rounds", "1"],
}  # fmt: skip
CTL = ["--job", "7", "--bind", "127.0.0.1:0", "--switch", "127.0.0.1:9"]
MORE = {"seth": ["1"], "fbcast": ["current", "0"], "help": ["current", "0"]}


PATIENCE = 10.0  # seconds of processor time; the slowest are networks of 65536 hosts


# What is not closed because `Started` came between.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


class TooLong(BaseException):
    """It takes more processor time than anybody waits for."""


class Started(BaseException):
    """The input was taken: from here on processes would run."""


def walk(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, argparse.Action]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from walk(below, f"{path} {name}".strip())
        else:
            yield path, action


def options() -> list[tuple[str, argparse.Action]]:
    return list(walk(cli.parser(), ""))


def words(command: str, action: argparse.Action, value: str, folder: Path) -> list[str]:
    """A command line that gives an option a value, and is sound but for that."""
    name, _, act = command.partition(" ")
    base = [word.format(folder=folder) for word in BASE.get(name, CTL)]
    if action.option_strings:
        base = [*MORE.get(act, []), *base, f"{action.option_strings[-1]}={value}"]
    elif name == "ctl":
        place = ["round", "start", "count"].index(action.dest) if act != "seth" else 0
        given = ["current", "0", "1"] if act != "seth" else ["1"]
        given[place] = value
        base = [*CTL, "--", *given]
    elif base:
        base[0] = value
    line = [name, *([act] if act else []), *base]
    return [*line, "--", "true"] if name in ("run", "record") else line


def arrays(*values: np.ndarray) -> dict[str, Any]:
    """The arrays of a checkpoint, by their numbers."""
    return {str(number): value for number, value in enumerate(values)}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sound file of every kind."""
    folder = tmp_path_factory.mktemp("good")
    assert main(["generate", str(folder / "good.pcapng"), "--numel", "500", "--rounds", "1"]) == 0
    (folder / "good.toml").write_text(Topology.parse("rack:2x2,loss=1%,seed=3").to_toml())
    (folder / "good.json").write_text(generate(5).to_json())
    (folder / "good.key").write_text("secret\n")
    (folder / "good.keys").write_text('7 = "secret"\ndefault = "hex:00ff"\n')
    for path in folder.iterdir():
        path.chmod(0o600)
    return folder


Told = Callable[..., tuple[int | None, str]]


def check_sentence(said: str) -> None:
    """What a refusal says is one sentence of the command's, after its usage or alone."""
    sentence = said.splitlines()
    assert len(sentence) == 1 or sentence[0].startswith("usage: "), said
    assert sentence[-1].startswith("iswitch "), said
    assert len(sentence[-1]) < 12_000


@pytest.fixture
def tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Told]:
    """Run a command line that must not end as a defect: its status (None: started), its words."""

    def started(*_: object, **__: object) -> None:
        raise Started

    def too_long(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGVTALRM, too_long)
    monkeypatch.setattr(processes.Fleet, "launch", started)
    monkeypatch.setattr(engine.Engine, "run", started)
    monkeypatch.setattr(controller.Controller, "__enter__", started)
    monkeypatch.setattr(many, "play", started)
    monkeypatch.setattr(synthetic, "synthesize", started)
    monkeypatch.setattr(cli, "parser", lambda _: PARSER())
    monkeypatch.setattr(boundary, "_kept", lambda _: "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")

    def tell(line: list[str], *, refused: bool = False, named: str = "") -> tuple[int | None, str]:
        signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE)
        try:
            status: int | None = main(line)
        except SystemExit as end:  # of argparse
            status = int(end.code or 0)
        except Started:
            status = None
        except TooLong:
            pytest.fail(f"more than {PATIENCE} s: {line}")
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        said = capsys.readouterr().err
        assert "Traceback" not in said, line
        assert status in ((2,) if refused else (None, 0, 1, 2)), (line, said)
        if status == 2:
            check_sentence(said)
            assert named in said, (line, said)
        return status, said

    yield tell
    with (
        warnings.catch_warnings()
    ):  # commands were ended in the middle, with files and sockets open
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


PARSER = cache(cli.parser)


def test_a_command_leaves_signals_and_the_environment_as_they_were(
    tell: Told, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISWITCH_KEY", "another secret")

    def state() -> tuple[Any, ...]:
        return dict(os.environ), [signal.getsignal(number) for number in signal.valid_signals()]

    before = state()
    for line in ("switch --listen 127.0.0.1:0", "run --topology star:2 --key-file {} -- true"):
        assert tell(line.format(good / "good.key").split())[0] is None
        assert state() == before


def test_every_option_has_a_kind() -> None:
    unknown = {f"{command} {action.dest}" for command, action in options()
               if action.nargs != 0 and action.dest not in OF}  # fmt: skip
    assert not unknown, "say in KINDS what these take, and what becomes of damaged input"
    assert set(BASE) | {"ctl"} == set(cli.COMMANDS)


def of_kind(*kinds: str) -> list[Any]:
    return [
        pytest.param(command, action, id=f"{command} {action.dest}")
        for command, action in options()
        if action.nargs != 0 and set(kinds) & set(OF.get(action.dest, ()))
    ]


@pytest.mark.parametrize(("command", "action"), of_kind("number"))
def test_odd_numbers(command: str, action: argparse.Action, tell: Told, good: Path) -> None:
    for value in NUMBERS:
        if (command, action.dest, value) != ("generate", "numel", "٣"):
            tell(words(command, action, value, good))
    for value in ("x", "nan", "²", ""):
        free = action.dest in ("slow", "start") or (action.dest, value) == ("workers", "")
        tell(words(command, action, value, good), refused=not free and command != "bench")


@pytest.mark.parametrize(("command", "action"), of_kind("text", "chosen"))
def test_odd_texts(command: str, action: argparse.Action, tell: Told, good: Path) -> None:
    for value in TEXTS:
        tell(words(command, action, value, good))


# Files


def endless_folder(path: Path) -> None:
    path.symlink_to(path)


NO_FILES: dict[str, Callable[[Path], object]] = {
    "missing": str,
    "folder": Path.mkdir,
    "a FIFO": os.mkfifo,
    "a circle of links": endless_folder,
    "memory": lambda path: path.symlink_to("/proc/self/mem"),
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "empty": Path.touch,
    "not UTF-8": lambda path: path.write_bytes(b'a = "\xff\xfe"\n'),
    "zeros": lambda path: path.write_bytes(bytes(100)),
    "random": lambda path: path.write_bytes(random.Random(1).randbytes(3000)),
    "nested arrays": lambda path: path.write_text("a = " + "[" * 50_000),
    "nested objects": lambda path: path.write_text('{"jobs":' * 50_000),
    "a long number": lambda path: path.write_text("seed = " + "9" * 50_000),
    "a long name": lambda path: path.write_text('hosts = ["' + "x" * 100_000 + '"]'),
    "ZIP only": lambda path: path.write_bytes(b"PK\5\6" + bytes(18)),
    "dates": lambda path: path.write_text("seed = 1979-05-27\nsubnet = 07:32:00\n"),
}
SUFFIX = {"topology": ".toml", "key": ".key", "keys": ".keys", "trace": ".pcapng",
          "scenario": ".json"}  # fmt: skip
TEXT_IS_PARSED = {"a FIFO", "empty", "zeros", "nested arrays", "nested objects", "a long number",
                  "a long name", "ZIP only", "dates"}  # fmt: skip
READ = of_kind(*SUFFIX)


def reads(command: str, action: argparse.Action) -> str:
    """The kind of file that an option reads; "": it is written."""
    kinds = [kind for kind in OF[action.dest] if kind in SUFFIX]
    return "" if (command, action.dest) == ("generate", "trace") else kinds[0]


@pytest.mark.parametrize(("command", "action"), READ)
def test_no_such_files(
    command: str, action: argparse.Action, tell: Told, good: Path, tmp_path: Path
) -> None:
    kind = reads(command, action)
    if not kind:
        return  # it is written
    for i, (what, make) in enumerate(NO_FILES.items()):
        path = tmp_path / f"file{i}{SUFFIX[kind]}"
        make(path)
        if path.is_file() and not path.is_symlink():
            path.chmod(0o600)
        more = ["--switch=s1"] if command in ("replay", "analyze") and kind == "topology" else []
        line = words(command, action, str(path), good)
        is_text = kind == "scenario" and what in TEXT_IS_PARSED
        fits = kind == "key" and what in ("zeros", "ZIP only")  # any short line is a key
        tell([*line, *more], refused=not fits, named="" if fits or is_text else path.name)


@pytest.mark.parametrize("kind", SUFFIX)
def test_files_with_a_part_cut_off_or_bits_flipped(
    kind: str, tell: Told, good: Path, tmp_path: Path
) -> None:
    command, action = next(p.values[:2] for p in READ if reads(*p.values[:2]) == kind)
    assert isinstance(command, str)
    assert isinstance(action, argparse.Action)
    whole = (good / f"good{SUFFIX[kind]}").read_bytes()
    path = tmp_path / f"bad{SUFFIX[kind]}"
    path.touch(0o600)
    rng = random.Random(kind)
    for i in range(60):
        data = bytearray(whole[: rng.randrange(len(whole))] if i % 3 == 0 else whole)
        for _ in range(rng.randint(1, 4) if data and i % 3 else 0):
            data[rng.randrange(min(len(data), 4096))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        tell(words(command, action, str(path), good))


ODD: list[Any] = [None, True, -1, 0, 10**30, 1.5, float("nan"), float("inf"), "", "x", "h1", [],
                  [[]], ["x"], {}, {"x": 1}]  # fmt: skip


def replaced(value: Any) -> Iterator[Any]:
    """The value with each of its parts replaced by odd ones, and left out."""
    yield from ODD
    if isinstance(value, dict):
        for key in value:
            yield {k: v for k, v in value.items() if k != key}
            yield from ({**value, key: odd} for odd in replaced(value[key]))
        yield {**value, "odd": 1}
    elif isinstance(value, list) and value:
        yield from ([odd, *value[1:]] for odd in replaced(value[0]))
        yield value * 2


def test_scenarios_of_odd_values(tell: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    from iswitch.lab.soak import run

    monkeypatch.setattr(run.History, "play", lambda _: None)
    values = json.loads(generate(5).to_json())
    values["events"] = values["events"][:2]
    taken = 0
    for odd in replaced(values):
        if isinstance(odd, dict):
            taken += tell(["soak", "--scenario", json.dumps(odd)])[0] == 0
    assert taken > 3  # some are as good as what was there


def toml(value: Any) -> str:
    """Inline TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if value is None:
        return "1979-05-27"
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


def test_topologies_of_odd_values(tell: Told, good: Path, tmp_path: Path) -> None:
    values = tomllib.loads((good / "good.toml").read_text())
    values["links"][0] |= {"rate": "1Gbit", "delay": "1ms", "mtu": 1500, "queue": 10, "burst": 2}
    path = tmp_path / "odd.toml"
    refused = 0
    for odd in replaced(values):
        if isinstance(odd, dict):
            path.write_text("".join(f"{key} = {toml(value)}\n" for key, value in odd.items()))
            refused += tell(["run", "--topology", str(path), "--", "true"])[0] == 2
    assert refused > 200


# Checkpoints


def npy(header: str, body: bytes = b"", version: bytes = b"\1\0") -> bytes:
    size = len(header).to_bytes(2 if version == b"\1\0" else 4, "little")
    return b"\x93NUMPY" + version + size + header.encode() + body


def described(descr: str, shape: str) -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


class Evil:
    """What a pickle would do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


NAMES = np.array(json.dumps({"algorithm": "ppo", "env": "CartPole-v1"}))
UPDATES = np.array([7])
HEADERS = {
    "4 GB": described("'<f4'", "(1073741824,)"),
    "10**30": described("'<f4'", f"({10**30},)"),
    "negative": described("'<f4'", "(-4,)"),
    "endless text": described("'<U4000000000'", "()"),
    "nothing": described("'<U0'", f"({10**18},)"),
    "an open bracket": "{'descr': (",
    "open brackets": "(" * 9000,
    "lists": "[" * 200 + "]" * 200,
    "a sum": "1" + "+1" * 4000,
    "objects": described("'|O'", "(1,)"),
    "a sub-array": described("[('a', '<f4', (1000000, 1000000))]", "(1,)"),
    "another type": described("3", "(1,)"),
    "no dictionary": "None",
    "no number": described("'<f4'", "('x',)"),
    "true": described("'<f4'", "(True,)"),
}


def zipped(path: Path, members: dict[str, bytes], kind: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, content in members.items():
            file.writestr(name, content)


def stored(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def crafted() -> dict[str, Callable[[Path], object]]:
    sound = {"names.npy": stored(NAMES), "0.npy": stored(np.zeros(3)), "1.npy": stored(UPDATES)}
    made: dict[str, Callable[[Path], object]] = {
        name: make for name, make in NO_FILES.items() if name not in ("missing", "folder")
    }
    for name, header in HEADERS.items():
        for member in sound:
            made[f"{name} as {member}"] = lambda path, h=header, m=member: zipped(  # type: ignore[misc]
                path, sound | {m: npy(h, bytes(12))}
            )
    made["a version to come"] = lambda path: zipped(
        path, sound | {"0.npy": npy("{}", b"", b"\x09\0")}
    )
    made["a pickle"] = lambda path: zipped(
        path, sound | {"0.npy": stored(np.array([Evil()], object))}
    )
    made["packed zeros"] = lambda path: zipped(
        path, sound | {"0.npy": stored(np.zeros(10**7))}, zipfile.ZIP_DEFLATED
    )
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        made[f"method {method}"] = lambda path, m=method: zipped(path, sound, m)  # type: ignore[misc]
    for text in ("[" * 5000, "[]", "3", "nan", "{", '{"algorithm": ' + "9" * 5000 + "}"):
        made[f"names {text[:20]}"] = lambda path, t=text: zipped(  # type: ignore[misc]
            path, sound | {"names.npy": stored(np.array(t))}
        )
    made["text for updates"] = lambda path: zipped(path, sound | {"1.npy": stored(np.array("x"))})
    made["no names"] = lambda path: zipped(path, {"0.npy": sound["0.npy"]})
    made["nothing in it"] = lambda path: zipped(path, {})
    made["odd names"] = lambda path: zipped(path, {"names.npy": sound["names.npy"], "x/y": b""})
    return made


CRAFTED = crafted()


@pytest.mark.parametrize("what", CRAFTED)
def test_crafted_checkpoints(what: str, tell: Told, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    CRAFTED[what](path)
    line = ["train", "ppo", "--env", "CartPole-v1", "--out", str(tmp_path), "--resume"]
    tell(line, refused=True, named="checkpoint.npz")
    assert not (tmp_path / "executed").exists()


def test_checkpoints_with_bits_flipped(tell: Told, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    np.savez(path, names=NAMES, **arrays(np.zeros(300, np.float32), UPDATES))
    names = json.loads(NAMES.item())
    assert [array.size for array in checkpoint._read(str(path), names)] == [300, 1]
    whole = path.read_bytes()
    rng = random.Random(2)
    line = ["train", "ppo", "--env", "CartPole-v1", "--out", str(tmp_path), "--resume"]
    ends = (*range(400), *range(len(whole) - 400, len(whole)))
    for i in range(400):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.choice(ends)] ^= 1 << rng.randrange(8)
        path.write_bytes(data if i % 4 else whole[: rng.randrange(len(whole))])
        tell(line)


TABLES = {"progress.csv": training_files.COLUMNS, "episodes.csv": training_files.EPISODE_COLUMNS}


def table(columns: tuple[str, ...], *rows: str) -> bytes:
    return "".join(f"{line}\r\n" for line in (",".join(columns), *rows)).encode()


@pytest.mark.parametrize("name", TABLES)
def test_damaged_tables_of_a_training(name: str, tell: Told, tmp_path: Path) -> None:
    columns = TABLES[name]
    row = ",".join(["1"] * len(columns))
    names = np.array(json.dumps({"algorithm": "ppo", "env": "CartPole-v1"}))
    line = ["train", "ppo", "--env", "CartPole-v1", "--out", str(tmp_path), "--resume"]
    np.savez(tmp_path / "checkpoint.npz", names=names, **arrays(np.zeros(3), UPDATES))
    path = tmp_path / name
    damaged = [
        b"\xff\xfe\r\n", bytes(100) + b"\n", b"seconds\r\n1\r\n", table(columns, row, "1"),
        table(columns, f"{row},1"), table(columns, row.replace("1", "x", 1)),
        table(columns, row.replace("1", "nan", 1)), table(columns, row)[:-2] + b"\xff\n",
    ]  # fmt: skip
    for content in damaged:
        path.write_bytes(content)
        tell(line, refused=True, named=name)
    for content in (b"", b"sec", table(columns), table(columns, row), table(columns, row) + b"1,"):
        path.write_bytes(content)
        assert tell(line)[0] is None, content


def test_half_a_row_at_the_end_is_taken_off(tmp_path: Path) -> None:
    columns = TABLES["episodes.csv"]
    path = tmp_path / "episodes.csv"
    path.write_bytes(table(columns, "1,2,0,9.0") + b"1,2,1")
    files = training_files.Files(tmp_path, goes_on=True)
    files.episodes(0.0, 3, 1, [8.0])
    files.close()
    assert path.read_bytes() == table(columns, "1,2,0,9.0", "0.000,3,1,8.0")


# Sentences


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("train ppo --env CartPole-v1 --set learning_rate=nan", "learning_rate=nan: a finite num"),
        ("train ppo --env CartPole-v1 --set discount=inf", "discount=inf: a finite number"),
        ("soak --scenario {}", "the scenario is damaged: seed is missing"),
        (f"soak --seed {'9' * 23}", "a whole number of 0 or more, of 12 digits at most"),
        ("generate x.pcapng --loss nan", "iswitch generate: --loss nan: loss 'nan' is not"),
        ("generate x.pcapng --topology rack:2x2 --rate x", "iswitch generate: --rate x: rate 'x'"),
        ("generate x.pcapng --rate x", "; write --rate 100Mbit"),
        ("generate x.pcapng --loss 200%", "iswitch generate: --loss 200%: loss 2.0 is not in [0,"),
        ("generate x.pcapng --jitter 1ms --duplicate 2", "iswitch generate: --duplicate 2: dupli"),
        ("generate x.pcapng --jitter 2ms --delay 1ms", "iswitch generate: --delay, --jitter: "),
        ("bench --sizes 40", "iswitch bench: --sizes 40: size '40' is not a number and a unit"),
        ("bench --sizes 40", "; write --sizes 40kB"),
        ("bench --rate 1", "; write --rate 100Mbit"),
        ("bench --workers 65", "bench: --workers 65: a switch takes 1 to 64 workers a job; take"),
        ("bench --workers 65", "or racks: --topologies rack"),
        ('soak --scenario {"seed":1}', "topology is missing; take what a failure has printed, or"),
        ('soak --scenario {"seed":1}', "or --seed N, the history of a seed"),
        ("analyze {good} --topology rack:16x16", "--topology rack:16x16: which of its switches "),
        ("analyze {good} --topology rack:16x16", "add --switch NAME, one of "),
        ("demo --workers 65", "demo: --workers 65: a switch takes 1 to 64 workers a job; take"),
        ("train ppo --env CartPole-v1 --workers 65", "or switches below one: --topology rack:2x48"),
        ("generate x.pcapng --workers 0", "--workers 0: a switch takes 1 to 64 workers a job"),
        ("generate x.pcapng --topology rack:x --rate 1Mbit", "iswitch generate: --topology: "),
    ],
)
def test_sentences_name_what_was_given(line: str, sentence: str, tell: Told, good: Path) -> None:
    _, said = tell(line.replace("{good}", str(good / "good.pcapng")).split(" "), refused=True)
    assert sentence in said


@pytest.mark.root(reason="only root can put privileges down")
def test_injecting_without_privileges(good: Path) -> None:
    command = [sys.executable, "-m", "iswitch", "replay", str(good / "good.pcapng")]
    without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    done = subprocess.run(
        [*without, *command, "--inject", "lo"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("iswitch replay: --inject lo: raw ports need CAP_NET_RAW")
    assert done.stderr.endswith("; run as root (sudo)\n")


def as_npy(version: int) -> bytes:
    """A small array, written in that version of the format."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.zeros(2), (version, 0))
    return file.getvalue()


def compressed() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, names=NAMES, **arrays(UPDATES))
    return file.getvalue()


def test_a_text_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(bytes(5000))
    assert files.read_text(str(path), most=5000) == "\0" * 5000
    with pytest.raises(OutsideError, match=r"/text has more than 4 KiB; name a smaller file$"):
        files.read_text(str(path), most=4999)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"PK\3\4" + bytes(50), "it is no ZIP archive, or was cut short"),
        ({"0.npy": b""}, "it does not hold what a training saves"),
        ({"names.npy": b"", "1.npy": b""}, "it does not hold what a training saves"),
        ({"names.npy": as_npy(1)}, "it holds no arrays"),
        (
            {"names.npy": as_npy(3), "0.npy": as_npy(1)},
            "an array is written in version 3 of NPY; 1 and",
        ),
        (compressed(), "it is compressed; iswitch writes it plain"),
    ],
)
def test_why_a_file_is_no_checkpoint(content: Any, why: str, tell: Told, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    path.write_bytes(content) if isinstance(content, bytes) else zipped(path, content)
    line = ["train", "ppo", "--env", "CartPole-v1", "--out", str(tmp_path), "--resume"]
    said = tell(line, refused=True)[1]
    assert f"is damaged: {why}" in said
    assert said.endswith("; it is no checkpoint\n")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_training_that_diverged_is_not_resumed(value: float, tell: Told, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    np.savez(path, names=NAMES, **arrays(np.array([1.0, value], np.float32), UPDATES))
    line = ["train", "ppo", "--env", "CartPole-v1", "--out", str(tmp_path), "--resume"]
    _, said = tell(line, refused=True, named="checkpoint.npz")
    assert said.endswith("that training diverged; begin anew, with another --out\n")


# The boundary itself


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (KeyError("x"), 70, "a defect of iswitch: KeyError: 'x'; please report it with "),
        (OSError(24, "Too many open files"), 2, "Too many open files; raise the limit"),
        (OSError(28, "No space"), 2, "cannot write standard output: No space; make room"),
        (FileNotFoundError(2, "No such file", "a\nb"), 2, "a b: No such file"),
        (MemoryError(), 2, "out of memory"),
        (RuntimeError("can't start new thread"), 2, "no more threads can be started"),
        (ImportError("no such", name="cv2"), 2, "cannot load cv2: no such"),
        (ImportError("no such", name="iswitch.x"), 70, "a defect of iswitch: ImportError: no such"),
        (RecursionError("deep"), 70, "a defect of iswitch: RecursionError: deep"),
        (KeyboardInterrupt(), 130, "stopped by SIGINT"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
    ],
)
def test_statuses(
    error: BaseException,
    status: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    from iswitch.cli import doctor

    def broken(_: object) -> int:
        raise error

    monkeypatch.setattr(doctor, "run", broken)
    monkeypatch.setattr("iswitch.system.boundary.tempfile.tempdir", str(tmp_path))
    assert main(["doctor"]) == status
    said = capsys.readouterr().err
    assert said.startswith(f"iswitch doctor: {words}") if words else not said
    assert said.count("\n") == bool(words)
    kept = list(tmp_path.iterdir())
    assert len(kept) == (status == 70)
    if kept:
        assert str(kept[0]) in said
        assert "Traceback" in kept[0].read_text()
    monkeypatch.setenv("ISWITCH_TRACEBACK", "1")
    main(["doctor"])
    assert ("Traceback" in capsys.readouterr().err) == (bool(words) and status != 130)


@pytest.mark.parametrize("name", ["it", "./it", "hard", "symbolic"])
@pytest.mark.parametrize(
    ("words", "reads"),
    [
        ("replay it --out OUT", "trace"),
        ("replay good --keys it --out OUT", "keys"),
        ("analyze it --html OUT", "trace"),
        ("generate OUT --key-file it", "key"),
        ("generate OUT --topology it.toml", "topology"),
        ("soak --scenario it --pcapng OUT", "scenario"),
        ("run --topology it.toml --json OUT -- true", "topology"),
        ("record --to folder --topology star:2 --key-file it --json OUT -- true", "key"),
        ("demo --topology it.toml --json OUT", "topology"),
        ("train ppo --env CartPole-v1 --topology it.toml --json OUT", "topology"),
        ("bench --topologies it.toml --csv OUT", "topology"),
        ("switch --keys it --capture OUT", "keys"),
    ],
)
def test_no_command_writes_over_what_it_reads(
    words: str,
    reads: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine.Engine, "run", lambda *_: None)  # of a switch that starts
    it = Path("it.toml" if reads == "topology" else "it")
    synthetic.synthesize("good", Topology.parse("star:2"), synthetic.SyntheticJob(64, 1), "s1")
    content = {
        "trace": Path("good").read_bytes(),
        "keys": b'default = "secret"\n',
        "key": b"secret\n",
        "topology": Topology.parse("star:2").to_toml().encode(),
        "scenario": generate(1).to_json().encode(),
    }[reads]
    it.write_bytes(content)
    it.chmod(0o600)
    out = {"it": str(it), "./it": f"./{it}"}.get(name, name)
    if name == "hard":
        os.link(it, out)
    elif name == "symbolic":
        os.symlink(it, out)
    assert main(words.replace("OUT", out).split()) == 2
    assert "itself, which is read; name another file" in capsys.readouterr().err
    assert it.read_bytes() == content
