"""Sizes of the graph as expressions of the kernel: ints become constants, symbols variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr, Var
from frame.core.shapes import Dim, Size

Symbols = Mapping[str, Var]


def size_expr(size: Size, symbols: Symbols) -> Expr:
    """Return a size as an index expression."""
    if not isinstance(size, Dim):
        return b.index(size)
    total: Expr = b.index(0)
    for monomial, coefficient in size.terms:
        term: Expr = b.index(coefficient)
        for name in monomial:
            term = b.mul(term, symbols[name])
        total = b.add(total, term)
    return total


def product(sizes: Iterable[Size]) -> Size:
    """Return the product of sizes, 1 for none."""
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def static(size: Size, otherwise: int) -> int:
    """Return a constant size, `otherwise` for a symbolic one."""
    return otherwise if isinstance(size, Dim) else size
