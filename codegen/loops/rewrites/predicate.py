"""predicate: turn a branch into masked loads, masked stores and selections."""

from __future__ import annotations

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import (
    Alloc,
    Binary,
    BinaryOp,
    Block,
    Const,
    Expr,
    For,
    If,
    Let,
    Load,
    Stmt,
    Store,
)
from frame.codegen.loops.rewrites.common import ScheduleError
from frame.codegen.loops.traverse import Args, Mapper, rebuild, walk

_ALLOWED = (Let, Store, For, If, Alloc)


def predicate(branch: If) -> Block:
    """Return a branch as straight code: both sides run, each where its condition holds.

    Loads and stores get the condition as a mask; an integer division gets a divisor of 1 where the
    condition is false. Vector accesses inside the branch stay masked in all lanes alike.

    Raises:
        ScheduleError: the branch holds a statement that can't be masked (a call, a copy, a report
            of a bad value, a launch).
    """
    for statement in walk((*branch.then, *branch.otherwise)):
        if not isinstance(statement, _ALLOWED):
            raise ScheduleError(
                f"a branch that holds a {type(statement).__name__} can't become masks"
            )
    bind, condition = b.let("mask", branch.condition)
    then = _Masked(condition).block(branch.then)
    if not branch.otherwise:
        return (bind, *then)
    bind_other, other = b.let("mask", b.not_(condition))
    return (bind, *then, bind_other, *_Masked(other).block(branch.otherwise))


class _Masked(Mapper):
    def __init__(self, mask: Expr) -> None:
        super().__init__()
        self.mask = mask

    def node(self, expression: Expr, args: Args) -> Expr:
        """Return the node on new operands, safe to evaluate where the mask is false."""
        if isinstance(expression, Load):
            rank = len(expression.indices)
            own = args[rank] if len(args) > rank else None
            return b.load(expression.buffer, args[:rank], self.both(own, expression.type.lanes))
        if isinstance(expression, Binary) and expression.op in (BinaryOp.DIV, BinaryOp.REM):
            return self.guarded(expression, args)
        return rebuild(expression, args)

    def guarded(self, expression: Binary, args: Args) -> Expr:
        divisor = args[1]
        if divisor.type.dtype.is_integer and not isinstance(divisor, Const):
            divisor = b.select(self.mask, divisor, 1)
        return b.binary(expression.op, args[0], divisor)

    def both(self, own: Expr | None, lanes: int) -> Expr:
        return self.mask if own is None else b.and_(b.broadcast(self.mask, lanes), own)

    def statement(self, statement: Stmt) -> Block:
        """Return the statement with masked accesses."""
        if isinstance(statement, Store):
            indices, value = self.expressions(statement.indices), self.expression(statement.value)
            own = self.both(self.optional(statement.mask), value.type.lanes)
            return (b.store(statement.buffer, indices, value, own, statement.streamed),)
        return super().statement(statement)
