"""The control plane of the P4 program against a recorded data plane and runtime (docs/p4.md).

`tests/recordings/p4_control.txt` is what a bmv2 was told, and answered, when it was recorded: the
control plane has to say the same today.
"""

from __future__ import annotations

from collections.abc import Set

import pytest

from iswitch.bmv2.cpu import CpuOp
from tests.support import ROOT
from tests.support.p4_recording import (
    COUNT,
    START,
    STEPS,
    Plane,
    Player,
    read,
    recorded,
    sections,
    written,
)

pytestmark = pytest.mark.unit

RECORDING = ROOT / "tests" / "recordings" / "p4_control.txt"
RECORDED = dict(sections(RECORDING.read_text(encoding="utf-8").splitlines()))

OF_A_JOIN = {"table_add members", "table_add receivers", "mc_node_create", "mc_node_associate"}
OF_A_LEAVE = {"table_delete members", "table_delete receivers", "mc_node_destroy"}
ALWAYS = {CpuOp.HOLD, CpuOp.GO, CpuOp.SEND}  # no data is handled meanwhile; the Ack
EXPECTED: dict[str, Set[object]] = {  # what each step has to have, orders and lines for the runtime
    "Join of the first worker": ALWAYS | {CpuOp.KEEP, "table_add jobs"} | OF_A_JOIN,
    "Join of the second worker": ALWAYS | {CpuOp.KEEP, "table_add rules"} | OF_A_JOIN,
    "Joins that are refused": ALWAYS,
    "Round 0": set(),
    "Help": ALWAYS | {CpuOp.LOOK, CpuOp.RESEND},
    "FBcast": ALWAYS | {CpuOp.LOOK, CpuOp.FORCE},
    "SetH: one": ALWAYS | {CpuOp.LOOK, CpuOp.FORCE, "table_delete rules", "table_add rules"},
    "SetH: all": ALWAYS | {"table_delete rules", "table_add rules"},
    "Join of a third worker": ALWAYS | {CpuOp.KEEP, "table_add rules"} | OF_A_JOIN,
    "The third worker's first": {CpuOp.HOLD, CpuOp.GO, CpuOp.KEEP, CpuOp.ACCEPT},
    "Halt": ALWAYS | {"table_delete jobs", "table_add jobs"},
    "Reset": ALWAYS | {CpuOp.KEEP, "table_delete jobs", "table_add jobs"},
    "Leave of the third worker": ALWAYS | OF_A_LEAVE,
    "Leave of the second worker": ALWAYS | OF_A_LEAVE | {"table_delete owners"},
    "Leave of the first worker": ALWAYS | OF_A_LEAVE | {"table_delete jobs", "table_delete rules"},
}


def test_the_control_plane_says_what_it_said_to_a_running_switch() -> None:
    """Every line and every frame, in their order, of every step."""
    player = Player([])
    plane = Plane(player)
    assert list(RECORDED) == [START, *(name for name, _ in STEPS), COUNT]
    for now, (name, said) in enumerate(RECORDED.items(), -1):
        player.lines = list(said)
        if name == START:
            plane.pipeline.start()
        elif name == COUNT:
            plane.pipeline.fates.count(plane.chassis.counters)
        while player.lines:
            plane.turn(float(now))
    counters = plane.chassis.counters
    assert counters["accumulated"] == 9
    assert counters["retransmitted"] == 2


@pytest.mark.parametrize("step", EXPECTED)
def test_each_action_has_its_operations(step: str) -> None:
    """In the recording, that is; so the test before says something."""
    (said,) = [lines for name, lines in RECORDED.items() if name.startswith(step)]
    told: set[object] = {CpuOp[line.split()[1]] for line in said if line.startswith("> ")}
    told |= {" ".join(line.split()[1:3]) for line in said if line.startswith("$ table")}
    told |= {line.split()[1] for line in said if line.startswith("$ mc")}
    assert told >= EXPECTED[step]
    assert bool(told) == bool(EXPECTED[step])


def test_something_else_than_recorded_is_noticed() -> None:
    said = RECORDED[START]
    with pytest.raises(AssertionError):
        Plane(Player(["$ table_set_default other", *said[1:]])).pipeline.start()


def test_frames_are_written_as_they_are() -> None:
    lines = [line for said in RECORDED.values() for line in said if line[:2] in ("> ", "< ")]
    for line in lines:
        if line != "< nothing":
            assert written(line[0], read(line)) == line


@pytest.mark.p4
def test_the_recording_is_of_the_program_as_it_is() -> None:
    """Made again, it has the same lines for the runtime, with the same answers."""
    again = [line for line in recorded() if line[0] in "@$="]
    before = RECORDING.read_text(encoding="utf-8").splitlines()
    assert again == [line for line in before if line[0] in "@$="]
