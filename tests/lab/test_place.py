"""`iswitch place`: places keep to what there is, the best is best, and rounds take that long."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from iswitch.cli import main, parser
from iswitch.lab.launch.command import programs_of
from iswitch.lab.launch.placing import ranges
from iswitch.lab.placement.jobs import Job, loads
from iswitch.lab.placement.optimum import TIE, fastest
from iswitch.lab.placement.policies import amount, check, one_by_one, pack, spread
from iswitch.lab.placement.prediction import Places, predict, total
from iswitch.lab.placement.tree import Tree
from iswitch.outside import UsageError
from iswitch.sim.model.aggregation import GROWN, Window, aggregate
from iswitch.sim.model.fabric import Fabric
from tests.support import ROOT
from topologies import Link, Topology, simulate
from topologies.virtual.notebook import Seat
from worker_lib import Worker

pytestmark = pytest.mark.unit

packed = partial(one_by_one, choose=pack, policy="pack")
spread_out = partial(one_by_one, choose=spread, policy="spread")


def tree_of(seed: int, forms: tuple[str, ...], memory: int = 1 << 30) -> Tree:
    """A network whose links have random rates and delays."""
    rng = random.Random(seed)
    plain = Topology.parse(rng.choice(forms))
    links = [Link(one.a, one.b, rng.choice((None, 10**9, 2 * 10**9, 10**10)), rng.choice((0, 1e-5)))
             for one in plain.links]  # fmt: skip
    slots = random.Random(-seed).choice((0, 0, 4, 64))
    return Tree(Topology(plain.hosts, plain.switches, tuple(links)), memory, slots)


def jobs_of(seed: int, hosts: int, most: int, rates: bool = True) -> tuple[Job, ...]:
    rng = random.Random(seed)
    jobs: list[Job] = []
    while hosts and len(jobs) < most:
        workers = rng.randint(1, min(4, hosts))
        hosts -= workers
        numel = rng.choice((0, 1000, 40_000, 400_000))
        rate = rng.choice((0, 0, 4e8, 1e9)) if rates else 0.0
        jobs.append(
            Job(f"j{len(jobs)}", workers, numel, compute=rng.choice((0.0, 0.001)),
                priority=rng.choice((1.0, 3.0)), rate=rate)
        )  # fmt: skip
    return tuple(jobs)


def keeps(tree: Tree, jobs: tuple[Job, ...], places: Places) -> bool:
    """Whether memory and rates suffice."""
    memory: Counter[str] = Counter()
    rate: Counter[str] = Counter()
    for job in jobs:
        ways = {node for host in places[job.name] for node in tree.way(host)}
        for node in ways:
            rate[node] += int(job.rate)
        for switch in {tree.root, *(node for node in ways if node not in tree.hosts)}:
            memory[switch] += tree.need(job, switch)
    return all(size <= tree.memory for size in memory.values()) and all(
        wanted <= tree.rate(node) for node, wanted in rate.items()
    )


def is_sound(tree: Tree, jobs: tuple[Job, ...], places: Places) -> bool:
    """Whether each worker has a host for itself, and all keep to what there is."""
    taken = [host for hosts in places.values() for host in hosts]
    assert len(set(taken)) == len(taken)
    assert set(taken) <= set(tree.hosts)
    assert {name: len(hosts) for name, hosts in places.items()} == {
        job.name: job.workers for job in jobs
    }
    return keeps(tree, jobs, places)


def test_places_keep_to_hosts_memory_and_rates() -> None:
    forms = ("star:8", "rack:3x4", "tree:2x2x3", "leafspine:2x3x4")
    refused = 0
    for seed in range(200):
        tree = tree_of(seed, forms, random.Random(seed).choice((2 << 20, 10 << 20, 1 << 30)))
        jobs = jobs_of(seed, len(tree.hosts), 6)
        try:
            check(tree, jobs)
            for place in (packed, spread_out):
                assert is_sound(tree, jobs, place(tree, jobs))
        except UsageError:
            refused += 1
    assert 20 < refused < 150


def everywhere(free: list[str], jobs: tuple[Job, ...]) -> Iterator[dict[str, tuple[str, ...]]]:
    """All placements there are."""
    if not jobs:
        yield {}
        return
    for hosts in combinations(free, jobs[0].workers):
        for others in everywhere([host for host in free if host not in hosts], jobs[1:]):
            yield {jobs[0].name: hosts, **others}


def test_the_fastest_is_the_best_of_all() -> None:
    """Beside brute force, which has its own idea of what memory and rates allow."""
    better = impossible = 0
    for seed in range(40):
        tree = tree_of(seed, ("star:5", "rack:2x3", "rack:3x2", "tree:2x2x2"))
        jobs = jobs_of(seed, len(tree.hosts), 3)
        tree.memory = sum(tree.need(job, tree.root) for job in jobs)  # less in a switch below
        if seed % 2:
            tree.memory = max(tree.memory, *(tree.need(job, "below") for job in jobs))
        every = [p for p in everywhere(list(tree.hosts), jobs) if keeps(tree, jobs, p)]
        if not every:
            impossible += 1
            with pytest.raises(UsageError, match="no placement keeps to"):
                fastest(tree, jobs, 60)
            continue
        found = fastest(tree, jobs, 60)
        assert is_sound(tree, jobs, found.places)
        times = [total(tree, jobs, places) for places in every]
        assert total(tree, jobs, found.places) <= min(times) * (1 + 2 * TIE), seed
        assert found.gap == 0
        better += bool(min(times) < 0.9 * np.median(times))
    assert better > 5
    assert impossible > 2


@pytest.mark.parametrize("lacking", [0, 1])
def test_memory_is_kept_to_the_byte(lacking: int) -> None:
    """The second rack is far away, and only taken if the first has not the memory for both."""
    plain = Topology.parse("rack:2x4")
    links = [Link(one.a, one.b, 10**9, 1e-3 if "tor2" in (one.a, one.b) else 0)
             for one in plain.links]  # fmt: skip
    tree = Tree(Topology(plain.hosts, plain.switches, tuple(links)))
    jobs = (Job("a", 2, 100_000, priority=1e-9), Job("b", 2, 366, priority=1e-9))
    tree.memory = sum(tree.need(job, "tor1") for job in jobs) - lacking
    found = fastest(tree, jobs, 60)
    assert is_sound(tree, jobs, found.places)
    racks = {tree.up[host] for hosts in found.places.values() for host in hosts}
    assert racks == ({"tor1", "tor2"} if lacking else {"tor1"})
    assert bool(found.gap) == bool(lacking)  # the solver, which overlooks a byte, knows no better


def test_without_time_the_fastest_is_no_slower_than_the_others() -> None:
    """And tells a bound that holds."""
    tree = tree_of(1, ("rack:3x4",))
    jobs = tuple(Job(f"j{i}", 2 + i % 2, 10_000 * (1 + i), compute=0.001) for i in range(4))
    hasty, patient = fastest(tree, jobs, 1e-6), fastest(tree, jobs, 60)
    assert is_sound(tree, jobs, hasty.places)
    times = [total(tree, jobs, places) for places in (hasty.places, packed(tree, jobs))]
    assert times[0] <= times[1]
    best = total(tree, jobs, patient.places)
    assert patient.gap == 0
    assert best >= times[0] * (1 - hasty.gap) * (1 - 2 * TIE)
    idle = (Job("a", 3, 1000, priority=0.0),)
    assert is_sound(tree, idle, fastest(tree, idle, 60).places)


def test_packing_takes_few_racks_and_spreading_many() -> None:
    tree = Tree(Topology.parse("rack:3x4"))
    jobs = (Job("a", 4, 9), Job("b", 3, 9), Job("c", 2, 9))
    assert packed(tree, jobs) == {
        "a": ["h1", "h2", "h3", "h4"], "b": ["h5", "h6", "h7"], "c": ["h9", "h10"],
    }  # fmt: skip
    places = spread_out(tree, jobs)
    racks = {name: len({tree.up[host] for host in hosts}) for name, hosts in places.items()}
    assert racks == {"a": 3, "b": 3, "c": 2}
    # The least switch that is large enough, of these the one with the least to spare.
    assert packed(tree, (*jobs, Job("d", 1, 9)))["d"] == ["h8"]
    assert tree.switches_of(["h9", "h10"]) == ["core1", "tor3"]


def measured(topology: str, jobs: tuple[Job, ...], places: Places, rounds: int) -> dict[str, float]:
    """Run the jobs in virtual time; the mean of their rounds while all of them send, in seconds."""
    of = {host: (job, rank) for job in jobs for rank, host in enumerate(places[job.name])}

    def work(seat: Seat) -> list[tuple[float, float]]:
        if seat.host not in of:
            return []
        job, rank = of[seat.host]
        times = []
        start = time.monotonic() + 1.0  # when all have joined
        with Worker(
            seat.switch, job=job.number, num_workers=job.workers, rank=rank, numel=job.numel
        ) as worker:
            time.sleep(start - time.monotonic())
            for _ in range(rounds):
                began = time.monotonic()
                if job.compute:
                    time.sleep(job.compute)
                worker.allreduce(np.ones(job.numel, np.float32))
                times.append((began, time.monotonic()))
        return times

    found = simulate(topology, work)
    first = {name: found[int(hosts[0][1:]) - 1] for name, hosts in places.items()}
    over = min(times[-1][1] for times in first.values())
    return {name: float(np.mean([end - began for began, end in times if end <= over]))
            for name, times in first.items()}  # fmt: skip


NET = "rack:2x3,rate=1Gbit,delay=10us,queue=5000packets"
N = 50_000
CASES = {  # jobs, and how far the prediction may be from the mean of rounds
    "alone": ((Job("a", 2, N),), 0.005),
    "two": ((Job("a", 2, N), Job("b", 2, N, number=2)), 0.03),
    "three": ((Job("a", 2, N), Job("b", 2, N, number=2), Job("c", 2, N, number=3)), 0.03),
    "computing": ((Job("a", 2, N, compute=0.003), Job("b", 2, N, compute=0.003, number=2)), 0.03),
    "unequal": ((Job("a", 2, N), Job("b", 2, N // 2, number=2)), 0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("place", [packed, spread_out], ids=["pack", "spread"])
def test_rounds_take_as_long_as_predicted(case: str, place: partial[dict[str, list[str]]]) -> None:
    jobs, off = CASES[case]
    tree = Tree(Topology.parse(NET))
    places = place(tree, jobs)
    predicted = predict(tree, jobs, places)
    for name, seconds in measured(NET, jobs, places, 5).items():
        assert predicted[name].seconds == pytest.approx(seconds, rel=off), name


@pytest.mark.slow
@pytest.mark.parametrize("mtu", [300, 1500, 9000])
def test_packets_are_as_short_as_workers_make_them(mtu: int) -> None:
    form = NET.replace("rack:2x3", "star:2") + f",mtu={mtu}"
    tree = Tree(Topology.parse(form))
    (job,) = jobs = tree.fitted([Job("a", 2, 20_000)])
    places = packed(tree, jobs)
    (seconds,) = measured(form, jobs, places, 2).values()
    assert predict(tree, jobs, places)["a"].seconds == pytest.approx(seconds, rel=0.005)
    assert job.shape.packet_size <= min(mtu, 1500) - 28 < job.shape.packet_size + 4


@pytest.mark.parametrize("form", ["star:4,rate=10Gbit,delay=50us", "rack:2x2,rate=1Gbit,delay=1ms"])
def test_windows_are_those_of_the_model(form: str) -> None:
    """Whatever slots or the way allow, a job alone takes as long as `iswitch simulate` says."""
    topology, waits = Topology.parse(form), set()
    for slots in (0, 2, 4, 64, 512, 1024):
        tree, job = Tree(topology, slots=slots), Job("a", 4, 300_000)
        (said,) = predict(tree, [job], {"a": list(tree.hosts)}).values()
        window = Window.of(job.shape, 4, GROWN, slots=slots)
        took = aggregate(Fabric.of(topology), job.shape, np.zeros(4), window)
        assert said.seconds == said.alone == pytest.approx(took.max(), rel=1e-5), slots
        waits.add(said.waits)
    assert waits == {True, False}


def said(text: str) -> str:
    with pytest.raises(UsageError) as refusal:
        check(Tree(Topology.parse("rack:2x2"), 20 << 20), loads(text, "jobs.toml"))
    return str(refusal.value)


JOB = '[[jobs]]\nname = "a"\nworkers = 2\nnumel = 100\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there are 0 jobs, not 1 to 256; write [[jobs]] before each"),
        ("jobs = 1", "the file: jobs is 1; give a list"),
        ("[[job]]", "the file has a 'job'; it can have jobs"),
        ("[[jobs]]\nworkers = 2\nnumel = 1", "job number 1 has no 'name'"),
        (JOB + "slot = 2", "job 'a' has a 'slot'; it can have name, workers, numel, dtype"),
        (JOB.replace("2", "true"), "job 'a': workers is True, not a whole number from 1 to 4096"),
        (JOB.replace("2", "0"), "job 'a': workers is 0, not a whole number from 1 to 4096"),
        (JOB.replace('"a"', '"a b"'), "job 'a b' cannot be called so; take 1 to 32 letters"),
        (JOB + 'dtype = "float"', "job 'a': dtype 'float' is none of float32,"),
        (JOB + 'compute = "3 weeks"', "job 'a': compute '3 weeks' is not a number and a unit (ns"),
        (JOB + 'compute = "20"', "job 'a': compute '20' is not a number and a unit (ns, us,"),
        (JOB + "compute = nan", "job 'a': compute nan is not 0 or more, 1e+09 at most, and finite"),
        (JOB + 'rate = "1"', "job 'a': rate '1' is not a number and a unit (bit, kbit,"),
        (JOB + "priority = -1", "job 'a': priority -1 is not 0 or more"),
        (JOB + "command = \"echo 'x\"", "job 'a': command: No closing quotation; close each"),
        (JOB + 'command = "a\\u0000b"', "job 'a': command has a NUL, which no program can be"),
        (JOB + "rounds = -1", "job 'a': rounds is -1, not a whole number from 0 to 4294967295"),
        (JOB + "job = [1]", "job 'a': job is [1]; give a whole number"),
        (JOB.replace("numel", "nummel"), "job 'a' has a 'nummel'; it can have name,"),
        (JOB + JOB, "2 jobs have the name 'a'; give each its own"),
        (JOB + "job = 3\n" + JOB.replace('"a"', '"b"') + "job = 3", "2 jobs have the number 3"),
        (JOB.replace("2", "5"), "job 'a' has 5 workers, and rack:2x2 has 4 hosts; take fewer"),
        (JOB.replace("2", "3") + JOB.replace('"a"', '"b"'), "need 5 hosts, one for each worker"),
        (JOB.replace("100", "5_000_000"), "reserve 39.71 MiB at core1, through which all sums go"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used(text: str, words: str) -> None:
    assert words in said(text)


def test_a_rate_that_no_link_has_is_refused() -> None:
    tree = Tree(Topology.parse("rack:2x2,rate=1Gbit"))
    said = "up to core1, but the links of 4 hosts have at most 1Gbit/s, so 0 are left for its 2 wor"
    with pytest.raises(UsageError, match="wants 20Gbit/s of each link " + said):
        check(tree, (Job("a", 2, 9, rate=2e10),))


def test_little_memory_is_told_in_smaller_units() -> None:
    tree = Tree(Topology.parse("rack:2x2"), 1024)
    with pytest.raises(UsageError, match=r"reserve [\d.]+ KiB at core1, .* it has 1 KiB; raise"):
        check(tree, (Job("a", 2, 1000),))
    sizes = 0, 1, 1023, 1024, 1 << 17, 41_640_000, 1 << 30
    assert list(map(amount, sizes)) == [
        "0 bytes", "1 byte", "1,023 bytes", "1 KiB", "0.12 MiB", "39.71 MiB", "1,024 MiB",
    ]  # fmt: skip


def test_numbers_are_those_that_nobody_took() -> None:
    names = 'name = "b"', 'name = "c"\njob = 1'
    jobs = loads(JOB + "".join(JOB.replace('name = "a"', name) for name in names), "jobs.toml")
    assert [job.number for job in jobs] == [2, 3, 1]


def test_less_memory_with_slots() -> None:
    topology, job = Topology.parse("star:4"), Job("a", 4, 1_681_062)
    assert Tree(topology).need(job, "s1") == 14_002_512  # docs/cookbook.md
    assert Tree(topology, slots=512).need(job, "s1") < 2 << 20
    assert Tree(topology, slots=8192).need(job, "s1") == 14_002_512  # no more slots than segments


def test_ranges() -> None:
    assert ranges(["h1", "h2", "h3", "h5", "left7", "left8", "x"]) == "h1-h3 h5 left7-left8 x"


def test_what_the_page_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file and the commands of docs/place.md do what stands there.

    Those of tests/worlds/test_run_jobs.py are run.
    """
    page = (ROOT / "docs" / "place.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (text,) = (text for kind, text in blocks if kind == "toml")
    (printed,) = (text for kind, text in blocks if kind == "text")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.toml").write_text(text)
    words, runs = (text[len("$ iswitch ") :] for kind, text in blocks if kind == "console")
    assert main(words.split()) == 0
    assert capsys.readouterr().out == printed
    for policy in ("fastest", "spread"):
        assert main([*words.split(), "--policy", policy]) == 0
        (told,) = re.findall(r"add up to ([\d.]+) ms", capsys.readouterr().out)
        assert f"{told} ms" in page
    args = parser(["run"]).parse_args(runs.split())
    programs = programs_of(args, Topology.parse(args.topology))
    assert [(one.name, one.job, one.command[:2]) for one in programs] == [
        (name, at, ("python", "train.py"))
        for at, name in enumerate(("dqn", "a2c", "ppo", "ddpg"), 1)
    ]


@pytest.mark.slow
def test_without_rates_it_says_that_times_are_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text('[[jobs]]\nname = "a"\nworkers = 2\nnumel = 100\ncompute = "2ms"\n')
    said = "links take no time here; say how fast they are, as star:4,rate=10Gbit does\n"
    for network in ("star:4", "star:4,rate=1Gbit"):
        assert main(["place", "--topology", network, "--jobs", str(path)]) == 0
        assert (said in capsys.readouterr().out) == (network == "star:4")


def test_for_machines_and_as_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs, plot = tmp_path / "jobs.toml", tmp_path / "places.svg"
    jobs.write_text(JOB)
    words = ["place", "--topology", "rack:2x2,rate=1Gbit", "--jobs", str(jobs), "--json"]
    assert main([*words, "--policy", "fastest", "--plot", str(plot)]) == 0
    (told,) = (found := json.loads(capsys.readouterr().out))["jobs"]
    assert len(set(told["hosts"])) == 2
    assert (told["job"], told["sharing"], found["policy"]) == (1, 1, "fastest")
    assert len(told["switches"]) == 2
    assert told["seconds"] == told["alone"] == found["total"] > 0
    assert "tor2" in plot.read_text()
    assert "1 job" in plot.read_text()
    for more, words_said in (
        (["--plot", "places.doc"], "a name that ends in .png or .svg or .pdf"),
        (["--plot", str(jobs) + "/x.svg"], "cannot write"),
        (["--topology", "rack:2x2", "--policy", "fastest"], "no link has a rate"),
    ):
        assert main([*words, *more]) == 2
        assert words_said in capsys.readouterr().err
