"""Writes the arithmetic of the P4 program: the functions of `lanes` as actions on whole words.

    python -m p4.generate arithmetic.p4

prints a file of it; without a name, both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from .lanes import FLOAT32, Word, add_float, add_int32, repeat, swap
from .sizes import SIZES

INDENT = "    "
HEAD = "// Written by p4/generate.py; p4/lanes.py explains every line.\n"


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

    def constant(self, prefix: str, lane: int) -> Callable[[str, int], Term]:
        """The `c` of a function in `lanes` whose lanes have so many bits."""

        def named(name: str, pattern: int) -> Term:
            name = f"{prefix}_{name}"
            word = repeat(pattern, lane, self.width // lane)
            self.constants[name] = f"const word_t {name} = {self.width}w{word:#x};"
            return Term(name)

        return named

    def small(self, name: str, operands: list[str], function: Callable[..., Word]) -> str:
        """A function of a few lines, as an action with parameters."""
        lines: list[str] = []

        def let(result: str, term: Term) -> Term:
            lines.append(f"word_t {result} = {term.bare};")
            return Term(result)

        last = function(*map(Term, operands), let, self.constant("INT32", 32))
        parameters = ", ".join(f"in word_t {operand}" for operand in operands)
        return block(
            f"action {name}({parameters}, out word_t outcome)",
            [*lines, f"outcome = {last.bare};"],
        )

    def adder(self) -> tuple[str, str]:
        """The struct of the adder's words, and its action, to be included where `meta` is known.

        They are fields, not variables: p4c puts the expression of a variable in the place of each
        use, so that of the last lines there would be no end.
        """
        lines: list[str] = []
        fields = dict.fromkeys(["a", "b"])

        def let(result: str, term: Term) -> Term:
            fields[result] = None
            lines.append(f"meta.adder.{result} = {term.bare};")
            return Term(f"meta.adder.{result}")

        operands = Term("meta.adder.a"), Term("meta.adder.b")
        form = FLOAT32
        let("outcome", add_float(*operands, form, let, self.constant(form.name, form.lane)))
        struct = block("struct adder_t", [f"word_t {field};" for field in fields])
        return struct, block("action add_float32()", lines)


def block(head: str, lines: list[str]) -> str:
    """Lines in braces."""
    return f"{head} {{\n" + "".join(f"{INDENT}{line}\n" for line in lines) + "}\n"


def generate() -> dict[str, str]:
    """The files that the program includes, by name."""
    program = Program(SIZES["LANES"])
    actions = [
        program.small("swap", ["word"], swap),
        program.small("add_int32", ["a", "b"], add_int32),
    ]
    struct, adder = program.adder()
    constants = "\n".join(program.constants.values()) + "\n"
    return {
        "arithmetic.p4": "\n".join([HEAD, constants, struct, *actions]),
        "add_float32.p4": "\n".join([HEAD, adder]),
    }


if __name__ == "__main__":
    files = generate()
    sys.stdout.write("\n".join(files[name] for name in sys.argv[1:] or files))
