"""simplify: fold what is known, share what is equal, drop what is unused. Never changes a bit.

One walk over the statements: expressions are rebuilt through the folding builder and interned
(equal pure expressions become one node); comparisons, minima, maxima, quotients and remainders of
indices are decided by the ranges of the loops around them; loops of no trip disappear and loops of
one trip become their body; Lets of variables and constants, and Lets that nothing uses, go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from frame.codegen.loops import builder as b
from frame.codegen.loops.affine import Facts, structure
from frame.codegen.loops.ir import (
    INDEX,
    Alloc,
    Binary,
    BinaryOp,
    Block,
    Broadcast,
    Call,
    Carried,
    Compare,
    CompareOp,
    Const,
    Copy,
    Expr,
    For,
    If,
    Kernel,
    Launch,
    Let,
    Load,
    LoopKind,
    Prefetch,
    Ramp,
    Stmt,
    Store,
    Var,
    While,
)
from frame.codegen.loops.rewrites.common import with_body
from frame.codegen.loops.traverse import (
    Args,
    Mapper,
    expressions,
    rebuild,
    trailing_expressions,
)


def simplify(target: Kernel | Block) -> Any:
    """Return a kernel (or block) that does the same in fewer statements and expressions."""
    if isinstance(target, Kernel):
        return with_body(target, simplify(target.body))
    block = _Simplifier().block(target)
    return drop_unused(block)


class _Simplifier(Mapper):
    def __init__(self) -> None:
        super().__init__()
        self.facts = Facts()
        self.interned: dict[tuple[Any, ...], Expr] = {}

    # Expressions

    def node(self, expression: Expr, args: Args) -> Expr:
        """Return the folded, interned node."""
        new = rebuild(expression, args)
        new = self.decide(new)
        if isinstance(new, (Var, Load)):
            return new
        return self.intern(new)

    def intern(self, node: Expr) -> Expr:
        key = (structure(node), *map(id, node.args))
        return self.interned.setdefault(key, node)

    def decide(self, node: Expr) -> Expr:
        """Use the ranges of the loops."""
        if isinstance(node, Compare):
            return self.decide_compare(node)
        if isinstance(node, Binary) and node.type == INDEX:
            return self.decide_binary(node)
        return node

    def decide_compare(self, node: Compare) -> Expr:
        if node.a.type.dtype != INDEX.dtype:
            return node
        first, steps = _first_lane(node.a)
        second, other_steps = _first_lane(node.b)
        if first is None or second is None or other_steps:
            return node
        low, high = self.facts.difference(first, second)
        verdict = _verdict(node.op, low, None if high is None else high + steps)
        return node if verdict is None else Const(verdict, node.type)

    def decide_binary(self, node: Binary) -> Expr:
        if node.op in (BinaryOp.MIN, BinaryOp.MAX):
            low, high = self.facts.difference(node.a, node.b)
            below = high is not None and high <= 0
            above = low is not None and low >= 0
            if below or above:
                return node.a if below == (node.op is BinaryOp.MIN) else node.b
        elif node.op in (BinaryOp.DIV, BinaryOp.REM) and isinstance(node.b, Const):
            return self.decide_quotient(node, int(node.b.value))
        return node

    def decide_quotient(self, node: Binary, divisor: int) -> Expr:
        """`(k * d + r) / d` with 0 <= r < d is k, its remainder is r."""
        if divisor <= 0 or not self.facts.is_natural(node.a):
            return node
        whole, rest = _parts(node.a, divisor)
        most = self.facts.maximum(rest)
        if most is None or most >= divisor or not self.facts.is_natural(rest):
            return node
        return whole if node.op is BinaryOp.DIV else rest

    # Statements

    def statement(self, statement: Stmt) -> Block:
        """Return the simplified statement, nothing if it has no effect."""
        if isinstance(statement, Let):
            return self.let(statement)
        if isinstance(statement, For):
            return self.for_(statement)
        if isinstance(statement, If):
            return self.if_(statement)
        if isinstance(statement, Store):
            return self.store(statement)
        return super().statement(statement)

    def let(self, s: Let) -> Block:
        value = self.expression(s.value)
        if isinstance(value, (Var, Const)):
            self.memo[s.var] = value
            return ()
        self.facts.define(s.var, value)
        return (Let(s.var, value),)

    def store(self, s: Store) -> Block:
        (mapped,) = super().statement(s)
        if isinstance(mapped, Store) and isinstance(mapped.mask, Const):
            if not mapped.mask.value:
                return ()
            return (replace(mapped, mask=None),)
        return (mapped,)

    def if_(self, s: If) -> Block:
        condition = self.expression(s.condition)
        if isinstance(condition, Const):
            return self.block(s.then if condition.value else s.otherwise)
        then, otherwise = self.block(s.then), self.block(s.otherwise)
        return (If(condition, then, otherwise),) if then or otherwise else ()

    def for_(self, s: For) -> Block:
        extent = self.expression(s.extent)
        count = b.constant_value(extent)
        parallel = s.kind is LoopKind.PARALLEL
        if count is not None and count <= 0 and not parallel:
            return self.bind([c.result for c in s.carried], [c.init for c in s.carried])
        if count == 1 and not parallel:
            start = self.bind([c.var for c in s.carried], [c.init for c in s.carried])
            self.memo[s.var] = b.index(0)
            body = self.block(s.body)
            end = self.bind([c.result for c in s.carried], [c.next for c in s.carried])
            return (*start, *body, *end)
        return self.loop(s, extent)

    def bind(self, olds: Iterable[Var], values: Iterable[Expr]) -> Block:
        """Give variables their values: constants and variables at once, the rest by Lets."""
        lets: list[Stmt] = []
        for var, value in zip(olds, values, strict=True):
            lets.extend(self.let(Let(var, value)))
        return tuple(lets)

    def loop(self, s: For, extent: Expr) -> Block:
        inits = self.expressions(c.init for c in s.carried)
        supposed, known = dict(self.facts.at_least), len(self.memo)
        self.facts.enter(s.var, extent)
        self.facts.suppose(self.facts.form(extent), 1)
        body = self.block(s.body)
        following = self.expressions(c.next for c in s.carried)
        if self.facts.at_least != supposed:
            self.forget(known, supposed)
        carried = tuple(
            Carried(c.var, init, after, c.result)
            for c, init, after in zip(s.carried, inits, following, strict=True)
        )
        if not body and not carried and s.kind is not LoopKind.PARALLEL:
            return ()
        return (For(s.kind, s.var, extent, body, carried),)

    def forget(self, known: int, supposed: dict[Expr, int]) -> None:
        """Drop what was decided inside a loop because it runs at least once."""
        self.facts.at_least = supposed
        while len(self.memo) > known:
            self.memo.popitem()


def _first_lane(index: Expr) -> tuple[Expr | None, int]:
    """Return the first lane of an index and how much more the last lane is; None if not simple."""
    if isinstance(index, Ramp):
        return index.base, index.lanes - 1
    if index.type.lanes == 1:
        return index, 0
    return (b.extract(index, 0), 0) if isinstance(index, (Broadcast, Const)) else (None, 0)


def _verdict(op: CompareOp, low: int | None, high: int | None) -> bool | None:
    """Decide `x op 0` for low <= x <= high."""
    negative = high is not None and high < 0
    positive = low is not None and low > 0
    at_most = high is not None and high <= 0
    at_least = low is not None and low >= 0
    true, false = {
        CompareOp.LT: (negative, at_least),
        CompareOp.LE: (at_most, positive),
        CompareOp.GT: (positive, at_most),
        CompareOp.GE: (at_least, negative),
        CompareOp.EQ: (at_most and at_least, negative or positive),
        CompareOp.NE: (negative or positive, at_most and at_least),
    }[op]
    return True if true else False if false else None


def _parts(numerator: Expr, divisor: int) -> tuple[Expr, Expr]:
    """Split a sum into `whole` and `rest` with `numerator = divisor * whole + rest`."""
    whole: list[Expr] = []
    rest: list[Expr] = []
    for term in _terms(numerator):
        factor = _factor(term)
        if factor and factor % divisor == 0:
            scale = factor // divisor
            whole.append(b.index(scale) if isinstance(term, Const) else b.mul(term.args[0], scale))
        else:
            rest.append(term)
    return b.add_all(whole), b.add_all(rest)


def _terms(numerator: Expr) -> list[Expr]:
    terms: list[Expr] = []
    pending = [numerator]
    while pending:
        node = pending.pop()
        if isinstance(node, Binary) and node.op is BinaryOp.ADD:
            pending.extend((node.b, node.a))
        else:
            terms.append(node)
    return terms


def _factor(term: Expr) -> int:
    """Return c where a term is `x * c` or the constant c, 0 elsewhere."""
    if isinstance(term, Const):
        return int(term.value)
    if isinstance(term, Binary) and term.op is BinaryOp.MUL and isinstance(term.b, Const):
        return int(term.b.value)
    return 0


def drop_unused(block: Block) -> Block:
    """Return a block without the Lets and Allocs that nothing uses."""
    used: set[Any] = set()
    return _drop(block, (), used)


def _drop(block: Block, trailing: Iterable[Expr], used: set[Any]) -> Block:
    _mark(trailing, used)
    kept: list[Stmt] = []
    for statement in reversed(block):
        if isinstance(statement, Let) and statement.var not in used:
            continue
        if isinstance(statement, Alloc) and statement.buffer not in used:
            continue
        kept.append(_drop_inside(statement, used))
    return tuple(reversed(kept))


def _drop_inside(s: Stmt, used: set[Any]) -> Stmt:
    result = s
    if isinstance(s, For):
        result = For(
            s.kind, s.var, s.extent, _drop(s.body, trailing_expressions(s), used), s.carried
        )
    elif isinstance(s, If):
        result = If(s.condition, _drop(s.then, (), used), _drop(s.otherwise, (), used))
    elif isinstance(s, While):
        result = While(s.condition, _drop(s.body, (), used))
    _mark(expressions(s), used)
    _mark_buffers(s, used)
    return result


def _mark(roots: Iterable[Expr], used: set[Any]) -> None:
    stack = [root for root in roots if root not in used]
    while stack:
        node = stack.pop()
        if node in used:
            continue
        used.add(node)
        if isinstance(node, Load):
            used.add(node.buffer)
        stack.extend(node.args)


def _mark_buffers(s: Stmt, used: set[Any]) -> None:
    if isinstance(s, (Store, Prefetch)):
        used.add(s.buffer)
    elif isinstance(s, While):
        used.add(s.condition)
    elif isinstance(s, Copy):
        used.update((s.target.buffer, s.source.buffer))
    elif isinstance(s, (Call, Launch)):
        used.update(view.buffer for view in s.buffers)
