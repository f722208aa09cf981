"""Recognising softmax among primitive ops: fusion and schedules ask for the same form.

    top   = max(x)             over the last axes, kept
    e     = exp(x - top)       x - top is 0 or less: no result overflows
    total = sum(e)             at least 1, since e is 1 where x is top
    y     = e / total

An `x` that is -inf throughout may have 0 in the place of its top, and 1 in that of its total.
"""

from __future__ import annotations

from frame.core.dataclass import dataclass
from frame.core.shapes import stands_beside
from frame.ir.graph import Node, Value

_VIEWS = frozenset({"reshape", "expand"})


@dataclass(frozen=True, slots=True)
class Softmax:
    """The nodes of a softmax, and the value `x` that it normalises."""

    x: Value
    top: Node
    difference: Node
    weights: Node
    total: Node
    division: Node


def softmax_of(division: Node) -> Softmax | None:
    """Return the softmax that a division ends, None where it ends none."""
    if division.op != "div":
        return None
    weights, total = division.operands[0].node, total_of(division)
    if weights is None or total is None:
        return None
    top, difference = top_of(weights), weights.operands[0].node
    if top is None or difference is None:
        return None
    return Softmax(difference.operands[0], top, difference, weights, total, division)


def top_of(weights: Node) -> Node | None:
    """Return the max(x) of exp(x - max(x)), None for any other node."""
    difference = weights.operands[0].node if weights.op == "exp" else None
    if difference is None or difference.op != "sub":
        return None
    x, top = difference.operands
    return _reduced(top, "max", x, (-float("inf"), 0.0))


def total_of(division: Node) -> Node | None:
    """Return the sum(e) of a division e / sum(e) of weights e, None for any other node.

    Both reductions go over the same axes: else nothing keeps the sum from being 0.
    """
    weights, total = division.operands
    top = top_of(weights.node) if division.op == "div" and weights.node is not None else None
    found = None if top is None else _reduced(total, "sum", weights, (0.0, 1.0))
    same = found is not None and top is not None and _axes(found) == _axes(top)
    return found if same else None


def _axes(reduction: Node) -> tuple[int, ...]:
    return tuple(reduction.attributes["axes"])


def _reduced(value: Value, op: str, x: Value, guard: tuple[float, float]) -> Node | None:
    """Return the reduction of x behind a value, or behind where(z == guard[0], guard[1], z)."""
    made = _plain(value)
    if made is not None and made.op == "where":
        made = _otherwise(made, *guard)
    if made is None or made.op != op or made.operands[0] is not x:
        return None
    return made if _is_beside(value, made) else None


def _is_beside(value: Value, made: Node) -> bool:
    """Whether broadcasting puts each result of a reduction beside the elements that it is of."""
    if not stands_beside(value.shape, made.operands[0].shape, _axes(made)):
        return False
    node = value.node
    if node is None or node is made:
        return node is made
    if node.op == "reshape":
        while value.node is not None and value.node.op == "reshape":
            value = value.node.operands[0]
        return value.node is made or _is_beside(value, made)
    return all(_is_beside(o, made) for o in node.operands if _constant(o) is None)


def _plain(value: Value) -> Node | None:
    """Return the node behind views that only rename or repeat elements."""
    while value.node is not None and value.node.op in _VIEWS:
        value = value.node.operands[0]
    return value.node


def _otherwise(node: Node, compared: float, replaced: float) -> Node | None:
    condition, first, second = node.operands
    test, kept = _plain(condition), _plain(second)
    if test is None or test.op != "equal" or _constant(first) != replaced:
        return None
    same = _plain(test.operands[0]) is kept and _constant(test.operands[1]) == compared
    return kept if same else None


def _constant(value: Value) -> float | None:
    node = _plain(value)
    if node is None or node.op != "constant" or node.attributes["value"].array.size != 1:
        return None
    return float(node.attributes["value"].array.reshape(-1)[0])
