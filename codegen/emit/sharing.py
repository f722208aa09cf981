"""What emitters share: which expressions are computed already, and the shape of a memory access."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from frame.codegen.loops import ir
from frame.codegen.loops.ir import Block, Buffer, Expr, Load, Ramp, Stmt
from frame.codegen.loops.traverse import walk
from frame.core.errors import InternalError


@dataclass(slots=True)
class Sharing:
    """The operand text of every expression that is known at the place being emitted.

    Pure expressions are shared in a block and the blocks inside it (`scopes`; the first scope is
    that of the start of the function); what reads memory is shared inside one `statement`.
    """

    scopes: list[dict[Expr, str]] = field(default_factory=lambda: [{}, {}])
    statement: dict[Expr, str] = field(default_factory=dict)
    reads: dict[Expr, bool] = field(default_factory=dict)

    def known(self, expr: Expr) -> str | None:
        """Return the operand that already holds `expr` here, if there is one."""
        found = self.statement.get(expr)
        if found is not None:
            return found
        for scope in reversed(self.scopes):
            found = scope.get(expr)
            if found is not None:
                return found
        return None

    def remember(self, expr: Expr, operand: str) -> None:
        """Record the operand of `expr`: for the block, or for the statement if it reads memory."""
        table = self.statement if self.reads[expr] else self.scopes[-1]
        table[expr] = operand

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A nested block: what it computes is forgotten at its end."""
        self.scopes.append({})
        try:
            yield
        finally:
            self.scopes.pop()

    def run(self, block: Block, emit: Callable[[Stmt], None]) -> None:
        """Emit statements in order, each without what the one before has read from memory."""
        for statement in block:
            self.statement.clear()
            emit(statement)
        self.statement.clear()

    def evaluate(self, expr: Expr, emit: Callable[[Expr, list[str]], str]) -> str:
        """Emit `expr` with what it needs, operands first, and return its operand.

        An explicit stack: the depth of an expression isn't bounded by Python's recursion limit.
        """
        stack = [expr]
        while stack:
            top = stack[-1]
            if self.known(top) is None:
                missing = [operand for operand in operands_of(top) if self.known(operand) is None]
                if missing:
                    stack.extend(reversed(missing))
                    continue
                self._emit(top, emit)
            stack.pop()
        operand = self.known(expr)
        if operand is None:
            raise InternalError(f"expression {type(expr).__name__} was not emitted")
        return operand

    def _emit(self, expr: Expr, emit: Callable[[Expr, list[str]], str]) -> None:
        operands = operands_of(expr)
        self.reads[expr] = isinstance(expr, Load) or any(self.reads[x] for x in operands)
        self.remember(expr, emit(expr, [str(self.known(operand)) for operand in operands]))


def operands_of(expr: Expr) -> tuple[Expr, ...]:
    """Return the expressions that emitting `expr` evaluates."""
    if not isinstance(expr, Load):
        return expr.args
    indices = address_operands(expr.buffer, expr.indices)
    return indices if expr.mask is None else (*indices, expr.mask)


def contiguous_axis(buffer: Buffer, indices: Sequence[Expr]) -> int | None:
    """Return the axis along which an access is one contiguous vector, None if it isn't."""
    vectors = [axis for axis, index in enumerate(indices) if index.type.lanes > 1]
    if len(vectors) != 1 or not isinstance(indices[vectors[0]], Ramp):
        return None
    return vectors[0] if _unit_stride(buffer, vectors[0]) else None


def _unit_stride(buffer: Buffer, axis: int) -> bool:
    if buffer.strides:
        return buffer.strides[axis] == 1
    inner = buffer.shape[axis + 1 :]
    return math.prod(size if isinstance(size, int) else 2 for size in inner) == 1


def address_operands(buffer: Buffer, indices: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return the index expressions that an access evaluates: of a contiguous ramp, its base."""
    axis = contiguous_axis(buffer, indices)
    if axis is None:
        return tuple(indices)
    return (*indices[:axis], indices[axis].args[0], *indices[axis + 1 :])


def element_count(buffer: Buffer) -> int:
    """Return the number of elements of a LOCAL or REGISTER buffer, whose extents are ints."""
    count = 1
    for size in buffer.shape:
        if not isinstance(size, int):
            raise InternalError(f"expected constant extents of the allocated {buffer.name}")
        count *= size
    return count


def launches_of(entry: ir.Entry) -> list[ir.Launch]:
    """Return the launches of an entry in text order."""
    return [statement for statement in walk(entry.body) if isinstance(statement, ir.Launch)]


def failing_kernels(kernels: Sequence[ir.Kernel]) -> set[str]:
    """Return the kernels that can report a bad value, themselves or through one they call."""
    calls: dict[str, set[str]] = {}
    fails: set[str] = set()
    for kernel in kernels:
        statements = list(walk(kernel.body))
        calls[kernel.name] = {s.kernel for s in statements if isinstance(s, ir.Call)}
        if any(isinstance(statement, ir.Fail) for statement in statements):
            fails.add(kernel.name)
    while True:
        more = {name for name, called in calls.items() if called & fails} - fails
        if not more:
            return fails
        fails |= more
