"""Arithmetic on all lanes of a wide word at once: what the P4 program adds elements with.

A word holds one element per lane, the first one highest, as a packet does. P4 has no loops, but
words of up to 2048 bits; so an operation on 64 elements is a handful of operations on one word. No
carry, borrow or shifted bit may cross from lane to lane: every line here applies masks to prevent
it. (Lamport, Multiple byte processing with full-word instructions, 1975.)

The functions are written once and run twice. Given integers, they compute: that is the model that
the tests hold against NumPy. Given `generate.Term`s, they write the P4: the lines of the program
are these lines. `let` names an intermediate result, and nothing else; `c` has constants by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Word = Any  # an integer, or a Term that stands for one
Let = Callable[[str, Word], Word]
Named = Callable[[str, int], Word]  # a constant: what it is called, its bits in every lane


def value(_: str, word: Word) -> Word:
    """Return the word itself: the `let` for computing with integers."""
    return word


@dataclass(frozen=True)
class Format:
    """A binary format of IEEE-754: a sign, `exponent` bits, `mantissa` bits, in a lane.

    It has four exponent bits at least: a lane has to hold the mantissa with its hidden bit, three
    bits behind it and a carry.
    """

    name: str
    exponent: int
    mantissa: int

    @cached_property
    def lane(self) -> int:
        """Return the number of bits of an element."""
        return 1 + self.exponent + self.mantissa

    @property
    def stages(self) -> range:
        """Return the powers of two that make up any shift within a lane, largest first."""
        return range(self.lane.bit_length() - 2, -1, -1)


FLOAT32 = Format("FLOAT32", 8, 23)
FLOAT16 = Format("FLOAT16", 5, 10)
BFLOAT16 = Format("BFLOAT16", 8, 7)


def repeat(pattern: int, lane: int, lanes: int) -> int:
    """Repeat a pattern of bits in every lane."""
    return pattern * (((1 << lane * lanes) - 1) // ((1 << lane) - 1))


class Constants:
    """Named words with the same bits in every lane.

    Args:
        lanes: number of lanes of a word.
        lane: bits of a lane.
    """

    def __init__(self, lanes: int, lane: int) -> None:
        self.lane = lane
        self._ones = repeat(1, lane, lanes)
        self._known: dict[int, int] = {}

    def __call__(self, name: str, pattern: int) -> Word:
        """Return the word, which the program calls `name`."""
        assert 0 <= pattern < 1 << self.lane, name
        if pattern not in self._known:
            self._known[pattern] = pattern * self._ones
        return self._known[pattern]


def turn_16(word: Word, let: Let, c: Named) -> Word:  # noqa: ARG001
    """Reverse the bytes of every 16-bit lane: elements are little-endian on the wire."""
    odd = c("ODD_BYTES", 0x00FF00FF)
    return ((word & odd) << 8) | ((word >> 8) & odd)


def turn_32(word: Word, let: Let, c: Named) -> Word:  # noqa: ARG001
    """Reverse the bytes of every 32-bit lane."""
    lowest, second = c("LOWEST_BYTE", 0x000000FF), c("SECOND_BYTE", 0x0000FF00)
    outer = ((word & lowest) << 24) | ((word >> 24) & lowest)
    return outer | ((word & second) << 8) | ((word >> 8) & second)


def add_int32(a: Word, b: Word, let: Let, c: Named) -> Word:
    """Add two's complement integers, which wrap."""
    sign, below = c("SIGN", 1 << 31), c("BELOW_SIGN", (1 << 31) - 1)
    low = let("low", (a & below) + (b & below))
    return low ^ ((a ^ b) & sign)


def largest(a: Word, b: Word, let: Let, c: Named, f: Format | None, low: bool) -> Word:
    """Return the larger of two elements, or the smaller one if `low`; NaN if either is NaN.

    Without a format, elements are 32-bit integers. Of two NaN the first operand is returned; -0 is
    less than +0 (maximum and minimum of IEEE-754-2019).
    """
    L = f.lane if f else 32
    sign, below = c("SIGN", 1 << (L - 1)), c("BELOW_SIGN", (1 << (L - 1)) - 1)
    one = c("ONE", 1)

    def all_of(flag: Word) -> Word:
        return flag * ((1 << L) - 1)

    def ordered(word: Word) -> Word:
        """Make floats comparable as integers: of two negative ones the larger magnitude is less."""
        return word ^ (all_of(word >> (L - 1) & one) & below) if f else word

    p, q = let("order_a", ordered(a)), let("order_b", ordered(b))
    at_least = let("at_least", ((p & below) | sign) - (q & below))  # without signs
    differ = let("signs", p ^ q)
    first = let("first", ((differ & q) | (at_least & ~differ)) >> (L - 1) & one)
    if low:
        first = let("first", first ^ one)
    if f:
        room = c("BEYOND_INFINITY", (1 << f.mantissa) - 1)  # carries into the sign from a NaN
        a_is_nan = let("a_is_nan", ((a & below) + room) >> (L - 1) & one)
        b_is_nan = let("b_is_nan", ((b & below) + room) >> (L - 1) & one)
        first = let("first", a_is_nan | (first & (b_is_nan ^ one)))
    return b ^ ((a ^ b) & all_of(first))


def add_float(a: Word, b: Word, let: Let, c: Named, f: Format) -> Word:
    """Add floating-point numbers by IEEE-754, rounded to nearest, ties to even.

    Infinities, signed zeros and subnormals are as the standard says. It leaves open which NaN
    results: here it is the first operand if that is NaN, else the second, made quiet. Opposite
    infinities give the NaN with the sign set, as on x86.
    """
    return Adder(let, c, f).add(a, b)


class Adder:
    """The steps of an addition of floating-point numbers.

    Flags are 0 or 1 in each lane, and `all_of` turns them into lanes of ones. `x` is the number
    with the larger magnitude. Behind its mantissa are three more bits: guard, round, and sticky,
    which stands for all that was shifted out.

    Args:
        let: names an intermediate result.
        c: gives a constant by name.
        f: the format of the numbers.
    """

    def __init__(self, let: Let, c: Named, f: Format) -> None:
        L, M, E = f.lane, f.mantissa, f.exponent
        self.let, self.c, self.f = let, c, f
        self.sign, self.below = c("SIGN", 1 << (L - 1)), c("BELOW_SIGN", (1 << (L - 1)) - 1)
        self.one, self.infinity = c("ONE", 1), c("INFINITY", ((1 << E) - 1) << M)
        self.fraction = c("FRACTION", (1 << M) - 1)
        self.largest = c("LARGEST_EXPONENT", (1 << E) - 1)

    def all_of(self, flag: Word) -> Word:
        """Return lanes of ones where a flag is set."""
        return flag * ((1 << self.f.lane) - 1)

    def at_least(self, p: Word, q: Word) -> Word:
        """Return the flag p >= q; both are without sign."""
        return ((p | self.sign) - q) >> (self.f.lane - 1) & self.one

    def some(self, p: Word) -> Word:
        """Return the flag p != 0; p is without sign."""
        return (p + self.below) >> (self.f.lane - 1) & self.one

    def add(self, a: Word, b: Word) -> Word:
        """Add: order by magnitude, take apart, align, add, normalise, round, and pack."""
        let, all_of, L, M = self.let, self.all_of, self.f.lane, self.f.mantissa
        size_a, size_b = let("size_a", a & self.below), let("size_b", b & self.below)
        a_first = let("a_first", self.at_least(size_a, size_b))
        differ = let("differ", (a ^ b) & all_of(a_first))
        x, y = let("x", b ^ differ), let("y", a ^ differ)
        subtract = let("subtract", (x ^ y) >> (L - 1) & self.one)
        size_x, size_y = let("size_x", x & self.below), let("size_y", y & self.below)

        # A subnormal has exponent 1 and no hidden bit.
        field_x = let("field_x", size_x >> M & self.largest)
        field_y = let("field_y", size_y >> M & self.largest)
        hidden_x = let("hidden_x", self.some(field_x))
        hidden_y = let("hidden_y", self.some(field_y))
        exponent = let("exponent", field_x | (hidden_x ^ self.one))
        total = let("total", ((size_x & self.fraction) | hidden_x << M) << 3)
        addend = let("addend", ((size_y & self.fraction) | hidden_y << M) << 3)

        distance = let("distance", exponent - (field_y | (hidden_y ^ self.one)))
        addend = self.aligned(addend, distance)
        minus = let("minus", all_of(subtract))
        total = let("total", (total + (addend & ~minus)) - (addend & minus))
        total, exponent, nothing = self.normalised(total, exponent)
        packed = self.rounded(total, exponent)

        # The sign is the larger one's; an exact difference of zero is positive.
        packed = let("packed", packed & ~all_of(nothing))
        positive = let("positive", (nothing & subtract) << (L - 1))
        result = let("result", packed | (x & self.sign & ~positive))
        return self.or_special(result, (a, b), (size_a, size_x, size_y), x, subtract)

    def aligned(self, addend: Word, distance: Word) -> Word:
        """Shift the smaller mantissa right by a distance; what falls out makes it sticky."""
        let, c, L, E = self.let, self.c, self.f.lane, self.f.exponent
        far = let("far", self.all_of(self.some(distance & c("FAR", ((1 << E) - 1) & -L))))
        lost = let("lost", addend & far)
        addend = let("addend", addend & ~far)
        for k in self.f.stages:
            low = c(f"LOW_{1 << k}", (1 << (1 << k)) - 1)
            move = let("move", self.all_of(distance >> k & self.one))
            lost = let("lost", lost | (addend & low & move))
            moved = let("moved", (addend & ~low) >> (1 << k))
            addend = let("addend", addend ^ ((addend ^ moved) & move))
        return let("addend", addend | self.some(lost))

    def normalised(self, total: Word, exponent: Word) -> tuple[Word, Word, Word]:
        """Shift right by one bit, or left as far as the exponent allows; the flag means zero."""
        let, c, one, M = self.let, self.c, self.one, self.f.mantissa
        carry = let("carry", total >> (M + 4) & one)
        half = let("half", (total & ~one) >> 1 | (total & one))
        total = let("total", total ^ ((total ^ half) & self.all_of(carry)))
        exponent = let("exponent", exponent + carry)
        nothing = let("nothing", self.some(total) ^ one)
        for k in self.f.stages:
            s = 1 << k
            top = c(f"TOP_{s}", ((1 << s) - 1) << (M + 4 - s))
            may = self.at_least(exponent, c(f"MORE_THAN_{s}", s + 1))
            shift = let("shift", may & (self.some(total & top) ^ one))
            move = let("move", self.all_of(shift))
            total = let("total", (total & ~move) | (total & move) << s)
            exponent = let("exponent", exponent - (shift << k))
        return total, exponent, nothing

    def rounded(self, total: Word, exponent: Word) -> Word:
        """Round to nearest, ties to even; a carry out of the mantissa goes to the exponent."""
        let, one, infinity, M = self.let, self.one, self.infinity, self.f.mantissa
        up = let("up", total >> 2 & (total >> 1 | total | total >> 3) & one)
        rounded = let("rounded", ((total & ~self.c("LOW_3", 7)) >> 3) + up)
        packed = let("packed", ((exponent - one) << M) + rounded)
        beyond = self.all_of(self.at_least(packed, infinity))
        return let("packed", packed ^ ((packed ^ infinity) & beyond))

    def or_special(
        self,
        result: Word,
        operands: tuple[Word, Word],
        sizes: tuple[Word, Word, Word],
        x: Word,
        subtract: Word,
    ) -> Word:
        """Put infinities and NaN in place of the result where an operand is one."""
        let, c, all_of, M, E = self.let, self.c, self.all_of, self.f.mantissa, self.f.exponent
        a, b = operands
        size_a, size_x, size_y = sizes
        quiet, default = c("QUIET", 1 << (M - 1)), c("DEFAULT_NAN", ((1 << (E + 2)) - 1) << (M - 1))
        not_a_number = c("LEAST_NAN", (((1 << E) - 1) << M) + 1)
        a_is_nan = let("a_is_nan", all_of(self.at_least(size_a, not_a_number)))
        x_is_nan = let("x_is_nan", all_of(self.at_least(size_x, not_a_number)))
        special = let("special", all_of(self.at_least(size_x, self.infinity)))
        invalid = let("invalid", all_of(self.at_least(size_y, self.infinity) & subtract))
        nan = let("nan", (b ^ ((a ^ b) & a_is_nan)) | quiet)
        infinite = let("infinite", x ^ ((x ^ default) & invalid))
        extreme = let("extreme", infinite ^ ((infinite ^ nan) & x_is_nan))
        return result ^ ((result ^ extreme) & special)
