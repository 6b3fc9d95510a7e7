"""The arithmetic of the P4 program: its model against NumPy, its lines against the model."""

import os
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from p4.generate import FORMATS, generate, operations
from p4.lanes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    Constants,
    Format,
    add_float,
    add_int32,
    largest,
    turn_16,
    turn_32,
    value,
)
from p4.sizes import SIZES

pytestmark = pytest.mark.unit

WIDE = 4096  # lanes of a word at once: the model takes any number
NUMPY = {FLOAT32: np.float32, FLOAT16: np.float16, BFLOAT16: ml_dtypes.bfloat16, None: np.int32}
CODES = {8: np.uint8, 16: np.uint16, 32: np.uint32}
ALL = os.environ.get("ISWITCH_ADDER_ALL")  # `make adder`: every pair of float16 numbers


def word(codes: np.ndarray) -> int:
    """Elements as lanes, the first one highest."""
    return int.from_bytes(codes.astype(codes.dtype.newbyteorder(">")).tobytes(), "big")


def elements(number: int, like: np.ndarray) -> np.ndarray:
    packed = number.to_bytes(like.nbytes, "big")
    return np.frombuffer(packed, like.dtype.newbyteorder(">")).astype(like.dtype)


KNOWN: dict[tuple[int, int], Constants] = {}


def constants(lanes: int, lane: int) -> Constants:
    return KNOWN.setdefault((lanes, lane), Constants(lanes, lane))


def added(a: np.ndarray, b: np.ndarray, form: Format) -> np.ndarray:
    """The model's sums of two arrays of codes."""
    sums = []
    for start in range(0, len(a), WIDE):
        some, other = a[start : start + WIDE], b[start : start + WIDE]
        c = constants(len(some), form.lane)
        total = add_float(word(some), word(other), value, c, form)
        sums.append(elements(total, some))
    return np.concatenate(sums)


def is_nan(codes: np.ndarray, form: Format) -> np.ndarray:
    infinity = ((1 << form.exponent) - 1) << form.mantissa
    return codes & ((1 << (form.lane - 1)) - 1) > infinity


def expected(a: np.ndarray, b: np.ndarray, form: Format) -> np.ndarray:
    """NumPy's, but for NaN: of two it gives now one and now the other, of bfloat16 always the same.

    Here it is the first of them, quiet.
    """
    kind = NUMPY[form]
    with np.errstate(all="ignore"):
        sums: np.ndarray = (a.view(kind) + b.view(kind)).view(a.dtype)
    a_is, b_is = is_nan(a, form), is_nan(b, form)
    quiet = np.where(a_is, a, b) | a.dtype.type(1 << (form.mantissa - 1))
    found: np.ndarray = np.where(a_is | b_is, quiet, sums)
    return found


def check(a: np.ndarray, b: np.ndarray, form: Format) -> None:
    found, wanted = added(a, b, form), expected(a, b, form)
    wrong = np.flatnonzero(found != wanted)
    shown = [tuple(hex(v[i]) for v in (a, b, found, wanted)) for i in wrong[:4]]
    assert not len(wrong), f"{len(wrong)} of {len(a)}: a, b, found, wanted = {shown}"


def special(form: Format) -> np.ndarray:
    """64 codes: both zeros, subnormals, ones around powers of two, the largest, infinities, NaN."""
    one = (1 << (form.exponent - 1)) - 1
    least, most = 1 << form.mantissa, ((1 << form.exponent) - 1) << form.mantissa
    sizes = [0, 1, 2, 3, least - 2, least - 1, least, least + 1, 2 * least - 1, 2 * least]
    sizes += [one << form.mantissa, (one << form.mantissa) - 1, (one << form.mantissa) + 1]
    for apart in (1, 2, form.mantissa, form.mantissa + 1, form.mantissa + 2, form.mantissa + 3):
        at = (one - apart) % (1 << form.exponent) << form.mantissa
        sizes += [at, at + 1]
    sizes += [most - 1, most - 2, most - least, most, most + 1, most + least // 2, most + least - 1]
    more = np.random.default_rng(0).integers(0, most, 99)  # where some of these are the same
    sizes = list(dict.fromkeys([*sizes, *more.tolist()]))[:32]
    codes = [size | sign << (form.lane - 1) for size in sizes for sign in (0, 1)]
    assert len(set(codes)) == 64
    return np.array(codes, CODES[form.lane])


def pairs(form: Format, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random codes; half of the pairs have exponents close to one another."""
    kind: Any = CODES[form.lane]
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 1 << form.lane, (2, count), dtype=kind)
    fields = kind(((1 << form.exponent) - 1) << form.mantissa)
    near = rng.integers(-form.mantissa - 4, form.mantissa + 5, count) << form.mantissa
    close = (a & fields) + near.astype(kind)
    mixed: np.ndarray = np.where(rng.random(count) < 0.5, b, (b & ~fields) | (close & fields))
    return a, mixed


@pytest.mark.parametrize("form", [FLOAT32, FLOAT16, BFLOAT16], ids=lambda form: form.name)
def test_special_values_are_added_as_numpy_does(form: Format) -> None:
    codes = special(form)
    check(np.repeat(codes, len(codes)), np.tile(codes, len(codes)), form)


@pytest.mark.slow
def test_ten_million_random_pairs_of_float32() -> None:
    check(*pairs(FLOAT32, 10_000_000, 1), FLOAT32)


@pytest.mark.parametrize("form", [FLOAT16, BFLOAT16], ids=lambda form: form.name)
def test_a_million_random_pairs(form: Format) -> None:
    check(*pairs(form, 1_000_000, 2), form)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name if form else "INT32")
@pytest.mark.parametrize("low", [False, True], ids=["max", "min"])
def test_the_larger_one_is_found_as_numpy_does(form: Format | None, low: bool) -> None:
    """But for zeros of both signs, of which NumPy takes either: +0 is larger here."""
    codes = special(form or FLOAT32)
    a, b = np.repeat(codes, len(codes)), np.tile(codes, len(codes))
    lane = form.lane if form else 32
    found = elements(largest(word(a), word(b), value, constants(len(a), lane), form, low), a)
    p, q = a.view(NUMPY[form]), b.view(NUMPY[form])
    if form is None:
        wanted = np.minimum(p, q) if low else np.maximum(p, q)
        assert np.array_equal(found, wanted.view(a.dtype))
        return
    a_is, b_is = is_nan(a, form), is_nan(b, form)
    wanted = np.where(a_is, a, b)
    plain = ~a_is & ~b_is
    zeros = plain & (p == 0) & (q == 0)
    chosen = (np.minimum(p, q) if low else np.maximum(p, q)).view(a.dtype)
    wanted = np.where(plain, chosen, wanted)
    wanted = np.where(zeros, (a | b) if low else (a & b), wanted)
    assert np.array_equal(found, wanted)


def test_every_float16_with_special_ones() -> None:
    """With `make adder` with every float16: four thousand million pairs."""
    every = np.arange(1 << 16, dtype=np.uint16)
    for b in every if ALL else special(FLOAT16)[::4]:
        check(every, np.full_like(every, b), FLOAT16)


@pytest.mark.parametrize(
    "form", [Format("E4M3", 4, 3), Format("E5M2", 5, 2)], ids=lambda form: form.name
)
def test_every_pair_of_small_formats(form: Format) -> None:
    """All 65,536 pairs, against sums that are exact in float64."""
    every = np.arange(256, dtype=np.uint8)
    a, b = np.repeat(every, 256), np.tile(every, 256)
    infinity = ((1 << form.exponent) - 1) << form.mantissa
    bias = (1 << (form.exponent - 1)) - 1

    def exact(codes: np.ndarray) -> np.ndarray:
        size = codes.astype(np.int64) & 0x7F
        field, fraction = size >> form.mantissa, size & (1 << form.mantissa) - 1
        scaled = np.where(field > 0, fraction + (1 << form.mantissa), fraction)
        magnitude = np.ldexp(scaled.astype(float), np.maximum(field, 1) - bias - form.mantissa)
        signed: np.ndarray = np.where(codes >> 7, -magnitude, magnitude)
        return signed

    finite = ((a & 0x7F) < infinity) & ((b & 0x7F) < infinity)
    sums = (exact(a) + exact(b))[finite]
    magnitudes = exact(np.arange(infinity + 1, dtype=np.uint8))
    below = np.searchsorted(magnitudes, np.abs(sums), side="right") - 1
    above = np.minimum(below + 1, infinity)
    low, high = np.abs(sums) - magnitudes[below], magnitudes[above] - np.abs(sums)
    codes = np.where((high < low) | ((high == low) & (below % 2 == 1)), above, below)
    negative = np.signbit(sums)
    found = added(a, b, form)
    assert np.array_equal(found[finite], codes.astype(np.uint8) | (negative << 7).astype(np.uint8))
    nan_a, nan_b = (a & 0x7F) > infinity, (b & 0x7F) > infinity
    quiet = np.uint8(1 << (form.mantissa - 1))
    assert np.array_equal(found[nan_a], a[nan_a] | quiet)
    assert np.array_equal(found[nan_b & ~nan_a], b[nan_b & ~nan_a] | quiet)
    infinite = ~finite & ~nan_a & ~nan_b
    opposite = infinite & ((a & 0x7F) == (b & 0x7F)) & (a != b)
    assert set(found[opposite]) == {0x80 | infinity | quiet}
    larger = np.where((a & 0x7F) >= (b & 0x7F), a, b)
    assert np.array_equal(found[infinite & ~opposite], larger[infinite & ~opposite])


def test_int32_wraps_and_bytes_are_turned() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 1 << 32, (2, WIDE), dtype=np.uint32)
    a[:4], b[:4] = (0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0), (1, 0x80000000, 1, 0)
    c = constants(WIDE, 32)
    assert np.array_equal(elements(add_int32(word(a), word(b), value, c), a), a + b)
    halves = np.concatenate([a, b]).astype(np.uint16)
    assert np.array_equal(elements(turn_16(word(halves), value, c), halves), halves.byteswap())
    assert np.array_equal(elements(turn_32(word(a), value, c), a), a.byteswap())


# The P4 itself


class Bits(int):
    """A number of bit<2048>: every operation wraps, as P4 has it."""

    MASK = (1 << 2048) - 1

    def __and__(self, other: int) -> "Bits":
        return Bits(int(self) & int(other))

    def __or__(self, other: int) -> "Bits":
        return Bits(int(self) | int(other))

    def __xor__(self, other: int) -> "Bits":
        return Bits(int(self) ^ int(other))

    def __add__(self, other: int) -> "Bits":
        return Bits(int(self) + int(other) & self.MASK)

    def __sub__(self, other: int) -> "Bits":
        return Bits(int(self) - int(other) & self.MASK)

    def __mul__(self, other: int) -> "Bits":
        return Bits(int(self) * int(other) & self.MASK)

    def __lshift__(self, other: int) -> "Bits":
        return Bits(int(self) << int(other) & self.MASK)

    def __rshift__(self, other: int) -> "Bits":
        return Bits(int(self) >> int(other))

    def __invert__(self) -> "Bits":
        return Bits(~int(self) & self.MASK)


class Program:
    """Runs the actions and macros of a text of P4: assignments of words."""

    def __init__(self, text: str) -> None:
        text = text.replace("meta.adder.", "")  # fields of a struct of words
        found = re.findall(r"^const word_t (\w+) = 2048w(0x[0-9a-f]+);$", text, re.MULTILINE)
        self.constants = {name: Bits(int(number, 16)) for name, number in found}
        self.actions = dict(re.findall(r"^action (\w+)\((.*?^)}", text, re.MULTILINE | re.DOTALL))
        self.macros = dict(re.findall(r"^#define (\w+)\(word\) (.*)$", text, re.MULTILINE))

    def run(self, action: str, a: int, b: int) -> int:
        scope = {"a": Bits(a), "b": Bits(b)}
        for line in self.actions[action].splitlines()[1:]:
            parts = re.fullmatch(r" +(\w+) = (.*);  // \w+", line)
            assert parts, line
            name, expression = parts.groups()
            scope[name] = self.value(expression, scope)
        return scope["a"]

    def turn(self, macro: str, word: int) -> int:
        return self.value(self.macros[macro], {"word": Bits(word)})

    def value(self, expression: str, scope: dict[str, Bits]) -> Bits:
        return Bits(eval(expression, {"__builtins__": {}}, self.constants | scope))


PROGRAM = Program("\n".join(generate().values()))
LANES = SIZES["LANES"]


def test_the_lines_of_the_program_are_those_of_the_model() -> None:
    """Executed as P4 would, on words of its width, they give the same."""
    codes = special(FLOAT32)
    a, b = pairs(FLOAT32, 400 * LANES, 4)
    a = np.concatenate([np.repeat(codes, LANES), a])
    b = np.concatenate([np.tile(codes, LANES), b])
    found = [
        elements(PROGRAM.run("add_float32", a=word(x), b=word(y)), x)
        for x, y in zip(a.reshape(-1, LANES), b.reshape(-1, LANES), strict=True)
    ]
    assert np.array_equal(np.concatenate(found), expected(a, b, FLOAT32))


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name if form else "INT32")
def test_every_operation_of_the_program_is_that_of_the_model(form: Format | None) -> None:
    lane = form.lane if form else 32
    codes = special(form or FLOAT32)
    a, b = (np.tile(some, 2048 // lane // 64) for some in (codes, codes[::-1]))
    c = constants(2048 // lane, lane)
    for name, function in zip(("add", "max", "min"), operations(form), strict=True):
        action = f"{name}_{form.name.lower() if form else 'int32'}"
        found = PROGRAM.run(action, a=word(a), b=word(b))
        assert found == function(word(a), word(b), value, c), action


def test_the_program_turns_bytes_round() -> None:
    x = np.arange(LANES, dtype=np.uint32) * 0x01030507
    assert np.array_equal(elements(PROGRAM.turn("TURN_32", word(x)), x), x.byteswap())
    halves = x.view(np.uint16)
    assert np.array_equal(
        elements(PROGRAM.turn("TURN_16", word(halves)), halves), halves.byteswap()
    )


def test_a_result_that_is_used_once_is_no_field() -> None:
    """Each assignment costs bmv2 the 256 bytes of a field, in every word of every packet."""
    assert len(PROGRAM.actions["add_float32"].splitlines()) <= 1 + 55
    for name, action in PROGRAM.actions.items():
        lines = [line.split(";")[0].strip() for line in action.splitlines()[1:]]
        for at, line in enumerate(lines[:-1]):
            field, _ = line.split(" = ")
            uses = 0
            for later in lines[at + 1 :]:
                target, expression = later.split(" = ")
                uses += len(re.findall(rf"\b{field}\b", expression))
                if target == field:
                    break
            assert uses > 1, (name, line)
    struct = generate()["arithmetic.p4"]
    assert (
        len(re.findall(r"^    word_t \w+;$", struct, re.MULTILINE)) <= 22
    )  # every result had one: 49


def test_a_word_is_as_wide_as_its_lanes() -> None:
    assert LANES * 32 == 2048
    assert SIZES["WORD_BYTES"] == 4 * LANES
    assert SIZES["MOST_BYTES"] == 1500 - 20 - 8 - 8  # IPv4, UDP and Seg
    assert SIZES["PARENT"] == SIZES["JOB_MEMBERS"]
    assert SIZES["MEMBERS"] == SIZES["JOBS"] * SIZES["JOB_MEMBERS"]
