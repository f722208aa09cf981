"""parallelise: turn the outermost loop of a kernel into chunks that run in any order."""

from __future__ import annotations

from collections.abc import Collection

from frame.codegen.loops import builder as b
from frame.codegen.loops.dependence import Dependences, describe
from frame.codegen.loops.ir import Buffer, Expr, For, Kernel, Let, LoopKind, Var, fresh
from frame.codegen.loops.rewrites.common import ScheduleError, require, with_body
from frame.codegen.loops.traverse import Substitution, stem_of


def parallelise(
    kernel: Kernel, grain: int | Expr = 1, *, assume: Collection[Buffer] = ()
) -> Kernel:
    """Return a kernel whose outermost loop runs as a parallel loop of chunks of `grain` iterations.

    The loop must be the last statement of the kernel, after Lets. Legal when iterations write
    distinct elements and none reads what another writes. Buffers in `assume` are not checked.

    Raises:
        ScheduleError: the kernel has another form, or iterations depend on each other.
    """
    loop = _outermost(kernel)
    require(not loop.carried, loop, "can't run in parallel: it carries values")
    conflict = Dependences(loop, assume).conflict(loop.var)
    if conflict is not None:
        require(False, loop, f"can't run in parallel: {describe(conflict)}")
    return with_body(kernel, (*kernel.body[:-1], _chunks(loop, b.as_index(grain))))


def _outermost(kernel: Kernel) -> For:
    *before, last = kernel.body or (None,)
    if not isinstance(last, For) or not all(isinstance(s, Let) for s in before):
        raise ScheduleError(
            f"kernel {kernel.name} can't run in parallel: expected Lets and then one loop"
        )
    require(last.kind is not LoopKind.PARALLEL, last, "runs in parallel already")
    return last


def _chunks(loop: For, grain: Expr) -> For:
    if b.constant_value(grain) == 1:
        return For(LoopKind.PARALLEL, loop.var, loop.extent, loop.body)
    known = b.constant_value(grain)
    require(known is None or known > 0, loop, "can't run in parallel: the grain is below 1")
    chunk, var = fresh("chunk"), fresh(stem_of(loop.var.name))
    start = b.mul(chunk, grain)
    body = Substitution({loop.var: b.add(start, var)}).block(loop.body)
    exact = known is not None and b.constant_value(loop.extent) is not None
    even = exact and b.constant_value(b.rem(loop.extent, grain)) == 0
    count = grain if even else b.min_(grain, b.sub(loop.extent, start))
    inner = For(loop.kind, var, count, body)
    return For(LoopKind.PARALLEL, chunk, b.ceil_div(loop.extent, grain), (inner,))


def parallel_loop(kernel: Kernel) -> For | None:
    """Return the parallel loop of a kernel, None where it has none."""
    last = kernel.body[-1] if kernel.body else None
    return last if isinstance(last, For) and last.kind is LoopKind.PARALLEL else None


def parallel_extent(kernel: Kernel) -> Expr:
    """Return the number of chunks of a kernel as an expression of its scalars alone.

    Raises:
        ScheduleError: the kernel has no parallel loop.
    """
    loop = parallel_loop(kernel)
    if loop is None:
        raise ScheduleError(f"kernel {kernel.name} has no parallel loop")
    known: dict[Var, Expr] = {}
    for statement in kernel.body[:-1]:
        if isinstance(statement, Let):
            known[statement.var] = Substitution(known).expression(statement.value)
    return Substitution(known).expression(loop.extent)
