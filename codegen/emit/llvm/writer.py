"""Text of one LLVM function under construction: types, constants, values, blocks, memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field

import numpy as np

from frame.codegen.emit.sharing import Sharing, element_count
from frame.codegen.loops.ir import Buffer, Stmt, Type, Var
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType
from frame.core.targets import TargetDescription

# 16-bit floats live in integer registers: LLVM's own lowering of half would call libgcc.
REGISTER_TYPES = {"float64": "double", "float32": "float", "bool": "i1"}


def register_type(dtype: DType) -> str:
    """Return the LLVM type of one element in a register."""
    return REGISTER_TYPES.get(dtype.name, f"i{dtype.itemsize * 8}")


def memory_type(dtype: DType) -> str:
    """Return the LLVM type of one element in memory: a bool takes a byte."""
    return "i8" if dtype.is_bool else register_type(dtype)


def vector(element: str, lanes: int) -> str:
    """Return the LLVM type of `lanes` elements, a scalar for one."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def llvm_type(type_: Type) -> str:
    """Return the LLVM type of a value of `type_` in registers."""
    return vector(register_type(type_.dtype), type_.lanes)


def constant(type_: Type, value: bool | int | float) -> str:
    """Return the text of a scalar or splat constant."""
    text = _scalar_constant(type_.dtype, value)
    if type_.lanes == 1:
        return text
    return f"splat ({register_type(type_.dtype)} {text})"


def _scalar_constant(dtype: DType, value: bool | int | float) -> str:
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.is_integer:
        bits = dtype.itemsize * 8
        wrapped = int(value) & ((1 << dtype.bits) - 1)
        return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)
    with np.errstate(over="ignore"):
        rounded = np.array(value, dtype.numpy)
    if dtype.itemsize <= 2:
        return str(int(rounded.view(f"u{dtype.itemsize}")))
    return f"0x{int(np.float64(rounded).view(np.uint64)):016X}"


def mangled(type_: str) -> str:
    """Return the suffix by which LLVM mangles an overloaded intrinsic on `type_`."""
    if type_.startswith("<"):
        lanes, element = type_[1:-1].split(" x ")
        return f"v{lanes}{mangled(element)}"
    return {"float": "f32", "double": "f64", "ptr": "p0"}.get(type_, type_)


@dataclass(frozen=True, slots=True)
class Memory:
    """A buffer as the function sees it: the pointer and the strides, in elements, as operands."""

    pointer: str
    strides: tuple[str, ...]


@dataclass(slots=True)
class FunctionWriter:
    """Lines of one function. Values are operand texts; names and labels are numbered.

    `prologue` lines run before everything else.
    """

    target: TargetDescription
    declarations: dict[str, str]
    kernels: Mapping[str, object]
    prologue: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    variables: dict[Var, str] = field(default_factory=dict)
    memories: dict[Buffer, Memory] = field(default_factory=dict)
    sharing: Sharing = field(default_factory=Sharing)
    label: str = "start"
    count: int = 0
    fail: str = ""
    status: str = ""
    profile: bool = False
    launches: Mapping[Stmt, int] = field(default_factory=dict)

    def line(self, text: str) -> None:
        """Append an instruction that has no result."""
        self.body.append("  " + text)

    def value(self, text: str) -> str:
        """Append an instruction and return the name of its result."""
        self.count += 1
        name = f"%v{self.count}"
        self.body.append(f"  {name} = {text}")
        return name

    def new_label(self, stem: str) -> str:
        """Return a label that no other block has."""
        self.count += 1
        return f"{stem}{self.count}"

    def open_block(self, label: str) -> None:
        """Start a basic block; the previous one must have ended in a branch."""
        self.body.append(f"{label}:")
        self.label = label

    def branch(self, label: str) -> None:
        """End the block with a jump."""
        self.line(f"br label %{label}")

    def branch_if(self, condition: str, then: str, otherwise: str) -> None:
        """End the block with a conditional jump."""
        self.line(f"br i1 {condition}, label %{then}, label %{otherwise}")

    def call(self, result: str, name: str, arguments: Sequence[tuple[str, str]]) -> str:
        """Call an intrinsic, declare it, and return the result ("" for void)."""
        types = ", ".join(type_ for type_, _ in arguments)
        self.declarations[name] = f"declare {result} @{name}({types})"
        operands = ", ".join(f"{type_} {value}" for type_, value in arguments)
        text = f"call {result} @{name}({operands})"
        if result != "void":
            return self.value(text)
        self.line(text)
        return ""

    @contextmanager
    def in_prologue(self) -> Iterator[None]:
        """Emit to the start of the function, so that the results dominate every block."""
        saved = self.body, self.label, self.sharing.scopes
        self.body, self.label = self.prologue, "start"
        self.sharing.scopes = self.sharing.scopes[:1]
        try:
            yield
        finally:
            self.body, self.label, self.sharing.scopes = saved


def as_integer(operand: str) -> int | None:
    """Return the value of an integer literal operand, None for a register."""
    digits = operand[1:] if operand.startswith("-") else operand
    return int(operand) if digits.isdecimal() else None


def multiply(writer: FunctionWriter, a: str, b: str, flags: str = " nsw") -> str:
    """Return the i64 product of two operands, folded when both are literals."""
    left, right = as_integer(a), as_integer(b)
    if left is not None and right is not None:
        return str(left * right)
    if 0 in (left, right):
        return "0"
    if left == 1 or right == 1:
        return b if left == 1 else a
    return writer.value(f"mul{flags} i64 {a}, {b}")


def add(writer: FunctionWriter, a: str, b: str, flags: str = " nsw") -> str:
    """Return the i64 sum of two operands, folded when both are literals."""
    left, right = as_integer(a), as_integer(b)
    if left is not None and right is not None:
        return str(left + right)
    if left == 0 or right == 0:
        return b if left == 0 else a
    return writer.value(f"add{flags} i64 {a}, {b}")


def stack_slot(writer: FunctionWriter, buffer: Buffer) -> str:
    """Reserve the memory of a LOCAL or REGISTER buffer at function entry, 64-byte aligned."""
    element = vector(memory_type(buffer.dtype), buffer.lanes)
    count = element_count(buffer)
    with writer.in_prologue():
        return writer.value(f"alloca [{count} x {element}], align 64")


def unpack(word: int, type_: str, base: str = "%args", name: str = "") -> list[str]:
    """Return the lines that load word `word` of the words at `base` as `name`."""
    name = name or f"%w{word}"
    slot = f"{name}.slot"
    return [
        f"  {slot} = getelementptr inbounds i64, ptr {base}, i64 {word}",
        f"  {name} = load {type_}, ptr {slot}, align 8",
    ]


def define(signature: str, writer: FunctionWriter, note: str = "") -> str:
    """Return the text of a function that a writer has written."""
    comments = [f"; {line}" for line in note.splitlines()]
    lines = (*comments, f"define {signature} #0 {{", "start:", *writer.prologue, *writer.body, "}")
    return "\n".join(lines) + "\n"
