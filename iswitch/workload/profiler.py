"""Makes a workload of traces that `torch.profiler` has exported: what runs between collectives.

A rank computes from one call of a collective to the next. DistributedDataParallel goes on while
buckets travel, and waits for all of them after the last; other programs wait for each call. How
long that takes in the trace is left out: the network played later says it.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from iswitch.outside import UsageError, reading

from .records import ALL, FORMAT, Record, Workload
from .traces import Imported, checked, unpacked

MOST_HEAD = 1000  # bytes of the first line of a workload
SECOND = 1e6  # microseconds
CALLS = {"c10d::allreduce_": "allreduce", "c10d::barrier": "barrier"}
DDP = "DistributedDataParallel.forward"
STEP = "ProfilerStep#"
BYTES = {
    "float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "int": 4, "long int": 8,
}  # fmt: skip


class Span(NamedTuple):
    """An event of a trace: when it began and ended, in seconds, and its arguments."""

    name: str
    begin: float
    end: float
    args: Mapping[str, Any]


class Trace:
    """What the profiler saw of one rank.

    Raises:
        UsageError: the file cannot be read, or is no such trace.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.left_out: Counter[str] = Counter()
        with reading(path, UsageError):
            self._read(unpacked(path))
        if not self.calls:
            hint = " (those of a GPU are not read)" if self._has_kernels else ""
            raise UsageError(f"{path} has no allreduce of torch.distributed{hint}")

    def _read(self, text: bytes) -> None:
        if b'"traceEvents"' not in text:
            hint = " (it is a workload already)" if FORMAT.encode() in text[:MOST_HEAD] else ""
            raise UsageError(
                f"{self.path} is no trace of torch.profiler{hint}; name what export_chrome_trace "
                "has written"
            )
        found = json.loads(text)
        about = found.get("distributedInfo", {})
        self.rank, self.ranks = int(about.get("rank", 0)), int(about.get("world_size", 1))
        spans = sorted(_spans(found["traceEvents"]), key=lambda span: span.begin)
        self._has_kernels = any(span.name.startswith("nccl") for span in spans)
        self.calls = [span for span in spans if span.name in CALLS]
        self._works = [span for span in spans if span.name.endswith((":all_reduce", ":barrier"))]
        self.left_out.update(
            span.name for span in spans if span.name.startswith("c10d::") and span.name not in CALLS
        )
        self._is_ddp = any(span.name == DDP for span in spans)
        self._steps = _steps(spans)

    def records(self, rank: int | None) -> list[Record]:
        """Return what the rank does, step by step.

        Raises:
            UsageError: the trace is damaged, or does not say how long vectors are.
        """
        with reading(self.path, UsageError):
            return list(self._records(rank))

    def _records(self, rank: int | None) -> Iterator[Record]:
        starts = [call.begin for call in self.calls]
        for number, (begin, end) in enumerate(self._steps):
            calls = self.calls[bisect_left(starts, begin) : bisect_left(starts, end)]
            at = begin
            for call in calls:
                kind, size = CALLS[call.name], self._size(call)
                yield Record(
                    number, rank, max(0.0, call.begin - at), kind if size or kind == "barrier" else
                    None, size, is_async=self._is_ddp and bool(size),
                )  # fmt: skip
                at = call.begin if self._is_ddp else self._ended(call, end)
            if calls and self._is_ddp:
                at = max(self._ended(call, end) for call in calls)
            yield Record(number, rank, max(0.0, end - at), wait=ALL if self._is_ddp else ())

    def _size(self, call: Span) -> int:
        """Return the bytes of a call."""
        if call.name == "c10d::barrier":
            return 0
        dims = call.args.get("Input Dims")
        if not dims:
            raise UsageError(
                f"{self.path} does not say how long vectors are; record it with "
                "torch.profiler.profile(record_shapes=True)"
            )
        count = 0
        for shape in dims[0]:
            elements = 1
            for size in shape:
                elements *= size
            count += elements
        return count * self._element(count)

    def _element(self, count: int) -> int:
        """Return the bytes of an element, which only what carries the call tells."""
        for work in self._works:
            if work.args.get("Input Dims") == [[count]]:
                return BYTES.get(work.args["Input type"][0], 4)
        return 4

    def _ended(self, call: Span, latest: float) -> float:
        """Return when a call was done."""
        following = [work for work in self._works if work.begin >= call.begin]
        mine = next((w for w in following if self._carries(w, call)), None)
        return max(call.end, min(mine.end, latest)) if mine is not None else call.end

    def _carries(self, work: Span, call: Span) -> bool:
        dims = call.args.get("Input Dims") or [None]
        return bool(work.args.get("Input Dims") == dims[0])


def _spans(events: Sequence[Mapping[str, Any]]) -> Iterator[Span]:
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in ("cpu_op", "user_annotation"):
            begin = float(event["ts"]) / SECOND
            duration = float(event["dur"]) / SECOND
            yield Span(str(event["name"]), begin, begin + duration, event.get("args", {}))


def _steps(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """Return when steps begin and end: the profiler's, or from forward to forward, or all."""
    told = [(span.begin, span.end) for span in spans if span.name.startswith(STEP)]
    if told:
        return told
    begins = [span.begin for span in spans if span.name == DDP]
    last = max((span.end for span in spans), default=0.0)
    begins = begins or [min((span.begin for span in spans), default=0.0)]
    return list(zip(begins, [*begins[1:], last], strict=True))


def load(paths: Sequence[str]) -> Imported:
    """Make a workload of the traces of one rank, which then stands for all, or of all ranks.

    Raises:
        UsageError: a trace cannot be read, or they are not of the ranks of one program.
    """
    traces = [Trace(path) for path in paths]
    ranks = traces[0].ranks
    if any(trace.ranks != ranks for trace in traces):
        raise UsageError("the traces are of programs with different numbers of ranks")
    if len(traces) == 1:
        records = traces[0].records(None)
    elif {trace.rank for trace in traces} == set(range(ranks)) and len(traces) == ranks:
        traces.sort(key=lambda trace: trace.rank)
        records = [record for trace in traces for record in trace.records(trace.rank)]
    else:
        told = ", ".join(str(trace.rank) for trace in traces)
        raise UsageError(
            f"the traces are of ranks {told} of {ranks}; name one, or one of each rank"
        )
    steps = min(max(one.step for one in trace.records(0)) for trace in traces)
    kept = tuple(record for record in records if record.step <= steps)
    left_out = sum((trace.left_out for trace in traces), Counter[str]())
    return checked(Workload(paths[0], ranks, kept, "torch.profiler"), left_out)
