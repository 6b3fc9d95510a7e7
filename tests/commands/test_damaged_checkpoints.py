"""Damaged checkpoints, sentences of refusals, and the boundary that makes them."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.lab.soak.generate import generate
from iswitch.lab.training import files as training_files
from iswitch.outside import OutsideError
from iswitch.ports import engine
from iswitch.system import files
from tests.commands.test_damaged_input import NO_FILES, Told, good, tell
from tests.support import ROOT
from topologies import Topology, synthetic
from worker_lib.rl import checkpoint

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

__all__ = ["good", "tell"]  # fixtures


def arrays(*values: np.ndarray) -> dict[str, Any]:
    """The arrays of a checkpoint, by their numbers."""
    return {str(number): value for number, value in enumerate(values)}


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
        (
            "generate x.pcapng --jitter 1ms",
            "jitter 0.001 s is not in 0 s..delay (0.0 s); a packet c",
        ),
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
