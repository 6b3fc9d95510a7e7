"""`iswitch simulate`: sentences for mistakes, which say how to mend them."""

from __future__ import annotations

from typing import Any

import pytest

from iswitch.cli import main

from .test_simulate import SMALL

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--workers 9", "--workers 9: star:3,rate=1Gbit has 3 hosts; write 3 or fewer, or"),
        ("--rate 0bit", "--rate: a link has a rate above 0"),
        ("--rate fast", "a number and a unit (bit, kbit, Mbit, Gbit, Tbit); write --rate 100Mbit"),
        ("--delay=-1us", "--delay: a link has a delay of 0 or more"),
        ("--size 0", "write --size 40kB"),
        ("--size 0kB", "--size: 0kB: a vector has an element or more"),
        ("--strategy mpi", "--strategy mpi: choose of iswitch, ring, ps, tree"),
        ("--strategy ring,ring", "name some of iswitch, ring, ps, tree, async, each once"),
        ("--strategy ps:servers=4", "write ps:servers=N, with an N of 1..3"),
        (
            "--topology rack:8x9,rate=1Gbit --strategy tree",
            "trees are packed for 64 workers at most",
        ),
        ("--topology star:3,loss=1%", "loses or changes packets; leave that out, and say --loss"),
        ("--topology star:3", "star:3: links take no time; say how fast they are: --rate 10Gbit"),
        ("--compute measured", "--compute: nothing runs here; write zero, fixed:3ms, or"),
        ("--compute file:/none", "--compute file:/none: cannot read /none: No such file"),
        ("--compute 3ms", "--compute '3ms': write zero, fixed:3ms, or file:TIMES\n"),
        ("--compute fixed:3kg", "--compute '3kg' is not a time"),
        ("--jitter lognormal:0.2", "--jitter needs --compute, such as fixed:3ms"),
        ("--slow 2=3", "--slow needs --compute, such as fixed:3ms"),
        ("--jitter wide", "--jitter wide: write lognormal:S"),
        ("--slow 3=2", "--slow 3=2: write RANK=FACTOR, with a RANK of 0..2"),
        ("--host-overhead soon", "--host-overhead: 'soon' is none of"),
        ("--switch-latency soon", "--switch-latency: 'soon' is none of"),
        ("--threshold 2", "--threshold is of asynchronous workers; add --strategy async"),
        ("--strategy async --threshold 4", "--threshold 4: there are 3 workers; take fewer"),
        ("--strategy async --loss 1%", "--strategy async does not go with --loss"),
        ("--strategy async --world sim", "--strategy async does not go with --world sim"),
        ("--strategy async --topology rack:1x2,rate=1Gbit", "is of one switch in the model"),
        ("--loss 5%", "--loss 5%: write 0 up to 5%, such as 0.1%"),
        ("--strategy ring --loss 1%", "--loss is of iswitch's packets; add --strategy iswitch"),
        ("--loss some", "--loss: loss 'some' is not a number and a unit"),
        ("--topology rack:1x2,rate=1Gbit --loss 1%", "repairs losses at one switch; take a star"),
        ("--loss 1% --slots 64", "--loss: the model repairs no losses with --slots"),
        ("--background 1Gbit", "--background 1Gbit: leave some of each link's rate to us"),
        ("--background 1", "--background: rate '1' is not a number"),
        ("--background 1", "; write --background 100Mbit"),
        ("--background 1Mbit --world sim", "--background: nobody sends it in --world sim"),
        ("--room much", "--room: size 'much' is not a number and a unit"),
        ("--slots 1", "--slots 1: write a power of two of 2 or more"),
        ("--sweep workers", "write OPTION=LIST, such as workers=4,16,64"),
        ("--sweep html=1", "choose an option of topology, workers, size"),
        ("--sweep strategy=iswitch,ring", "to compare them write --strategy iswitch,ring"),
        ("--sweep workers=x", "--sweep workers: 'x' is not a whole number"),
        ("--sweep workers=1 --sweep workers=2", "says workers twice"),
        ("--sweep size=4kB", "--sweep size=4kB: --size says 40kB, too; leave one of them out"),
        ("--world sim --sweep world=sim", "--world says sim, too; leave one of them out"),
        ("--resume", "--resume goes on with the file of --save; name it"),
    ],
)
def test_mistakes_are_told(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status: Any = main([*SMALL.split(), *line.split()])
    except SystemExit as end:
        status = end.code
    told = capsys.readouterr().err
    assert status == 2
    assert said in told
