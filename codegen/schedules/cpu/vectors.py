"""Carrying out the loops that a schedule has marked as vector loops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from frame.codegen.loops.ir import Block, Const, For, If, Load, LoopKind, Stmt, Var
from frame.codegen.loops.rewrites import vectorise
from frame.codegen.loops.traverse import all_expressions

_MOST_LANES = 64
_BUSY_OPERATIONS = 24  # operations in flight that keep the arithmetic units busy


def vectorise_loops(body: Iterable[Stmt], lanes: int, accumulators: int = 1) -> Block:
    """Return a block with every `vector` loop rewritten to run `lanes` iterations at a time.

    A loop that reduces keeps up to `accumulators` vectors of partial results, to hide the latency
    of the operation; fewer where its body is long enough for that, and needs the registers. One
    lane means a scalar loop.
    """
    done: list[Stmt] = []
    for statement in body:
        done.extend(_rewritten(statement, lanes, accumulators))
    return tuple(done)


def _rewritten(statement: Stmt, lanes: int, accumulators: int) -> Block:
    if isinstance(statement, If):
        then = vectorise_loops(statement.then, lanes, accumulators)
        otherwise = vectorise_loops(statement.otherwise, lanes, accumulators)
        return (replace(statement, then=then, otherwise=otherwise),)
    if not isinstance(statement, For):
        return (statement,)
    if statement.kind is LoopKind.VECTOR:
        width = min(_MOST_LANES, lanes * _accumulators(statement, accumulators))
        if width == 1:
            return (replace(statement, kind=LoopKind.SERIAL),)
        return vectorise(statement, width)
    return (replace(statement, body=vectorise_loops(statement.body, lanes, accumulators)),)


def _accumulators(loop: For, most: int) -> int:
    if not loop.carried:
        return 1
    operations = sum(
        1 for node in all_expressions(loop.body) if not isinstance(node, (Const, Var, Load))
    )
    wanted = max(1, min(most, _BUSY_OPERATIONS // max(operations, 1)))
    return 1 << (wanted.bit_length() - 1)
