"""The text of the P4 program: what holds in it whatever runs it."""

from __future__ import annotations

import re

import pytest

from p4.tools import sources

pytestmark = pytest.mark.unit

SOURCES = sources()
TEXT = "\n".join(SOURCES.values())
CONTROLS = dict(re.findall(r"^control (\w+)\((.*?^)}$", TEXT, re.MULTILINE | re.DOTALL))
REGISTERS = re.findall(r"register<.*?>\(\w+\) (\w+)(?:##I)?;", TEXT)
TOUCHED = re.compile(rf"\b(?:{'|'.join(REGISTERS)})(?:##I)?\.(?:read|write)\(")


def used_by(control: str) -> set[str]:
    """The controls that one applies, by the names of their instances."""
    return {kind for kind in CONTROLS if re.search(rf"^ +{kind}\(\) \w+;", CONTROLS[control], re.M)}


def touches(control: str) -> bool:
    """Whether a control, or one that it applies, reads or writes a register."""
    return bool(TOUCHED.search(CONTROLS[control])) or any(map(touches, used_by(control)))


def outside_atomic(text: str) -> str:
    """What is in no block that is annotated @atomic."""
    found, depth, inside = "", 0, 0
    for part in re.split(r"(@atomic \{|[{}])", text):
        if part == "@atomic {" and not inside:
            inside = depth = 1
        elif inside:
            depth += part.endswith("{") - (part == "}")
            inside = depth > 0
        else:
            found += part
    return found


def test_registers_are_found() -> None:
    assert {"segment_state", "job_high", "next_order", "is_held", "sums"} <= set(REGISTERS)
    touching = {control for control in CONTROLS if touches(control)}
    assert touching == {"SwitchIngress", "Registers", "BitmapChecker", "Counter", "Aggregation"}


def test_each_read_modify_write_is_atomic() -> None:
    """Also those whose read and write are in two controls, such as the segment's state."""
    rest = outside_atomic(CONTROLS["SwitchIngress"])
    assert "arbiter.apply" in rest
    assert not TOUCHED.search(rest)
    instances = dict(re.findall(r"^    (\w+)\(\) (\w+);", CONTROLS["SwitchIngress"], re.M))
    for control in filter(touches, instances):
        assert f" {instances[control]}.apply(" in CONTROLS["SwitchIngress"]
        assert f" {instances[control]}.apply(" not in rest, control


def test_an_operation_outside_is_noticed() -> None:
    assert outside_atomic("a { b @atomic { c { d } e } f } g").split() == list("a{bf}g")


@pytest.mark.parametrize("name", ["checksums.p4"])
def test_no_checksum_is_of_a_header_that_may_be_invalid(name: str) -> None:
    """Elements are in headers of which each packet has others: each is looked for before."""
    optional = r"hdr\.(?:words\b|half|quarter|eighth|four|two|one|last)"
    lists = re.findall(r"\{ (hdr\.[^}]*|meta\.[^}]*) \}", SOURCES[name].replace("\\\n", ""))
    assert len(lists) == 3
    assert not any(re.search(optional, fields) for fields in lists)
    (guarded,) = [fields for fields in lists if "hdr.HEADER" in fields]
    assert guarded.split() == ["meta.elements_sum,", "hdr.HEADER.lanes"]
    assert "if (hdr.HEADER.isValid()) {" in SOURCES[name]
