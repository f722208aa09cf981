"""Walking loop IR: the buffers and variables that statements use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from frame.codegen.loops.ir import (
    Block,
    Buffer,
    Call,
    Copy,
    Expr,
    Fail,
    For,
    If,
    Launch,
    Let,
    Load,
    Stmt,
    Store,
    Var,
    View,
)


def expressions(statement: Stmt) -> Iterator[Expr]:
    """Yield the expressions that stand directly in a statement."""
    match statement:
        case Let(value=value):
            yield value
        case For(extent=extent, carried=carried):
            yield extent
            for item in carried:
                yield item.init
                yield item.next
        case If(condition=condition):
            yield condition
        case Store(indices=indices, value=value, mask=mask):
            yield from indices
            yield value
            if mask is not None:
                yield mask
        case Fail(position=position, value=value):
            yield position
            yield value
        case Copy(target=target, source=source, extents=extents):
            yield from (*target.indices, *source.indices, *extents)
        case Call(buffers=views, scalars=scalars) | Launch(buffers=views, scalars=scalars):
            for view in views:
                yield from view.indices
            yield from scalars
            if isinstance(statement, Launch):
                yield statement.chunks


def blocks(statement: Stmt) -> tuple[Block, ...]:
    """Return the blocks nested directly in a statement."""
    match statement:
        case For(body=body):
            return (body,)
        case If(then=then, otherwise=otherwise):
            return (then, otherwise)
    return ()


def statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """Yield every statement of a block, nested ones included, in order."""
    for statement in body:
        yield statement
        for nested in blocks(statement):
            yield from statements(nested)


def subexpressions(roots: Iterable[Expr], seen: set[int] | None = None) -> Iterator[Expr]:
    """Yield every expression below `roots`, each object once."""
    seen = set() if seen is None else seen
    pending = list(roots)
    while pending:
        expression = pending.pop()
        if id(expression) in seen:
            continue
        seen.add(id(expression))
        yield expression
        pending.extend(expression.args)


def _touched(statement: Stmt) -> Iterator[Buffer]:
    match statement:
        case Store(buffer=memory):
            yield memory
        case Copy(target=View(buffer=target), source=View(buffer=source)):
            yield target
            yield source
        case Call(buffers=views) | Launch(buffers=views):
            for view in views:
                yield view.buffer


def used_buffers(body: Iterable[Stmt]) -> set[Buffer]:
    """Return the buffers that statements read or write."""
    found: set[Buffer] = set()
    seen: set[int] = set()
    for statement in statements(body):
        found.update(_touched(statement))
        for expression in subexpressions(expressions(statement), seen):
            if isinstance(expression, Load):
                found.add(expression.buffer)
    return found


def used_variables(body: Iterable[Stmt], memories: Iterable[Buffer] = ()) -> set[Var]:
    """Return the variables that statements, and the shapes of `memories`, read."""
    roots = [e for statement in statements(body) for e in expressions(statement)]
    for memory in memories:
        roots.extend(e for e in (*memory.shape, *memory.strides) if isinstance(e, Expr))
    return {e for e in subexpressions(roots) if isinstance(e, Var)}
