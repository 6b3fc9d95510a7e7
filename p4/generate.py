"""Writes the arithmetic of the P4 program: the functions of `lanes` as actions on whole words.

    python -m p4.generate arithmetic.p4

prints this file; without a name it prints both files.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
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
    turn_16,
    turn_32,
)
from .sizes import SIZES

INDENT = "    "
HEAD = "// Written by p4/generate.py; p4/lanes.py explains every line.\n"

# As the protocol numbers them (docs/protocol.md, section 3).
FORMATS = (FLOAT32, FLOAT16, BFLOAT16, None)
OPERATIONS = ("add", "max", "min")


def kind(dtype: int, op: int) -> int:
    """Return the P4 program's number for an operation on a dtype, both numbered as on the wire."""
    return op << 2 | dtype


class Term:
    """An expression of P4, built by the operators of Python.

    Args:
        parts: text of operators and numbers, and operands that are terms.
        result: name of the intermediate result that the expression defines; "": it defines none.
    """

    def __init__(self, *parts: Term | str, result: str = "") -> None:
        self.parts = parts
        self.result = result

    def _with(self, operator: str, other: Term | int) -> Term:
        return Term(self, f" {operator} ", other if isinstance(other, Term) else str(other))

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

    def __mul__(self, number: int) -> Term:
        return self._with("*", number)

    def __lshift__(self, bits: int) -> Term:
        return self._with("<<", bits) if bits else self

    def __rshift__(self, bits: int) -> Term:
        return self._with(">>", bits) if bits else self

    def __invert__(self) -> Term:
        return Term("~", self)

    def text(self, fields: Mapping[Term, str]) -> str:
        """Write the expression without outer parentheses; terms in `fields` become those fields."""
        if self in fields:
            return fields[self]
        found = [part if isinstance(part, str) else part.operand(fields) for part in self.parts]
        return "".join(found)

    def operand(self, fields: Mapping[Term, str]) -> str:
        """Write the expression as an operand, in parentheses if needed."""
        text = self.text(fields)
        return f"({text})" if " " in text or text.startswith("~") else text

    def operands(self, kept: Container[Term]) -> Iterator[Term]:
        """Yield the terms in `kept` that the expression reads, once for each use."""
        for part in self.parts:
            if isinstance(part, Term):
                if part in kept:
                    yield part
                else:
                    yield from part.operands(kept)


class Program:
    """Generates constants, macros and actions.

    Args:
        lanes: number of 32-bit lanes in a word.
    """

    def __init__(self, lanes: int) -> None:
        self.width = 32 * lanes
        self.constants: dict[str, str] = {}
        self.fields = dict.fromkeys(["a", "b"])  # of the words that operations work on

    def constant(self, prefix: str, lane: int) -> Callable[[str, int], Term]:
        """Return the argument `c` for a function in `lanes`; it records the constants used.

        Args:
            prefix: first part of the constants' names.
            lane: bits of a lane.
        """

        def named(name: str, pattern: int) -> Term:
            name = f"{prefix}_{name}"
            word = repeat(pattern, lane, self.width // lane)
            self.constants[name] = f"const word_t {name} = {self.width}w{word:#x};"
            return Term(name)

        return named

    def macro(self, name: str, function: Callable[..., Word]) -> str:
        """Write a function of one word as a macro, which costs no copy of the word."""
        last = function(Term("(word)"), lambda _, term: term, self.constant("INT32", 32))
        return f"#define {name}(word) ({last.text({})})\n"

    def operation(self, name: str, function: Callable[..., Word], form: Format | None) -> str:
        """Write a function of two words as an action, to be included where `meta` is known.

        An assignment in bmv2 copies the 256 bytes of a field, which costs more than any operation.
        So a result that is used once is inlined. The others are kept in fields, not in variables.
        Fields are reused to keep them few, since bmv2 zeroes all of them for each packet.
        """
        results: list[Term] = []

        def let(result: str, term: Term) -> Term:
            results.append(Term(*term.parts, result=result))
            return results[-1]

        constant = self.constant(form.name, form.lane) if form else self.constant("INT32", 32)
        a, b = Term("meta.adder.a"), Term("meta.adder.b")
        let("outcome", function(a, b, let, constant))
        kept = used_often(results)
        last_use = {term: at for at, by in enumerate(kept) for term in by.operands(kept)}
        fields: dict[Term, str] = {}
        free: list[str] = []
        lines = []
        for at, term in enumerate(kept):
            text = term.text(fields)
            free += [
                fields[old] for old in dict.fromkeys(term.operands(kept)) if last_use[old] == at
            ]
            if term is results[-1]:
                fields[term] = "meta.adder.a"
            else:
                fields[term] = free.pop() if free else f"meta.adder.t{len(set(fields.values()))}"
            self.fields[fields[term].rpartition(".")[2]] = None
            lines.append(f"{fields[term]} = {text};  // {term.result}")
        return block(f"action {name}()", lines)


def used_often(results: Sequence[Term]) -> dict[Term, None]:
    """List the results that others need more than once, and the last, in order."""
    everything = dict.fromkeys(results)
    uses = Counter(operand for term in results for operand in term.operands(everything))
    return {term: None for term in results if uses[term] > 1 or term is results[-1]}


def block(head: str, lines: list[str]) -> str:
    """Write lines in braces."""
    return f"{head} {{\n" + "".join(f"{INDENT}{line}\n" for line in lines) + "}\n"


def operations(form: Format | None) -> list[Callable[..., Word]]:
    """Return sum, maximum and minimum in the protocol's order; without a format, of int32."""
    add = partial(add_float, f=form) if form else add_int32
    return [add, partial(largest, f=form, low=False), partial(largest, f=form, low=True)]


def generate() -> dict[str, str]:
    """Write the files that the program includes; return them by name."""
    program = Program(SIZES["LANES"])
    turns = [program.macro("TURN_16", turn_16), program.macro("TURN_32", turn_32)]
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
        "arithmetic.p4": "\n".join([HEAD, constants, struct, *turns]),
        "operations.p4": "\n".join([HEAD, *actions.values(), lists]),
    }


if __name__ == "__main__":
    files = generate()
    sys.stdout.write("\n".join(files[name] for name in sys.argv[1:] or files))
