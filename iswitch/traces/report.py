"""The findings of a replay, for machines and for people. Equal traces give equal reports."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import Any

from iswitch.core.format.counters import DROPS
from iswitch.core.format.pcapng import OUTSIDE, OWN
from iswitch.faults.units import count

from .diagnose import diagnose, unexplained
from .groups import Sink
from .host import HostView
from .links import LINKS
from .observed import JobSeen, Watch, describe
from .paired import ReplayOptions
from .reader import Reader
from .replay import Replayer
from .rounds import VersionsSeen, as_json
from .survey import NothingToReplay, TraceSetting
from .walk import Walk

SHOWN_ROUNDS, SHOWN = 8, 10
MOST_LATE = 4  # members that are named
SLOW_DISK = "the switch's disk was full, or too slow; make room there, or name another place"
NO_ROOM = (
    "what captured had no room left; give it more (tcpdump -B 65536; dumpcap -B 64 -C 100000000 "
    "-N 100000)"
)


def replay(
    reader: Reader,
    setting: TraceSetting,
    options: ReplayOptions | None = None,
    watch: Watch | None = None,
    sink: Sink | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Replay a trace, look into its differences, and return the report.

    Raises:
        NothingToReplay: jobs are keyed, and their keys are not given.
    """
    options = options or ReplayOptions()
    lacking = sorted(job for job in setting.keyed if options.keys.of(job) is None)
    if lacking:
        raise NothingToReplay(
            f"{reader.path}: job {lacking[0]} is keyed; name its key with --keys FILE, as for "
            "`iswitch switch`, or the switch that replays takes none of its control packets"
        )
    replayer = replayed(reader, setting, options, watch, sink, **more)
    report = describe_replay(reader, replayer)
    if is_suspicious(replayer):
        jobs = {} if setting.host else replayer.watch.jobs
        again = Walk(reader, setting)
        differences = replayer.comparison.tally.differences
        findings = diagnose(again, differences, jobs)
        findings += unexplained(differences, {(each.round, each.segment) for each in findings})
        report["findings"] = [each._asdict() for each in findings]
    return report


def replayed(reader: Reader, setting: TraceSetting, *args: Any, **more: Any) -> Replayer:
    """Replay a trace without diagnosing differences; return the replayer."""
    kind = HostView if setting.host else Replayer
    replayer = kind(reader, setting, *args, **more)
    replayer.run()
    return replayer


def is_suspicious(replayer: Replayer) -> bool:
    """Return whether aggregates differ or could not be checked, or packets were damaged."""
    tally = replayer.comparison.tally
    wrong = replayer.damaged + replayer.switch.counters["bad_checksum"]
    return bool(tally.different or tally.missing or tally.unchecked or wrong)


def describe_replay(reader: Reader, replayer: Replayer) -> dict[str, Any]:
    """Return the report of a finished replay."""
    setting, watch, tally = replayer.setting, replayer.watch, replayer.comparison.tally
    begin = replayer.begin or 0
    report: dict[str, Any] = {
        "trace": {
            "format": reader.format,
            "bytes": len(reader),
            "written_by": reader.application,
            "interfaces": [
                {"name": i.name, "link": i.link, "known": i.link in LINKS}
                for i in reader.interfaces
            ],
            "begin_ns": begin,
            "seconds": max(0, replayer.end - begin) / 1e9,
            **replayer.passed,
            "dropped_by_capture": reader.dropped,
            "first_cut_off": replayer.first_cut,
            "unknown_links": {str(link): n for link, n in replayer.unknown_links.items()},
            "problems": [problem._asdict() for problem in reader.problems.first],
            "problem_count": reader.problems.count,
        },
        "switch": "{}:{}".format(*setting.switch),
        "parent": None if setting.parent is None else str(setting.parent),
        "view": "host" if setting.host else "switch",
        "arrival_order": "known" if setting.ordered else "unknown",
        "jobs": [job_json(job) for job in watch.jobs.values()],
        "control": {"to_switch": dict(watch.actions), "from_switch": dict(watch.answers)},
    }
    report["findings"] = []
    if isinstance(replayer, HostView):
        report["aggregates_received"] = replayer.aggregates
        return report
    compared = asdict(tally)
    compared["differences"] = [each._asdict() for each in tally.differences]
    counters = replayer.switch.counters
    report["compared"] = compared
    report["counters"] = {name: n for name, n in counters.items() if n and name not in DROPS}
    report["drops"] = counters.drops()
    return report


def job_json(job: JobSeen) -> dict[str, Any]:
    """Return a job's part of the report."""
    rounds, totals = job.rounds, job.rounds.totals
    return {
        "job": job.number,
        **describe(job.shape),
        "members": [
            {
                "type": "switch" if member.is_switch else "worker",
                "name": job.called(member.rank),
                "rank": member.rank,
                "address": str(member.address),
                "joined": round(member.joined, 9),
                "packets": member.packets,
                "control": dict(member.actions),
                "last_of_round": rounds.last.get(member.rank, 0),
                "behind": round(rounds.behind.get(member.rank, 0.0), 9),
                "vectors": rounds.numbers.get(member.rank, 0)
                if isinstance(rounds, VersionsSeen)
                else None,
            }
            for member in sorted(job.members.values(), key=lambda m: (m.rank, m.joined))
        ],
        "rounds": totals.rounds,
        "rounds_without_aggregates": totals.incomplete,
        "rounds_not_listed": totals.rounds - len(rounds.told),
        "versions": rounds.versions if isinstance(rounds, VersionsSeen) else None,
        "completion": totals.completion(),
        "duplicates": totals.duplicates,
        "late": totals.late,
        "resent": totals.resent,
        "helps": totals.helps,
        "per_round": [as_json(told) for told in rounds.told],
    }


def is_clean(report: dict[str, Any]) -> bool:
    """Return whether aggregates could be compared, all of these agree, and none was damaged."""
    compared = report.get("compared")
    if report.get("findings"):
        return False
    return compared is None or not (
        compared["different"] or compared["missing"] or none_compared(compared)
    )


def is_whole(report: dict[str, Any]) -> bool:
    """Return whether the trace is complete and sound, as far as it tells."""
    return not (report["trace"]["dropped_by_capture"] or report["trace"]["problem_count"])


def none_compared(compared: dict[str, Any]) -> bool:
    """Return whether aggregates were captured, and not one could be compared."""
    return bool(0 < compared["captured"] == compared["unchecked"])


# For people


def lines(report: dict[str, Any]) -> list[str]:
    """Write the report as lines of text."""
    trace = report["trace"]
    found = [
        f"{count(trace['packets'], 'packet')} in {trace['seconds']:.3f} s, {trace['format']}"
        + (f" by {trace['written_by']}" if trace["written_by"] else ""),
        f"switch {report['switch']}"
        + (f", below {report['parent']}" if report["parent"] else "")
        + f": {count(trace['to_switch'], 'packet')} to it, {trace['from_switch']:,} from it"
        + (f", {trace['passing']:,} passing" if trace["passing"] else ""),
    ]
    if report["view"] == "host":
        found.append("a trace of one host: sums cannot be made again without the others'")
    found += _troubles(trace)
    for job in report["jobs"]:
        found += ["", *_job(job)]
    if "compared" in report:
        found += ["", *_compared(report)]
    found += _findings(report)
    if "compared" in report:
        if report["trace"]["out_of_order"] and report["compared"]["missing"]:
            found.append(
                f"{count(report['trace']['out_of_order'], 'packet')} not in the order of time; put "
                "the file in order first: reordercap IN OUT"
            )
        if report["drops"]:
            drops = ", ".join(
                f"{name} {n:,} ({DROPS[name]})" for name, n in report["drops"].items()
            )
            found.append(f"dropped by the switch that replays: {drops}")
    return found


def _troubles(trace: dict[str, Any]) -> list[str]:
    found = [
        f"broken at byte {problem['offset']:,}: {problem['what']}"
        for problem in trace["problems"][:SHOWN]
    ]
    if trace["problem_count"] > SHOWN:
        found.append(f"and {count(trace['problem_count'] - SHOWN, 'place')} more")
    if trace["dropped_by_capture"]:
        by_us = trace["written_by"] in (OWN, OUTSIDE)
        found.append(
            f"{count(trace['dropped_by_capture'], 'packet')} missing in the file, which says so: "
            + (SLOW_DISK if by_us else NO_ROOM)
        )
    if trace["cut_off"]:
        found.append(
            f"{count(trace['cut_off'], 'packet')} cut off, the first is number "
            f"{trace['first_cut_off']}: capture whole packets (tcpdump -s 0)"
        )
    if trace["ahead"]:
        found.append(
            f"{count(trace['ahead'], 'packet')} with times far ahead of those around: taken as if "
            "they came with the packet before"
        )
    for link, n in trace["unknown_links"].items():
        found.append(f"{count(n, 'packet')} of link type {link}, which is not read here")
    return found


def _job(job: dict[str, Any]) -> list[str]:
    found = [
        f"job {job['job']}: {job['op']} of {job['numel']:,} {job['dtype']}, {job['mode']}, "
        f"{count(job['segments'], 'segment')} of {job['elements_per_segment']}",
    ]
    if job["versions"] is not None:
        return found + _versions(job)
    times = job["completion"]
    between = "from first contribution to last aggregate"
    spans = f", p50 {_ms(times['p50'])}, p99 {_ms(times['p99'])} {between}" if times else ""
    found.append(
        f" rounds  {job['rounds']:,}{spans}; packets out of turn {job['resent']:,}, duplicates "
        f"{job['duplicates']:,}, late {job['late']:,}, Help {job['helps']:,}"
    )
    names = {m["rank"]: m["name"] for m in job["members"]}
    for member in job["members"]:
        last = member["last_of_round"]
        behind = f", by {_ms(member['behind'] / last)} on average" if last else ""
        found.append(f" {_who(member)} {_packets(member)}, last in {count(last, 'round')}{behind}")
    if job["rounds_not_listed"]:
        found.append(f" {count(job['rounds_not_listed'], 'round')} more than are listed one by one")
    slow = sorted(job["per_round"], key=lambda r: -(r["seconds"] or 0.0))[:SHOWN_ROUNDS]
    return found + [
        f" slow     round {told['number']} took {_ms(told['seconds'])}"
        + (f"; {who}" if (who := late(told, names)) else "")
        for told in slow[:3]
        if told["seconds"] is not None
    ]


def late(told: dict[str, Any], names: dict[int, str]) -> str:
    """Name the members that were late together, and how far they were behind the others.

    The widest gap between the members' ends parts the late ones from the others, which are named
    if they are fewer. If the round waited longer for the switch above, say that instead.
    """
    ends = {int(rank): end for rank, (_, end) in told["spans"].items()}
    times = sorted(set(ends.values()))
    widest = max(pairwise(times), key=lambda gap: gap[1] - gap[0], default=None)
    seconds = times[-1] - widest[0] if widest else 0.0
    if told["above"] > seconds:
        return f"{_ms(told['above'])} of that it waited for the switch above"
    if widest is None:
        return ""
    late = [names[rank] for rank in sorted(ends) if ends[rank] >= widest[1]]
    others = [names[rank] for rank in sorted(ends) if ends[rank] < widest[1]]
    than = _listed(others) if len(others) < len(late) else "all others"
    were = "was" if len(late) == 1 else "were up to"
    return f"{_listed(late)} {were} {_ms(seconds)} behind {than}"


def _listed(names: list[str]) -> str:
    if len(names) > MOST_LATE:
        return f"{len(names)} members"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _who(member: dict[str, Any]) -> str:
    kind, _, number = member["name"].partition(" ")
    return f"{kind} {number:>2}  {member['address']:21}"


def _packets(member: dict[str, Any]) -> str:
    return f"{count(member['packets'], 'packet'):>17}"


def _versions(job: dict[str, Any]) -> list[str]:
    members = [
        f" {_who(member)} {_packets(member)}, {count(member['vectors'], 'vector')}"
        for member in job["members"]
    ]
    return [
        f" versions  {job['versions']:,}; duplicates {job['duplicates']:,}, late {job['late']:,}, "
        f"Help {job['helps']:,}",
        *members,
    ]


def _compared(report: dict[str, Any]) -> list[str]:
    tally = report["compared"]
    if not tally["captured"]:
        return ["the trace holds no aggregates of a real switch to compare with"]
    found = [
        f"aggregates captured {tally['captured']:,}: {tally['equal']:,} equal to the last bit"
        + (f", {tally['within_bound']:,} within the bound" if tally["within_bound"] else "")
        + (f", {tally['different']:,} DIFFERENT" if tally["different"] else "")
        + (f", {tally['missing']:,} NOT MADE AGAIN" if tally["missing"] else "")
        + (f", {tally['unchecked']:,} not checked" if tally["unchecked"] else "")
        + f" (order of arrival {report['arrival_order']})"
    ]
    if none_compared(tally):
        found.append(f"not one of them could be compared: {_why_none(report)}")
    elif tally["unchecked"]:
        found.append(
            "not checked are those to nobody whose Join is in the trace, and of segments of which "
            "contributions are missing in it: what captured may have lost packets"
        )
    return found


def _why_none(report: dict[str, Any]) -> str:
    if not report["trace"]["to_switch"]:
        return (
            f"no packet is to {report['switch']}, so the trace was captured at another switch; "
            "name that with --switch"
        )
    if bad := report["drops"].get("bad_mac"):
        return (
            f"the key differs: {count(bad, 'packet')} with another MAC (bad_mac); give the keys "
            "that the switch had with --keys"
        )
    return (
        "they are for nobody whose Join is in the trace, or of rounds without contributions; "
        "capture from before the workers join, and give the --memory and --lease that the switch "
        "had"
    )


def _findings(report: dict[str, Any]) -> list[str]:
    found = []
    for each in report["findings"][:SHOWN]:
        if each["packet"] is None:
            place = f"round {each['round']}, segment {each['segment']}"
            found.append(f"the {each['what']} to {place} {each['evidence']}")
            continue
        where = "damaged"
        if each["round"] is not None:
            where = f"round {each['round']} segment {each['segment']}"
        if each["element"] is not None:
            where += f" element {each['element']}"
        if each["bit"] is not None:
            where += f" bit {each['bit']}: {each['captured']}, should be {each['should_be']}"
        found.append(
            f"packet {each['packet']}, byte {each['offset']} of the file, {each['what']}: {where} "
            f"({each['evidence']})"
        )
    if len(report["findings"]) > SHOWN:
        found.append(f"and {len(report['findings']) - SHOWN} more")
    return found


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3f} ms"
