"""What is said about options that a command does not have, or whose values cannot be used."""

from __future__ import annotations

import pytest

from iswitch.cli import main, parser
from iswitch.cli.web import listen_at

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("switch --metrics 99999", "'99999': write a port from 0 to 65535, or HOST:PORT"),
        ("switch --metrics 10.0.0.9", "'10.0.0.9': write a port from 0 to 65535, or HOST:PORT"),
        ("switch --listen :99999", "':99999': write HOST:PORT, such as 127.0.0.1:26963, with a "
         "port from 0 to 65535"),
        ("switch --listen lab..example:1", "'lab..example:1': no host can have that name; between "
         "two dots of one are 1 to 63 letters, digits or hyphens"),
        ("demo --wrkers 3", "unrecognized arguments: --wrkers 3; did you mean --workers?"),
        ("ctl jobs --swtch=h:1", "unrecognized arguments: --swtch=h:1; did you mean --switch?"),
        ("switch --dance", "unrecognized arguments: --dance"),
        ("run --slots 512 --topology star:4 -- python --lr 3",
         "unrecognized arguments: --slots 512; switches have it: --switch=--slots=512"),
        ("run --topology star:4 --wrld netns python fit.py",
         "unrecognized arguments: --wrld netns; did you mean --world?"),
        ("record --too traces --topology star:4 -- python fit.py",
         "unrecognized arguments: --too traces; did you mean --to?"),
        ("run --job 7 python fit.py --lr 3", "the following arguments are required: --topology"),
        ("demo --world ntns", "; did you mean netns?"),
    ],
)  # fmt: skip
def test_usage_is_the_commands_and_names_the_mend(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words.split())
    printed = capsys.readouterr().err
    assert printed.endswith(f"{said}\n")
    command = words.partition(" -")[0]
    usage, error = printed.splitlines()
    assert usage == f"usage: iswitch {command} --help lists what it takes"
    assert error.startswith(f"iswitch {command}: error: ")


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ("--memory 4", {"memory": 4.0}),
        ("--memory 4MiB", {"memory": 4.0}),
        ("--memory 512kib", {"memory": 0.5}),
        ("--memory 8MB", {"memory": 8e6 / 2**20}),
        ("--quota 7=8MiB --quota 2", {"quota": [(7, 8.0), (None, 2.0)]}),
        ("--lease 30s --spin 50us --hold 0.5", {"lease": 30.0, "spin": 5e-5, "hold": 0.5}),
        (
            "--memory 4Mbit",
            "--memory: '4Mbit' is not a number above 0 (in MiB, or with a unit: B, ",
        ),
        ("--quota a=b", "--quota: 'b' is not a number above 0 (in MiB, or with a unit: B, kB, "),
        ("--lease 3s", "--lease: '3s' is not a number of 5 or more (in s, or with a unit: ns, "),
        ("--memory 0MiB", "--memory: '0MiB' is not a number above 0"),
        ("--memory 1e99", "--memory: '1e99' is not a number above 0, 1e+09 at most (in MiB"),
    ],
)
def test_sizes_and_times_may_have_a_unit(
    words: str, read: dict[str, object] | str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["switch", *words.split()]
    if isinstance(read, str):
        with pytest.raises(SystemExit):
            parser(["switch"]).parse_args(line)
        assert read in capsys.readouterr().err
    else:
        found = vars(parser(["switch"]).parse_args(line))
        assert {name: found[name] for name in read} == read


def test_where_a_page_is_served() -> None:
    assert listen_at("8300") == listen_at("127.0.0.1:8300") == ("127.0.0.1", 8300)
    assert listen_at("0.0.0.0") == ("0.0.0.0", 8265)


def test_a_command_that_is_meant_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for words, meant in (
        (["swich"], "switch"),
        (["ctl", "snapshots"], "snapshot"),
        (["ctl", "move", "--job", "7"], "evict --move-to IP:PORT"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert capsys.readouterr().err.endswith(f"; did you mean {meant}?\n")


def test_an_option_of_switches_is_spelt_so(capsys: pytest.CaptureFixture[str]) -> None:
    """But not one that the network sets, nor where --switch names a switch."""
    for words, end in (
        (["bench", "--slots", "64"], "--slots 64; switches have it: --switch=--slots=64"),
        (["bench", "--switch", "--slots=64"], "expected one argument; write --switch=--memory=4"),
        (["bench", "--listen", ":0"], "unrecognized arguments: --listen :0"),
        (["ctl", "jobs", "--slots", "64"], "unrecognized arguments: --slots 64"),
        (["ctl", "jobs", "--switch"], "expected one argument"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert capsys.readouterr().err.endswith(f"{end}\n")
