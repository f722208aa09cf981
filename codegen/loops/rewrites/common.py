"""What the rewrites share: their error, and replacing statements inside a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from frame.codegen.loops.ir import Block, Expr, For, If, Kernel, Stmt, Var, While
from frame.codegen.loops.traverse import Substitution, stem_of, walk
from frame.core.errors import InternalError, InvalidArgumentError

MAX_COPIES = 1024
"""The most copies of a body that a rewrite makes."""


class ScheduleError(InternalError):
    """A rewrite is not legal here: the message names the loop and the reason."""


def require(condition: bool, loop: For, reason: str) -> None:
    """Raise ScheduleError about a loop unless a condition of legality holds."""
    if not condition:
        raise ScheduleError(f"loop over {stem_of(loop.var.name)} ({loop.kind}): {reason}")


def substitute(block: Block, values: Mapping[Var, Expr], *, refresh: bool = False) -> Block:
    """Return a block with variables replaced by expressions of their types.

    `refresh` gives every bound variable and allocated buffer a fresh name, for a block that is
    placed a second time.

    Raises:
        InvalidArgumentError: a value has another type than its variable.
    """
    for var, value in values.items():
        if var.type != value.type:
            raise InvalidArgumentError(
                f"substitute: {var.name} is {var.type}, the expression for it is {value.type}"
            )
    return Substitution(values, refresh=refresh).block(block)


def replace(block: Block, target: Stmt, replacement: Block) -> Block:
    """Return a block with one statement, found by identity at any depth, replaced.

    Raises:
        ScheduleError: the statement is not in the block.
    """
    result = _replaced(block, target, replacement)
    if result is None:
        raise ScheduleError(f"replace: the {type(target).__name__} to replace is not in the block")
    return result


def _replaced(block: Block, target: Stmt, replacement: Block) -> Block | None:
    for position, statement in enumerate(block):
        new = replacement if statement is target else _inside(statement, target, replacement)
        if new is not None:
            return (*block[:position], *new, *block[position + 1 :])
    return None


def _inside(s: Stmt, target: Stmt, replacement: Block) -> Block | None:
    if isinstance(s, For):
        body = _replaced(s.body, target, replacement)
        return None if body is None else (For(s.kind, s.var, s.extent, body, s.carried),)
    if isinstance(s, While):
        body = _replaced(s.body, target, replacement)
        return None if body is None else (While(s.condition, body),)
    if isinstance(s, If):
        then = _replaced(s.then, target, replacement)
        if then is not None:
            return (If(s.condition, then, s.otherwise),)
        otherwise = _replaced(s.otherwise, target, replacement)
        return None if otherwise is None else (If(s.condition, s.then, otherwise),)
    return None


def with_body(kernel: Kernel, body: Block) -> Kernel:
    """Return a kernel with another body."""
    return Kernel(kernel.name, kernel.buffers, kernel.scalars, body, kernel.note)


def at(kernel: Kernel, loop: For, rewrite: Callable[[For], Block]) -> Kernel:
    """Return a kernel with one of its loops rewritten."""
    return with_body(kernel, replace(kernel.body, loop, rewrite(loop)))


def find_loop(block: Block, name: str) -> For:
    """Return the first loop whose variable was made with a stem of this name.

    Raises:
        ScheduleError: there is none.
    """
    for statement in walk(block):
        if isinstance(statement, For) and stem_of(statement.var.name) == name:
            return statement
    raise ScheduleError(f"no loop over {name}")
