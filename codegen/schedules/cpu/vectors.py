"""Carrying out the loops that a schedule has marked as vector loops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from frame.codegen.loops.ir import Block, For, If, LoopKind, Stmt
from frame.codegen.loops.rewrites import vectorise

_MOST_LANES = 64


def vectorise_loops(body: Iterable[Stmt], lanes: int, accumulators: int = 1) -> Block:
    """Return a block with every `vector` loop rewritten to run `lanes` iterations at a time.

    A loop that reduces keeps `accumulators` vectors of partial results, to hide the latency of the
    operation. One lane means a scalar loop.
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
        width = min(_MOST_LANES, lanes * (accumulators if statement.carried else 1))
        if width == 1:
            return (replace(statement, kind=LoopKind.SERIAL),)
        return vectorise(statement, width)
    return (replace(statement, body=vectorise_loops(statement.body, lanes, accumulators)),)
