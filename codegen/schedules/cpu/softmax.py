"""Cheaper forms of the nodes of a softmax, which know more of their operands than their ops say."""

from __future__ import annotations

from collections.abc import Sequence

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr
from frame.codegen.mathlib.exponential import exp_below
from frame.codegen.schedules.access import ScalarRule
from frame.core.dtypes import float32, float64
from frame.ir.graph import Graph, Node
from frame.ops.softmax_pattern import top_of, total_of


def softmax_rules(body: Graph) -> dict[Node, ScalarRule]:
    """Return the cheaper forms for the nodes of a group that belong to a softmax."""
    found: dict[Node, ScalarRule] = {}
    for node in body.nodes:
        if node.results[0].dtype not in (float32, float64):
            continue
        if node.op == "exp" and top_of(node) is not None:
            found[node] = _exp
        elif node.op == "div" and total_of(node) is not None:
            found[node] = _divide
    return found


def _exp(node: Node, operands: Sequence[Expr]) -> Expr:
    return exp_below(operands[0])


def _divide(node: Node, operands: Sequence[Expr]) -> Expr:
    """E / total as a product with 1 / total whose rounding error is taken back.

    The total is finite and 1 at least (or NaN), so that no step overflows; the result is rounded as
    a division rounds it, unless it is denormal.
    """
    e, total = operands
    inverse = b.div(1.0, total)
    quotient = b.mul(e, inverse)
    return b.fma(b.fma(b.neg(quotient), total, e), inverse, quotient)
