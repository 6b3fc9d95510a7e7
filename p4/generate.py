"""Writes the arithmetic of the P4 program: the functions of `lanes` as actions on whole words.

    python -m p4.generate arithmetic.p4

prints a file of it; without a name, both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from .lanes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    Format,
    Word,
    add_float,
    add_int32,
    largest,
    repeat,
    swap_bytes,
    swap_halves,
)
from .sizes import SIZES

INDENT = "    "
HEAD = "// Written by p4/generate.py; p4/lanes.py explains every line.\n"

# As the protocol numbers them (docs/protocol.md, section 3).
FORMATS = (FLOAT32, FLOAT16, BFLOAT16, None)
OPERATIONS = ("add", "max", "min")


def kind(dtype: int, op: int) -> int:
    """What tells the program's operations apart, from the protocol's numbers."""
    return op << 2 | dtype


class Term:
    """An expression of P4, built by the operators of Python."""

    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def bare(self) -> str:
        """Without the outermost parentheses, which all but names have."""
        return self.text[1:-1] if self.text.startswith("(") else self.text

    def _with(self, operator: str, other: Term | int) -> Term:
        return Term(f"({self.text} {operator} {other.text if isinstance(other, Term) else other})")

    def __and__(self, other: Term) -> Term:
        return self._with("&", other)

    def __or__(self, other: Term) -> Term:
        return self._with("|", other)

    def __xor__(self, other: Term) -> Term:
        return self._with("^", other)

    def __add__(self, other: Term) -> Term:
        return self._with("+", other)

    def __sub__(self, other: Term) -> Term:
        return self._with("-", other)

    def __lshift__(self, bits: int) -> Term:
        return self._with("<<", bits)

    def __rshift__(self, bits: int) -> Term:
        return self._with(">>", bits)

    def __invert__(self) -> Term:
        return Term(f"(~{self.text})")


class Program:
    """Constants and actions, in the order in which they are asked for.

    Args:
        lanes: of 32 bits in a word.
    """

    def __init__(self, lanes: int) -> None:
        self.width = 32 * lanes
        self.constants: dict[str, str] = {}
        self.fields = dict.fromkeys(["a", "b"])  # of the words that operations work on

    def constant(self, prefix: str, lane: int) -> Callable[[str, int], Term]:
        """The `c` of a function in `lanes` whose lanes have so many bits."""

        def named(name: str, pattern: int) -> Term:
            name = f"{prefix}_{name}"
            word = repeat(pattern, lane, self.width // lane)
            self.constants[name] = f"const word_t {name} = {self.width}w{word:#x};"
            return Term(name)

        return named

    def small(self, name: str, function: Callable[..., Word]) -> str:
        """A function of one word and a few lines, as an action with parameters."""
        lines: list[str] = []

        def let(result: str, term: Term) -> Term:
            lines.append(f"word_t {result} = {term.bare};")
            return Term(result)

        last = function(Term("word"), let, self.constant("INT32", 32))
        return block(
            f"action {name}(in word_t word, out word_t outcome)",
            [*lines, f"outcome = {last.bare};"],
        )

    def operation(self, name: str, function: Callable[..., Word], form: Format | None) -> str:
        """A function of two words, as an action to be included where `meta` is known.

        Its words are fields, not variables: p4c puts the expression of a variable in the place of
        each use, so that of the last lines of an adder there would be no end.
        """
        lines: list[str] = []

        def let(result: str, term: Term) -> Term:
            self.fields[result] = None
            lines.append(f"meta.adder.{result} = {term.bare};")
            return Term(f"meta.adder.{result}")

        constant = self.constant(form.name, form.lane) if form else self.constant("INT32", 32)
        let("outcome", function(Term("meta.adder.a"), Term("meta.adder.b"), let, constant))
        return block(f"action {name}()", lines)


def block(head: str, lines: list[str]) -> str:
    """Lines in braces."""
    return f"{head} {{\n" + "".join(f"{INDENT}{line}\n" for line in lines) + "}\n"


def operations(form: Format | None) -> list[Callable[..., Word]]:
    """Sum, maximum and minimum, in the protocol's order, of elements of a format; None: int32."""
    add = partial(add_float, f=form) if form else add_int32
    return [add, partial(largest, f=form, low=False), partial(largest, f=form, low=True)]


def generate() -> dict[str, str]:
    """The files that the program includes, by name."""
    program = Program(SIZES["LANES"])
    small = [program.small("swap_bytes", swap_bytes), program.small("swap_halves", swap_halves)]
    actions = {}
    kinds = []
    for dtype, form in enumerate(FORMATS):
        for op, function in enumerate(operations(form)):
            name = f"{OPERATIONS[op]}_{form.name.lower() if form else 'int32'}"
            actions[name] = program.operation(name, function, form)
            kinds.append(f"{kind(dtype, op)}: {name}();")
    struct = block("struct adder_t", [f"word_t {field};" for field in program.fields])
    constants = "\n".join(program.constants.values()) + "\n"
    lists = f"#define OPERATIONS {' '.join(f'{name};' for name in actions)}\n"
    lists += f"#define KINDS {' '.join(kinds)}\n"
    return {
        "arithmetic.p4": "\n".join([HEAD, constants, struct, *small]),
        "operations.p4": "\n".join([HEAD, *actions.values(), lists]),
    }


if __name__ == "__main__":
    files = generate()
    sys.stdout.write("\n".join(files[name] for name in sys.argv[1:] or files))
