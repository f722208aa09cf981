"""Text of one C function under construction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field

import numpy as np

from frame.codegen.emit.c99.helpers import c_type
from frame.codegen.emit.sharing import Sharing
from frame.codegen.loops.ir import Buffer, Type, Var
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType

INDENT = "    "


@dataclass(frozen=True, slots=True)
class Memory:
    """A buffer as the function sees it: a pointer and the strides, in elements, as operands."""

    pointer: str
    strides: tuple[str, ...]


@dataclass(slots=True)
class CWriter:
    """Lines of one C function.

    An operand is a C expression without side effects. Those in `vectors` are arrays of lanes; any
    other operand stands for the same value in every lane.
    """

    helpers: set[str]
    kernels: Mapping[str, object]
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    count: int = 0
    variables: dict[Var, str] = field(default_factory=dict)
    memories: dict[Buffer, Memory] = field(default_factory=dict)
    vectors: set[str] = field(default_factory=set)
    sharing: Sharing = field(default_factory=Sharing)

    def line(self, text: str) -> None:
        """Append a line at the current depth."""
        self.lines.append(INDENT * self.depth + text)

    def name(self, stem: str) -> str:
        """Return a name that nothing else in the function has."""
        self.count += 1
        return f"{stem}{self.count}"

    def use(self, helper: str) -> str:
        """Ask for a helper function and return its name."""
        self.helpers.add(helper)
        return helper

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """A braced block with a scope of its own."""
        self.line(f"{head} {{")
        self.depth += 1
        with self.sharing.scope():
            yield
        self.depth -= 1
        self.line("}")

    def at(self, operand: str, lane: str | int) -> str:
        """Return the operand of one lane."""
        return f"{operand}[{lane}]" if operand in self.vectors else operand

    def scalar(self, dtype: DType, text: str) -> str:
        """Declare a scalar and return its name."""
        name = self.name("v")
        self.line(f"const {c_type(dtype)} {name} = {text};")
        return name

    def array(self, type_: Type, values: str) -> str:
        """Declare a vector whose lane `l` is the C expression `values`, and return its name."""
        name = self.empty(type_)
        self.line(f"for (int l = 0; l < {type_.lanes}; ++l) {name}[l] = {values};")
        return name

    def empty(self, type_: Type) -> str:
        """Declare a vector without a value, or a scalar for one lane, and return its name."""
        name = self.name("v")
        if type_.lanes == 1:
            self.line(f"{c_type(type_.dtype)} {name};")
            return name
        self.line(f"{c_type(type_.dtype)} {name}[{type_.lanes}];")
        self.vectors.add(name)
        return name

    def lanewise(self, type_: Type, text: str, *operands: str) -> str:
        """Declare a value from a template whose {0}, {1}, ... are the operands of one lane."""
        if type_.lanes == 1:
            return self.scalar(type_.dtype, text.format(*operands))
        return self.array(type_, text.format(*(self.at(operand, "l") for operand in operands)))

    def copy(self, type_: Type, target: str, operand: str) -> None:
        """Assign to a name that `empty` declared."""
        if type_.lanes == 1:
            self.line(f"{target} = {operand};")
        else:
            lane = self.at(operand, "l")
            self.line(f"for (int l = 0; l < {type_.lanes}; ++l) {target}[l] = {lane};")


def literal(dtype: DType, value: bool | int | float) -> str:
    """Return the C text of a constant."""
    if dtype.is_bool:
        return str(int(value))
    if dtype.is_integer:
        return _integer(dtype, int(value) & 15 if dtype.bits == 4 else int(value))
    with np.errstate(over="ignore"):
        rounded = np.array(value, dtype.numpy)
    if dtype.itemsize <= 2:
        return f"{int(rounded.view(f'u{dtype.itemsize}')):#x}"
    number = float(rounded)
    if not np.isfinite(number):
        name = "NAN" if number != number else "INFINITY" if number > 0 else "-INFINITY"
        return f"(({c_type(dtype)}){name})"
    text = f"{number.hex()}{'f' if dtype.bits == 32 else ''}"
    return f"({text})" if text.startswith("-") else text


def _integer(dtype: DType, value: int) -> str:
    bits = dtype.itemsize * 8
    macro = f"{dtype.kind.upper()}{bits}_C"
    if value == -(1 << (bits - 1)):
        return f"INT{bits}_MIN"
    return f"{macro}({value})" if value >= 0 else f"(-{macro}({-value}))"
