"""Sections 1 and 2: how packets are recognised, segments, lengths, super-datagrams."""

import random

from tests.conformance import wire
from tests.conformance.case import Bench, case, first_round, play, vectors
from tests.conformance.expectations import expect_no_data, expect_quiet, expect_segment, expect_sum
from tests.conformance.wire import Shape

SEGMENTED = Shape(segments=6, per_segment=8, last=3)

# Neither control nor data, however many of the six DSCP bits they share with one of the two.
OTHER_TOS = (0x00, 0x04, 0x08, 0x10, 0x14, 0x18, 0x2C, 0x3C, 0x4C, 0x5C, 0x8C, 0x9C, 0xFC)


@case("1")
def ecn_bits_accepted(bench: Bench) -> None:
    """Control and data are recognised whatever the two ECN bits of the ToS byte hold."""
    shape = Shape()
    workers = [bench.stranger(shape) for _ in range(3)]
    inputs = vectors(3, shape)
    for ecn, worker in enumerate(workers, start=1):
        worker.join(tos=wire.TOS_CONTROL | ecn)
    start = first_round(workers[0])
    for ecn, (worker, vector) in enumerate(zip(workers, inputs, strict=True), start=1):
        worker.contribute(start, vector, tos=wire.TOS_DATA | ecn)
    expect_sum(workers, start, shape.fold(*inputs))


@case("1")
def other_tos_ignored(bench: Bench) -> None:
    """A datagram of any other ToS is ordinary traffic: not answered, not counted."""
    shape = Shape()
    workers = bench.workers(2, shape)
    stranger = bench.stranger(shape)
    wrong, *inputs = vectors(3, shape)
    start = first_round(workers[0])
    for tos in OTHER_TOS:
        stranger.send_join(tos=tos)
        workers[1].contribute(start, wrong, tos=tos)
    workers[0].contribute(start, inputs[0])
    expect_no_data(workers, "data of other ToS counted")
    expect_quiet([stranger], lambda _: True, "a Join of other ToS answered")
    workers[1].contribute(start, inputs[1])
    expect_sum(workers, start, shape.fold(*inputs))


@case("1")
def control_needs_control_tos(bench: Bench) -> None:
    """A Join that travels with the ToS of data is data of a stranger: dropped."""
    shape = Shape()
    workers = bench.workers(2, shape)
    stranger = bench.stranger(shape)
    stranger.send_join(tos=wire.TOS_DATA)
    play(workers, first_round(workers[0]))
    expect_quiet([stranger], lambda _: True, "a Join with the ToS of data answered")


@case("2")
def segments_reversed(bench: Bench) -> None:
    """Segments may arrive in any order; here one worker sends them last to first."""
    workers = bench.workers(2, SEGMENTED)
    start = first_round(workers[0])
    inputs = vectors(2, SEGMENTED)
    workers[0].contribute(start, inputs[0], reversed(range(SEGMENTED.segments)))
    workers[1].contribute(start, inputs[1])
    expect_sum(workers, start, SEGMENTED.fold(*inputs))


@case("2")
def segments_interleaved(bench: Bench) -> None:
    """Segments of several workers may arrive mixed in any way, each worker in its own order."""
    workers = bench.workers(3, SEGMENTED)
    start = first_round(workers[0])
    inputs = vectors(3, SEGMENTED)
    turns = [(rank, index) for rank in range(3) for index in range(SEGMENTED.segments)]
    random.Random(7).shuffle(turns)
    for rank, index in turns:
        workers[rank].contribute(start, inputs[rank], [index])
    expect_sum(workers, start, SEGMENTED.fold(*inputs))


@case("2")
def short_last_segment(bench: Bench) -> None:
    """The last segment holds `last` elements, for every length from one to E."""
    for last in (1, 2, 7, 8):
        bench.new_job()
        workers = bench.workers(2, Shape(segments=3, per_segment=8, last=last))
        play(workers, first_round(workers[0]))


@case("2")
def full_mtu_segments(bench: Bench) -> None:
    """E = 366 float32 fills a 1500-byte MTU exactly, and several such segments make a vector."""
    workers = bench.workers(2, Shape(segments=4, per_segment=366, last=365))
    play(workers, first_round(workers[0]))


@case("2")
def wrong_length_dropped(bench: Bench) -> None:
    """Data of any length but its segment's is malformed: not counted, and the job goes on."""
    shape = Shape(segments=2, per_segment=8, last=3)
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    inputs = vectors(2, shape)
    workers[0].contribute(start, inputs[0])
    for index in range(shape.segments):
        right = shape.payload_size(index)
        for size in sorted({0, 1, 4, right - 4, right - 1, right + 1, right + 4, 1464} - {right}):
            workers[1].send(wire.data(start, index, bytes(size)), wire.TOS_DATA)
    for size in range(wire.SEG_SIZE):
        workers[1].send(wire.data(start, 0, b"")[:size], wire.TOS_DATA)
    expect_no_data(workers, "malformed data counted")
    workers[1].contribute(start, inputs[1])
    expect_sum(workers, start, shape.fold(*inputs))


@case("2")
def index_out_of_range_dropped(bench: Bench) -> None:
    """Data of an index the vector has not is dropped, and the job goes on."""
    shape = Shape(segments=3)
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    for index in (3, 4, 0xFFFF, 0x1_0000, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF):
        for worker in workers:
            worker.send(wire.data(start, index, bytes(shape.payload_size(0))), wire.TOS_DATA)
    expect_no_data(workers, "data out of range answered")
    play(workers, start)


@case("2")
def empty_vector_is_barrier(bench: Bench) -> None:
    """An empty vector is one segment of no elements; its allreduce of 8 bytes is a barrier."""
    workers = bench.workers(3, Shape(segments=1, per_segment=8, last=0))
    start = first_round(workers[0])
    for round_ in (start, start + 1, start + 2):
        empty = vectors(1, workers[0].shape)[0]
        for worker in workers[:-1]:
            worker.contribute(round_, empty)
        expect_no_data(workers, "the barrier opened before all had come")
        workers[-1].contribute(round_, empty)
        expect_sum(workers, round_, empty)


@case("2")
def super_datagram_taken(bench: Bench) -> None:
    """A segmentation-offload super-datagram is as many data packets, each with its own Seg."""
    shape = Shape(segments=20, per_segment=64, last=10)
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    inputs = vectors(2, shape)
    packets = [
        [wire.data(start, index, shape.payload(vector, index)) for index in range(shape.segments)]
        for vector in inputs
    ]
    workers[0].contribute_super(packets[0])
    *mixed, last = packets[1]
    mixed.insert(5, wire.data(start, 500, shape.payload(inputs[1], 0)))  # no such index
    random.Random(11).shuffle(mixed)
    workers[1].contribute_super([*mixed, last])
    expect_sum(workers, start, shape.fold(*inputs))


@case("2")
def super_datagram_both_ways(bench: Bench) -> None:
    """With UDP_GRO at the receiver aggregates may arrive coalesced; on the wire nothing changes."""
    shape = Shape(segments=60, per_segment=366, last=366)
    workers = bench.workers(2, shape, gro=True)
    start = first_round(workers[0])
    for round_ in (start, start + 1):
        inputs = vectors(2, shape, seed=round_)
        for worker, vector in zip(workers, inputs, strict=True):
            worker.contribute_super(
                [wire.data(round_, i, shape.payload(vector, i)) for i in range(shape.segments)]
            )
        expect_sum(workers, round_, shape.fold(*inputs))


@case("2")
def segments_of_two_rounds(bench: Bench) -> None:
    """Seg names round and index: segments of two rounds in flight do not mix."""
    shape = Shape(segments=2)
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    first, second = vectors(2, shape, seed=1), vectors(2, shape, seed=2)
    workers[0].contribute(start, first[0])
    workers[1].contribute(start, first[1], [0])
    expect_segment(workers, start, 0, shape.fold(*first))
    workers[0].contribute(start + 1, second[0], [0])
    workers[1].contribute(start + 1, second[1], [0])
    expect_segment(workers, start + 1, 0, shape.fold(*second))
    workers[1].contribute(start, first[1], [1])
    expect_segment(workers, start, 1, shape.fold(*first))
