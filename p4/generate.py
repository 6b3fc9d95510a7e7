"""Writes `arithmetic.p4`: the functions of `lanes` as actions on whole words.

python -m p4.generate > arithmetic.p4
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from .lanes import FLOAT32, Format, Word, add_float, add_int32, repeat, swap
from .sizes import SIZES

INDENT = "    "


class Term:
    """An expression of P4, built by the operators of Python."""

    def __init__(self, text: str) -> None:
        self.text = text

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
        lanes: of a word.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.constants: dict[str, str] = {}
        self.actions: list[str] = []

    def constant(self, prefix: str, lane: int) -> Callable[[str, int], Term]:
        """The `c` of a function in `lanes` whose lanes have so many bits."""
        width = 32 * self.lanes

        def named(name: str, pattern: int) -> Term:
            name = f"{prefix}_{name}"
            word = repeat(pattern, lane, width // lane)
            self.constants[name] = f"const word_t {name} = {width}w{word:#x};"
            return Term(name)

        return named

    def action(
        self, name: str, operands: list[str], function: Callable[..., Word], prefix: str, lane: int
    ) -> None:
        """Run a function on terms; its lines become those of an action."""
        lines: list[str] = []
        known = {*operands}

        def let(result: str, term: Term) -> Term:
            declared = result if result in known else f"word_t {result}"
            known.add(result)
            lines.append(f"{declared} = {_bare(term)};")
            return Term(result)

        last = function(*map(Term, operands), let, self.constant(prefix, lane))
        parameters = ", ".join(f"in word_t {operand}" for operand in operands)
        body = [*lines, f"outcome = {_bare(last)};"]
        self.actions.append(
            f"action {name}({parameters}, out word_t outcome) {{\n"
            + "".join(f"{INDENT}{line}\n" for line in body)
            + "}\n"
        )

    def text(self) -> str:
        """The whole file."""
        head = "// Written by p4/generate.py; p4/lanes.py explains every line.\n"
        return "\n".join([head, "\n".join(self.constants.values()) + "\n", *self.actions])


def _bare(term: Term) -> str:
    """Without the outermost parentheses, which all but names have."""
    return term.text[1:-1] if term.text.startswith("(") else term.text


def arithmetic(float_format: Format = FLOAT32) -> str:
    """The actions that the program includes."""
    program = Program(SIZES["LANES"])
    program.action("swap", ["word"], swap, "INT32", 32)
    program.action("add_int32", ["a", "b"], add_int32, "INT32", 32)
    program.action(
        f"add_{float_format.name.lower()}",
        ["a", "b"],
        lambda a, b, let, c: add_float(a, b, float_format, let, c),
        float_format.name,
        float_format.lane,
    )
    return program.text()


if __name__ == "__main__":
    sys.stdout.write(arithmetic())
