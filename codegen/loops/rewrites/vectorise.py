"""vectorise: run `lanes` iterations of a loop at once.

    for i in n: body(i)      becomes      for v in n / lanes: body(v * lanes + 0 .. lanes - 1)
                                          the rest, masked or scalar

Each scalar of the body is uniform (one value for all lanes), strided (base + stride * lane), or
varies freely. Uniform parts stay scalar; a strided index of stride 1 becomes a Ramp; the rest
becomes vectors. A branch on a varying condition becomes masks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from frame.codegen.loops import builder as b
from frame.codegen.loops.affine import Facts
from frame.codegen.loops.dependence import Dependences, describe, private_buffers
from frame.codegen.loops.ir import (
    INDEX,
    Alloc,
    Binary,
    BinaryOp,
    Block,
    Buffer,
    Carried,
    Cast,
    Const,
    Expr,
    Fail,
    For,
    If,
    Let,
    Load,
    LoopKind,
    Scope,
    Stmt,
    Store,
    Var,
    fresh,
)
from frame.codegen.loops.rewrites.common import ScheduleError, require, substitute
from frame.codegen.loops.rewrites.reductions import Reduction, recognise
from frame.codegen.loops.traverse import (
    Args,
    expressions,
    fold_dag,
    rebuild,
    stem_of,
    trailing_expressions,
    walk,
)

MAX_LANES = 64
TAILS = ("mask", "scalar")


class Lanes(NamedTuple):
    """What a scalar of the body becomes.

    `stride` 0: the scalar `base` in every lane. Another int: `base + stride * lane`. None: `base`
    is a vector.
    """

    base: Expr
    stride: int | None = 0


def vectorise(
    loop: For, lanes: int, tail: str = "mask", *, assume: Collection[Buffer] = ()
) -> Block:
    """Return statements that run a loop `lanes` iterations at a time.

    Where the extent is not a multiple of `lanes` (or not constant), the iterations that are left
    run under a mask or, for `tail="scalar"`, one at a time. Carried values must be reductions; they
    become `lanes` partial results that are combined by halves, so a float sum is reassociated, and
    for `min` and `max` of floats it is not said which operand a NaN loses to.

    Buffers in `assume` are not checked: the caller vouches that iterations don't meet in them.

    Raises:
        ScheduleError: iterations depend on each other, a carried value is no reduction, an inner
            loop depends on the lane, or the body holds something that has no vector form.
    """
    if lanes < 2 or lanes > MAX_LANES or lanes & (lanes - 1) or tail not in TAILS:
        raise ScheduleError(
            f"vectorise: expected lanes in 2, 4, .. {MAX_LANES} and a tail in {', '.join(TAILS)}, "
            f"received {lanes}, {tail!r}"
        )
    require(loop.kind is not LoopKind.PARALLEL, loop, "a parallel loop can't be vectorised")
    conflict = Dependences(loop, assume).conflict(loop.var)
    if conflict is not None:
        require(False, loop, f"can't be vectorised: {describe(conflict)}")
    reductions = [recognise(loop, carried) for carried in loop.carried]
    return _Split(loop, lanes, reductions).statements(tail)


class _Split:
    """The main loop, the tail, and the combination of partial results."""

    def __init__(self, loop: For, lanes: int, reductions: list[Reduction]) -> None:
        self.loop, self.lanes, self.reductions = loop, lanes, reductions
        self.trips = b.div(loop.extent, lanes)
        self.done = b.mul(self.trips, lanes)
        self.left = b.rem(loop.extent, lanes)
        self.varying = varying_variables(loop)

    def statements(self, tail: str) -> Block:
        inits: list[Expr] = [r.identity(self.lanes) for r in self.reductions]
        main, partial = self.vector_loop(self.trips, b.index(0), None, inits)
        if b.constant_value(self.left) == 0:
            return (*main, *self.combine(partial, [c.result for c in self.loop.carried]))
        if tail == "mask":
            end = b.ramp(self.done, self.lanes)
            mask = b.lt(end, self.loop.extent)
            trips = b.min_(self.left, 1)
            rest, partial = self.vector_loop(trips, self.done, mask, partial)
            return (*main, *rest, *self.combine(partial, [c.result for c in self.loop.carried]))
        between = [fresh(stem_of(c.result.name), c.result.type) for c in self.loop.carried]
        return (*main, *self.combine(partial, between), *self.scalar_tail(between))

    def vector_loop(
        self, trips: Expr, start: Expr, mask: Expr | None, inits: list[Expr]
    ) -> tuple[Block, list[Expr]]:
        """Return the loop over whole vectors (or the masked one) and its partial results."""
        if b.constant_value(trips) == 0:
            return (), inits
        if mask is not None and not inits:
            body, _ = self.vector_body(start, mask, [])
            some = b.gt(self.left, 0)
            return (body if b.constant_value(some) else (b.if_(some, body),)), []
        var = fresh(stem_of(self.loop.var.name))
        base = b.add(start, b.mul(var, self.lanes))
        stems = [stem_of(c.var.name) for c in self.loop.carried]
        values = [fresh(stem, init.type) for stem, init in zip(stems, inits, strict=True)]
        body, following = self.vector_body(base, mask, values)
        results: list[Expr] = [fresh(stem_of(v.name), v.type) for v in values]
        rows = zip(values, inits, following, results, strict=True)
        carried = tuple(Carried(*row) for row in rows)  # type: ignore[arg-type]
        return (For(LoopKind.SERIAL, var, trips, body, carried),), results

    def vector_body(
        self, base: Expr, mask: Expr | None, values: list[Var]
    ) -> tuple[Block, list[Expr]]:
        widener = _Widener(self.loop, self.lanes, self.varying, base, mask)
        for carried, value in zip(self.loop.carried, values, strict=False):
            widener.values[carried.var] = Lanes(value, None)
        body = widener.block(self.loop.body)
        following = [widener.vector(c.next) for c in self.loop.carried] if values else []
        if mask is not None:
            pairs = zip(following, values, strict=True)
            following = [b.select(mask, after, value) for after, value in pairs]
        return body, following

    def combine(self, partial: list[Expr], results: list[Var]) -> Block:
        """Bind each result to its init combined with the partial results."""
        rows = zip(self.loop.carried, self.reductions, partial, results, strict=True)
        return tuple(
            Let(result, b.binary(r.op, carried.init, b.reduce(r.op, value)))
            for carried, r, value, result in rows
        )

    def scalar_tail(self, between: list[Var]) -> Block:
        loop = self.loop
        var = fresh(stem_of(loop.var.name))
        rest = For(LoopKind.SERIAL, loop.var, self.left, loop.body, loop.carried)
        (moved,) = substitute((rest,), {}, refresh=True)
        if not isinstance(moved, For):
            raise ScheduleError("a substitution turned a loop into something else")
        body = substitute(moved.body, {moved.var: b.add(self.done, var)})
        following = (
            substitute((Let(c.var, c.next),), {moved.var: b.add(self.done, var)})[0]
            for c in moved.carried
        )
        carried = tuple(
            Carried(c.var, init, after.value, original.result)  # type: ignore[attr-defined]
            for c, init, after, original in zip(
                moved.carried, between, following, loop.carried, strict=True
            )
        )
        return (For(LoopKind.SERIAL, var, self.left, body, carried),)


def varying_variables(loop: For) -> set[Var]:
    """Return the variables of the body that may differ between lanes, and the loop variable."""
    varying = {loop.var, *(c.var for c in loop.carried)}
    private = private_buffers(loop.body)
    while True:
        before = len(varying)
        memo: dict[Expr, bool] = {}

        def varies(node: Expr, args: list[bool], varying: set[Var] = varying) -> bool:
            own = node in varying or (isinstance(node, Load) and node.buffer in private)
            return own or any(args)

        for statement in walk(loop.body):
            if isinstance(statement, Let) and fold_dag(statement.value, memo, varies):
                varying.add(statement.var)
            elif isinstance(statement, For):
                for c in statement.carried:
                    if fold_dag(c.init, memo, varies) or fold_dag(c.next, memo, varies):
                        varying.update((c.var, c.result))
        if len(varying) == before:
            return varying


class _Widener:
    """Turns the statements of a loop body into their vector forms, under a mask or none."""

    def __init__(
        self, loop: For, lanes: int, varying: set[Var], base: Expr, mask: Expr | None
    ) -> None:
        self.loop, self.lanes, self.varying = loop, lanes, varying
        self.values: dict[Var, Lanes] = {loop.var: Lanes(base, 1)}
        self.buffers: dict[Buffer, Buffer] = {}
        self.mask = mask
        self.some: Expr | None = None  # true if any lane is active; None: known to be so
        self.memo: dict[Expr, Lanes] = {}
        self.facts = Facts()

    # Expressions

    def lanes_of(self, expression: Expr) -> Lanes:
        """Return what a scalar of the body becomes."""
        return fold_dag(expression, self.memo, self.visit)

    def vector(self, expression: Expr) -> Expr:
        """Return a scalar of the body as a vector."""
        return self.spread(self.lanes_of(expression))

    def spread(self, value: Lanes) -> Expr:
        """Return the vector that a value stands for."""
        if value.stride is None:
            return value.base
        if value.stride == 0:
            return b.broadcast(value.base, self.lanes)
        if value.stride == 1:
            return b.ramp(value.base, self.lanes)
        steps = b.mul(b.ramp(b.index(0), self.lanes), value.stride)
        return b.add(steps, b.broadcast(value.base, self.lanes))

    def operand(self, value: Lanes) -> Expr:
        """Return a scalar for a uniform value (the builder broadcasts it), else the vector."""
        return value.base if value.stride == 0 else self.spread(value)

    def scalar(self, expression: Expr, what: str) -> Expr:
        """Return a uniform value as a scalar."""
        value = self.lanes_of(expression)
        require(value.stride == 0, self.loop, f"can't be vectorised: {what} depends on the lane")
        return value.base

    def visit(self, node: Expr, args: list[Lanes]) -> Lanes:
        if node.type.lanes > 1:
            require(False, self.loop, "can't be vectorised: its body holds vectors already")
        if isinstance(node, Var):
            return self.values.get(node, Lanes(node))
        if isinstance(node, Load):
            return self.load(node, args)
        if all(arg.stride == 0 for arg in args):
            return Lanes(self.uniform(node, [arg.base for arg in args]))
        if isinstance(node, Binary):
            return self.binary(node, *args)
        return Lanes(rebuild_wide(node, [self.operand(arg) for arg in args]), None)

    def uniform(self, node: Expr, args: list[Expr]) -> Expr:
        if self.some is not None and isinstance(node, Binary) and _may_trap(node.op, args[1]):
            args = [args[0], b.select(self.some, args[1], 1)]
        return rebuild(node, args)

    def binary(self, node: Binary, x: Lanes, y: Lanes) -> Lanes:
        rule = _STRIDE_RULES.get(node.op) if node.type == INDEX else None
        found = rule(self, x, y) if rule is not None else None
        if found is not None:
            return found
        right = self.operand(y)
        if self.mask is not None and _may_trap(node.op, right):
            right = b.select(self.mask, right, 1)
        return Lanes(b.binary(node.op, self.operand(x), right), None)

    def load(self, node: Load, args: list[Lanes]) -> Lanes:
        memory = self.buffers.get(node.buffer, node.buffer)
        rank = len(node.indices)
        own = args[rank] if node.mask is not None else None
        if memory is not node.buffer:
            return Lanes(self.private_load(memory, args[:rank]), None)
        if all(arg.stride == 0 for arg in args):
            mask = self.some if own is None else _both(own.base, self.some)
            return Lanes(b.load(memory, [arg.base for arg in args[:rank]], mask))
        self.no_register(memory)
        indices = [self.operand(arg) for arg in args[:rank]]
        if all(index.type.lanes == 1 for index in indices):
            indices[-1] = b.broadcast(indices[-1], self.lanes)  # only the mask varies
        mask = _both(self.mask, None if own is None else self.spread(own))
        return Lanes(b.load(memory, indices, mask), None)

    def no_register(self, memory: Buffer) -> None:
        near = memory.scope is Scope.REGISTER
        require(not near, self.loop, "can't be vectorised: a register index depends on the lane")

    def private_load(self, memory: Buffer, args: list[Lanes]) -> Expr:
        return b.load(memory, self.private_indices(memory, args))

    def private_indices(self, memory: Buffer, args: list[Lanes]) -> list[Expr]:
        if memory.scope is Scope.REGISTER:
            if any(arg.stride != 0 for arg in args):
                self.no_register(memory)
            return [arg.base for arg in args]
        return [*(self.operand(arg) for arg in args), b.ramp(b.index(0), self.lanes)]

    # Statements

    def block(self, statements: Block) -> Block:
        result: list[Stmt] = []
        for statement in statements:
            rule = _WIDEN.get(type(statement))
            if rule is None:
                kind = type(statement).__name__
                require(False, self.loop, f"can't be vectorised: {kind} has no vector form")
            else:
                result.extend(rule(self, statement))
        return tuple(result)

    def let(self, s: Let) -> Block:
        value = self.lanes_of(s.value)
        base = value.base
        if isinstance(base, (Var, Const)) and value.stride is not None:
            self.values[s.var] = value
            return ()
        var = fresh(stem_of(s.var.name), base.type)
        self.values[s.var] = Lanes(var, value.stride)
        return (Let(var, base),)

    def store(self, s: Store) -> Block:
        memory = self.buffers.get(s.buffer, s.buffer)
        places = [self.lanes_of(index) for index in s.indices]
        value = self.vector(s.value)
        mask = _both(self.mask, None if s.mask is None else self.vector(s.mask))
        if memory is not s.buffer:
            return (self.private_store(memory, places, value, mask),)
        self.no_register(memory)
        indices = [self.operand(place) for place in places]
        if all(index.type.lanes == 1 for index in indices):
            require(False, self.loop, f"can't be vectorised: all lanes store to one {memory.name}")
        return (b.store(memory, indices, value, mask, s.streamed),)

    def private_store(
        self, memory: Buffer, places: list[Lanes], value: Expr, mask: Expr | None
    ) -> Stmt:
        indices = self.private_indices(memory, places)
        if mask is not None and memory.scope is Scope.REGISTER:
            value, mask = b.select(mask, value, b.load(memory, indices)), None
        return b.store(memory, indices, value, mask)

    def alloc(self, s: Alloc) -> Block:
        old = s.buffer
        require(old.lanes == 1, self.loop, "can't be vectorised: it allocates vectors already")
        name = fresh(stem_of(old.name)).name
        if old.scope is Scope.REGISTER:
            new = Buffer(name, old.dtype, old.shape, (), old.scope, self.lanes)
        else:
            new = Buffer(name, old.dtype, (*old.shape, self.lanes), (), old.scope)
        self.buffers[old] = new
        return (Alloc(new),)

    def for_(self, s: For) -> Block:
        extent = self.scalar(s.extent, f"the extent of the inner loop over {s.var.name}")
        var = fresh(stem_of(s.var.name))
        self.values[s.var] = Lanes(var)
        wide = [c.var in self.varying for c in s.carried]
        inits = [self.carried_value(c.init, w) for c, w in zip(s.carried, wide, strict=True)]
        names = [fresh(stem_of(c.var.name), x.type) for c, x in zip(s.carried, inits, strict=True)]
        ends = [
            fresh(stem_of(c.result.name), x.type) for c, x in zip(s.carried, inits, strict=True)
        ]
        self.bind([c.var for c in s.carried], names, wide)
        body = self.block(s.body)
        following = [self.carried_value(c.next, w) for c, w in zip(s.carried, wide, strict=True)]
        self.bind([c.result for c in s.carried], ends, wide)
        rows = zip(names, inits, following, ends, strict=True)
        return (For(s.kind, var, extent, body, tuple(Carried(*row) for row in rows)),)

    def carried_value(self, expression: Expr, wide: bool) -> Expr:
        return self.vector(expression) if wide else self.scalar(expression, "a carried value")

    def bind(self, olds: list[Var], news: list[Var], wide: list[bool]) -> None:
        for old, new, vector in zip(olds, news, wide, strict=True):
            self.values[old] = Lanes(new, None if vector else 0)

    def if_(self, s: If) -> Block:
        condition = self.lanes_of(s.condition)
        if condition.stride == 0:
            return (If(condition.base, self.block(s.then), self.block(s.otherwise)),)
        bind, chosen = self.named("mask", self.spread(condition))
        then = self.masked(chosen, s.then)
        otherwise = self.masked(b.not_(chosen), s.otherwise) if s.otherwise else ()
        return (*bind, *then, *otherwise)

    def named(self, stem: str, value: Expr) -> tuple[Block, Expr]:
        statement, var = b.let(stem, value)
        return (statement,), var

    def masked(self, condition: Expr, block: Block) -> Block:
        """Return a block that acts in the lanes where a condition holds."""
        saved = self.mask, self.some, self.memo
        bind, mask = (
            self.named("mask", b.and_(condition, self.mask)) if self.mask else ((), condition)
        )
        any_bind, some = self.named("any", b.reduce(BinaryOp.OR, mask))
        self.mask, self.some, self.memo = mask, some, {}
        body = self.block(block)
        self.mask, self.some, self.memo = saved
        used = any(_uses(statement, some) for statement in walk(body))
        return (*bind, *(any_bind if used else ()), *body)

    def fail(self, s: Fail) -> Block:
        position, value = self.vector(s.position), self.vector(s.value)
        if self.mask is None:
            return tuple(self.lane_fail(s, position, value, lane) for lane in range(self.lanes))
        reports = (
            b.if_(b.extract(self.mask, lane), self.lane_fail(s, position, value, lane))
            for lane in range(self.lanes)
        )
        return (b.if_(b.reduce(BinaryOp.OR, self.mask), b.block(reports)),)

    def lane_fail(self, s: Fail, position: Expr, value: Expr, lane: int) -> Stmt:
        return Fail(s.site, b.extract(position, lane), b.extract(value, lane))


def rebuild_wide(node: Expr, args: Args) -> Expr:
    """Return a node on operands of which some are vectors."""
    if isinstance(node, Cast):
        return b.cast(args[0], node.dtype)
    return rebuild(node, b.unify(*args)) if len(args) > 1 else rebuild(node, args)


def _both(a: Expr | None, c: Expr | None) -> Expr | None:
    if a is None or c is None:
        return c if a is None else a
    return b.and_(a, c)


def _uses(statement: Stmt, expression: Expr) -> bool:
    seen: dict[Expr, bool] = {}

    def visit(node: Expr, args: list[bool]) -> bool:
        return node is expression or any(args)

    roots = (*expressions(statement), *trailing_expressions(statement))
    return any(fold_dag(root, seen, visit) for root in roots)


def _stride_add(w: _Widener, x: Lanes, y: Lanes) -> Lanes | None:
    if x.stride is None or y.stride is None:
        return None
    return Lanes(b.add(x.base, y.base), x.stride + y.stride)


def _stride_sub(w: _Widener, x: Lanes, y: Lanes) -> Lanes | None:
    if x.stride is None or y.stride is None:
        return None
    return Lanes(b.sub(x.base, y.base), x.stride - y.stride)


def _stride_mul(w: _Widener, x: Lanes, y: Lanes) -> Lanes | None:
    if isinstance(x.base, Const) and x.stride == 0:
        x, y = y, x
    if x.stride is None or y.stride != 0 or not isinstance(y.base, Const):
        return None
    return Lanes(b.mul(x.base, y.base), x.stride * int(y.base.value))


def _aligned(w: _Widener, x: Lanes, y: Lanes) -> bool:
    """Tell whether no lane of x crosses a multiple of the divisor y, for x >= 0."""
    if x.stride != 1 or y.stride != 0 or not isinstance(y.base, Const):
        return False
    divisor = int(y.base.value)
    form = w.facts.form(x.base)
    return divisor > 0 and divisor % w.lanes == 0 and form.divisible(w.lanes)


def _stride_div(w: _Widener, x: Lanes, y: Lanes) -> Lanes | None:
    return Lanes(b.div(x.base, y.base)) if _aligned(w, x, y) else None


def _stride_rem(w: _Widener, x: Lanes, y: Lanes) -> Lanes | None:
    return Lanes(b.rem(x.base, y.base), 1) if _aligned(w, x, y) else None


_STRIDE_RULES: Mapping[BinaryOp, Callable[[_Widener, Lanes, Lanes], Lanes | None]] = {
    BinaryOp.ADD: _stride_add,
    BinaryOp.SUB: _stride_sub,
    BinaryOp.MUL: _stride_mul,
    BinaryOp.DIV: _stride_div,
    BinaryOp.REM: _stride_rem,
}
"""How strides move through index arithmetic: one row an operator that keeps them."""

_TRAPS = frozenset({BinaryOp.DIV, BinaryOp.REM})


def _may_trap(op: BinaryOp, divisor: Expr) -> bool:
    """Tell whether an operation must not run for lanes that are switched off."""
    return op in _TRAPS and divisor.type.dtype.is_integer and not isinstance(divisor, Const)


_WIDEN: Mapping[type[Stmt], Callable[[_Widener, Any], Block]] = {
    Let: _Widener.let,
    For: _Widener.for_,
    If: _Widener.if_,
    Alloc: _Widener.alloc,
    Store: _Widener.store,
    Fail: _Widener.fail,
}
"""The vector form of each statement that has one."""
