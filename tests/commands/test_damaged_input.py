"""Damaged input of every kind to every option of every command: one sentence, never a traceback.

The options are found in the parsers, so a new one without a kind in KINDS fails here.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import signal
import tomllib
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from iswitch import cli
from iswitch.cli import main
from iswitch.lab.launch import processes
from iswitch.lab.paper import command as paper
from iswitch.lab.simulate import sweeping
from iswitch.lab.soak import many
from iswitch.lab.soak.generate import generate
from iswitch.lab.web import serving
from iswitch.ports import engine
from iswitch.system import boundary
from iswitch.workload.records import Record, Workload
from tests.support import ROOT
from topologies import Topology, synthetic
from worker_lib import controller

# What each option takes, in all commands that have it; the flags take nothing.
KINDS = {
    "number": "workers iterations seed staleness threshold target_return checkpoint_every "
    "workers_per_host max_restarts job seconds rounds in_a_row compute port memory lease "
    "host_speed control_rate spin cpu hold timeout count start round seeds first processes numel "
    "slow every slots devices picked epochs batch learning_rate mu stragglers speeds round_time "
    "deadline accuracy spread grace trials accelerators jobs",
    "text": "topology env switch settings sizes collective strategies topologies rate loss listen "
    "ports address mac parent uplink impair bind inject speed scenario delay jitter duplicate "
    "reorder metrics cable data mu stragglers grain host_overhead switch_latency switch_rate "
    "shm_hosts shm_links quota priority name move_to size strategy sweep room scheduler "
    "experiments policies schedule background fallback local_rate local_delay trunk_rate",
    "topology": "topology topologies",
    "key": "key_file",
    "keys": "keys",
    "trace": "trace",
    "scenario": "scenario",
    "jobs": "jobs",
    "written": "save json plot csv html pcapng capture logs out to folder trace record_workload",
    "workload": "workload",
    "profile": "traces",
    "chosen": "data model world policy strategy mode algorithm what papers counting view order "
    "dtype op help version log_level",
    "command": "command",
    "socket": "place watch shm_at",
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
    "top": ["{folder}/none.sock", "--once"], "web": ["--trace", "{folder}/good.pcapng"],
    "place": ["--topology", "star:4", "--jobs", "{folder}/good.jobs"],
    "simulate": ["--topology", "star:2"], "paper": ["atp", "--world", "model"],
    "workload": ["{folder}/good.profile", "--out", "{folder}/made.jsonl"],
    "generate": ["{folder}/made.pcapng", "--numel", "100", "--rounds", "1"],
}  # fmt: skip
PROFILE = str(ROOT / "tests" / "recordings" / "ddp-rank0.json.gz")
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
    elif base and base[0].startswith("--"):
        base.insert(0, value)
    elif base:
        base[0] = value
    line = [name, *([act] if act else []), *base]
    runs = name in ("run", "record") and action.dest != "jobs"
    return [*line, "--", "true"] if runs else line


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sound file of every kind."""
    folder = tmp_path_factory.mktemp("good")
    assert main(["generate", str(folder / "good.pcapng"), "--numel", "500", "--rounds", "1"]) == 0
    (folder / "good.toml").write_text(Topology.parse("rack:2x2,loss=1%,seed=3").to_toml())
    (folder / "good.json").write_text(generate(5).to_json())
    (folder / "good.jobs").write_text(
        '[[jobs]]\nname = "a"\nworkers = 2\nnumel = 5\ncommand = "true"\n'
    )
    work = Workload("", 2, (Record(0, None, 0.1, "allreduce", 9, (0, 1), name="x"),))
    (folder / "good.jsonl").write_text(work.text())
    (folder / "good.profile").write_bytes(Path(PROFILE).read_bytes())
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
    stopped = [(many, "play"), (sweeping, "spread"), (paper, "spread"), (sweeping, "on_cluster"),
               (synthetic, "synthesize"), (serving, "serve")]  # fmt: skip
    for module, name in stopped:
        monkeypatch.setattr(module, name, started)
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
          "scenario": ".json", "jobs": ".jobs", "workload": ".jsonl", "profile": ".profile",
          }  # fmt: skip
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
        more = (
            ["--switch=s1"]
            if command in ("replay", "analyze", "web") and kind == "topology"
            else []
        )
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
