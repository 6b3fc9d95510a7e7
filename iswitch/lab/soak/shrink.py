"""Makes a failing scenario shorter while it still breaks the same kind of promise.

It leaves out or simplifies one thing at a time, keeps what still fails, and begins again, until
nothing shorter fails or MOST runs are spent. Equal scenarios shrink to equal ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .drawing import nodes
from .run import Result, run
from .scenario import Event, Job, Scenario

MOST = 400  # runs
CHANCES = range(1, 13)  # seeds with which a smaller network is tried, too


def shrink(scenario: Scenario) -> tuple[Scenario, Result]:
    """Find the shortest scenario that breaks the promise that a failing one breaks.

    Returns:
        the scenario and its result.
    """
    result = run(scenario)
    assert result.violation
    runs = 0
    shorter = True
    while shorter:
        shorter = False
        for candidate in (*ended(scenario, result), *candidates(scenario)):
            if runs == MOST:
                return scenario, result
            runs += 1
            found = run(candidate)
            if found.violation == result.violation:
                scenario, result, shorter = candidate, found, True
                break
    return scenario, result


def ended(scenario: Scenario, result: Result) -> Iterator[Scenario]:
    """Yield the scenario without events after its failure, which plays faster."""
    if result.time < 0.9 * scenario.horizon:
        events = tuple(event for event in scenario.events if event.at <= result.time)
        yield replace(scenario, events=events, horizon=round(1.05 * result.time + 1e-6, 6))


def candidates(scenario: Scenario) -> Iterator[Scenario]:
    """Yield shorter scenarios, the boldest first."""
    events = scenario.events
    if len(events) > 1:
        yield replace(scenario, events=())
    for i in range(len(events)):
        yield replace(scenario, events=events[:i] + events[i + 1 :])
    if scenario.links:
        yield replace(scenario, links="")
    if scenario.rings:
        yield replace(scenario, rings=False)
    if len(scenario.jobs) > 1:
        for job in scenario.jobs:
            yield with_job(scenario, job)
    for smaller in fewer_workers(scenario):
        yield smaller
        # Its packets have other fates than those of the larger one.
        yield from (replace(smaller, seed=seed) for seed in CHANCES)
    yield from sounder_links(scenario)
    yield from plainer_jobs(scenario)
    if events and scenario.horizon > 0.02:
        yield earlier(scenario)


def with_job(scenario: Scenario, job: Job) -> Scenario:
    """Keep only this job; leave out events at the workers of other jobs."""
    others = {host for each in scenario.jobs for host in each.hosts} - {*job.hosts}
    events = tuple(event for event in scenario.events if event.who not in others)
    return replace(scenario, jobs=(job,), events=events)


def fewer_workers(scenario: Scenario) -> Iterator[Scenario]:
    """Yield scenarios with a worker less, or with a smaller network that has all named nodes."""
    for job in scenario.jobs:
        for host in reversed(job.hosts) if len(job.hosts) > 1 else ():
            hosts = tuple(name for name in job.hosts if name != host)
            left = replace(job, hosts=hosts, threshold=min(job.threshold, len(hosts)))
            jobs = tuple(left if each is job else each for each in scenario.jobs)
            events = tuple(event for event in scenario.events if event.who != host)
            yield replace(scenario, jobs=jobs, events=events)
    named = {host for job in scenario.jobs for host in job.hosts}
    named |= {event.who for event in scenario.events}
    for form in ("star:1", "star:2", "star:3", "star:4", "rack:1x1", "rack:1x2", "rack:2x1"):
        if form == scenario.topology:
            return
        hosts, switches = nodes(form)
        if named <= {*hosts, *switches}:
            yield replace(scenario, topology=form)


def sounder_links(scenario: Scenario) -> Iterator[Scenario]:
    """Yield scenarios without one impairment and those that depend on it."""
    parts = scenario.links.split(",") if scenario.links else []
    needs = {"loss": {"burst"}, "delay": {"jitter", "reorder"}, "rate": {"queue"}}
    for part in parts:
        name = part.partition("=")[0]
        gone = {name, *needs.get(name, ())}
        left = [other for other in parts if other.partition("=")[0] not in gone]
        if left:
            yield replace(scenario, links=",".join(left))


def plainer_jobs(scenario: Scenario) -> Iterator[Scenario]:
    """Yield scenarios with smaller vectors of a plain type."""
    for job in scenario.jobs:
        plainer = [replace(job, reproducible=False), replace(job, dtype="int32")]
        plainer.append(replace(job, threshold=0))
        if not job.asynchronous:
            plainer.append(replace(job, numel=min(job.numel, 1), elements=1))
            plainer.append(replace(job, numel=min(job.numel, 2 * job.elements)))
        for other in plainer:
            if other != job:
                jobs = tuple(other if each is job else each for each in scenario.jobs)
                yield replace(scenario, jobs=jobs)


def earlier(scenario: Scenario) -> Scenario:
    """Return the scenario with all times halved."""

    def half(event: Event) -> Event:
        return replace(event, at=event.at / 2)

    events = tuple(map(half, scenario.events))
    horizon, think = scenario.horizon / 2, scenario.think / 2
    return replace(scenario, events=events, horizon=horizon, think=think)
