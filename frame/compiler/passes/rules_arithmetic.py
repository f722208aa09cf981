"""Exact rewrites of arithmetic: for every input, NaN, infinities and signed zeros included."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from frame import ops
from frame.compiler.pass_manager import PassContext
from frame.compiler.passes.bodies import has_trait, uniform_element
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import numel
from frame.ir.graph import Constant, Node, Value
from frame.ops.record import Trait
from frame.ops.registry import create_node, lookup

Results = Value | Sequence[Value] | None
Rule = Callable[[Node, PassContext], Results]


def _constant_rank(value: Value) -> int:
    """How far to the right an operand of a commutative op belongs."""
    node = value.node
    while node is not None and node.op in ("expand", "reshape"):
        node = node.operands[0].node
    return int(node is not None and node.op == "constant")


def _constant_to_the_right(node: Node, context: PassContext) -> Results:
    if len(node.operands) != 2 or not has_trait(node, Trait.COMMUTATIVE):
        return None
    left, right = node.operands
    if _constant_rank(left) <= _constant_rank(right):
        return None
    return create_node(node.op, (right, left), node.attributes)


# --- identities -----------------------------------------------------------------------------------

# (op, kinds, element, which operand may be the element, what is left)
# x + 0.0 is no identity of floats: it turns -0.0 into 0.0. Adding -0.0 and subtracting 0.0 are.
_IDENTITIES: tuple[tuple[str, tuple[str, ...], Any, str], ...] = (
    ("add", ("int", "uint"), 0, "both"),
    ("add", ("float",), -0.0, "both"),
    ("sub", ("int", "uint", "float"), 0, "right"),
    ("mul", ("int", "uint", "float"), 1, "both"),
    ("div", ("int", "uint", "float"), 1, "right"),
    ("floor_div", ("int", "uint"), 1, "right"),
    ("pow", ("int", "uint", "float"), 1, "right"),
    ("bitwise_or", ("int", "uint"), 0, "both"),
    ("bitwise_xor", ("int", "uint"), 0, "both"),
    ("shift_left", ("int", "uint"), 0, "right"),
    ("shift_right", ("int", "uint"), 0, "right"),
    ("logical_and", ("bool",), True, "both"),
    ("logical_or", ("bool",), False, "both"),
    ("logical_xor", ("bool",), False, "both"),
    ("maximum", ("float",), -math.inf, "both"),
    ("minimum", ("float",), math.inf, "both"),
)
# An operand that decides the result alone. x * 0.0 is NaN for some x, so floats have none.
_ABSORBING: tuple[tuple[str, tuple[str, ...], Any, str], ...] = (
    ("mul", ("int", "uint"), 0, "both"),
    ("bitwise_and", ("int", "uint"), 0, "both"),
    ("logical_and", ("bool",), False, "both"),
    ("logical_or", ("bool",), True, "both"),
)


def _is_element(value: Value, kinds: tuple[str, ...], element: Any) -> bool:
    if value.dtype.kind not in kinds:
        return False
    found = uniform_element(value)
    if found is None or found != element:
        return False
    return not value.dtype.is_float or _sign(found) == _sign(element)


def _sign(number: Any) -> float:
    return math.copysign(1.0, float(number))


def _fitted(value: Value, node: Node) -> Value:
    """Broadcast a value to the shape of the result that it stands for."""
    shape = node.results[0].shape
    return value if value.shape == shape else ops.expand(value, shape)


def _identity(kinds: tuple[str, ...], element: Any, side: str) -> Rule:
    def rule(node: Node, context: PassContext) -> Results:
        left, right = node.operands
        if _is_element(right, kinds, element):
            return _fitted(left, node)
        if side == "both" and _is_element(left, kinds, element):
            return _fitted(right, node)
        return None

    return rule


def _absorbed(kinds: tuple[str, ...], element: Any, side: str) -> Rule:
    def rule(node: Node, context: PassContext) -> Results:
        for operand in node.operands:
            if _is_element(operand, kinds, element):
                return ops.full(node.results[0].shape, element, node.results[0].dtype)
        return None

    return rule


# --- signs, powers, choices -----------------------------------------------------------------------


def _undoes_itself(node: Node, context: PassContext) -> Results:
    inner = node.operands[0].node
    return inner.operands[0] if inner is not None and inner.op == node.op else None


def _negated(value: Value) -> Value | None:
    node = value.node
    return node.operands[0] if node is not None and node.op == "neg" else None


def _add_of_negative(node: Node, context: PassContext) -> Results:
    left, right = node.operands
    if (taken := _negated(right)) is not None:
        return ops.sub(left, taken)
    if (taken := _negated(left)) is not None:
        return ops.sub(right, taken)
    return None


def _sub_of_negative(node: Node, context: PassContext) -> Results:
    taken = _negated(node.operands[1])
    return None if taken is None else ops.add(node.operands[0], taken)


def _div_by_power_of_two(node: Node, context: PassContext) -> Results:
    """Division by a power of two is multiplication by its reciprocal, to the last bit."""
    x, divisor = node.operands
    element = uniform_element(divisor) if x.dtype.is_float else None
    if element is None or not math.isfinite(float(element)) or float(element) == 0.0:
        return None
    mantissa, exponent = math.frexp(float(element))
    if abs(mantissa) != 0.5 or not -10 <= exponent <= 14:
        return None  # within the normal numbers of every float dtype
    reciprocal = Constant(np.asarray(1.0 / float(element), x.dtype.numpy))
    (factor,) = create_node("constant", (), {"value": reciprocal})
    return _fitted(ops.mul(x, factor), node)


def _pow_as_product(node: Node, context: PassContext) -> Results:
    x, exponent = node.operands
    element = uniform_element(exponent)
    if element is None or not x.dtype.is_float or float(element) != 2.0:
        return None
    return _fitted(ops.square(x), node)


def _same_choice(node: Node, context: PassContext) -> Results:
    predicate, yes, no = node.operands
    if yes is no:
        return _fitted(yes, node)
    known = uniform_element(predicate)
    return None if known is None else _fitted(yes if known else no, node)


def _reduces_nothing(node: Node, context: PassContext) -> Results:
    """A reduction over no axes, or over axes of size 1, is a reshape."""
    (x,) = node.operands
    if any(x.shape[axis] != 1 for axis in node.attributes["axes"]):
        return None
    return ops.reshape(x, node.results[0].shape)


# --- broadcasts -----------------------------------------------------------------------------------


def _is_plain_elementwise(node: Node) -> bool:
    traits = lookup(node.op).traits
    return Trait.ELEMENTWISE in traits and Trait.RANDOM not in traits


def _broadcast_operand(node: Node, context: PassContext) -> Results:
    """An elementwise op broadcasts its operands itself, so an expand before it can go."""
    if not _is_plain_elementwise(node):
        return None
    operands = list(node.operands)
    for position, operand in enumerate(operands):
        source = _before_expand(operand)
        if source is None:
            continue
        kept = operands[position]
        operands[position] = source
        if not _gives(node, operands):
            operands[position] = kept
    if all(new is old for new, old in zip(operands, node.operands, strict=True)):
        return None
    return create_node(node.op, tuple(operands), node.attributes)


def _before_expand(value: Value) -> Value | None:
    node = value.node
    return node.operands[0] if node is not None and node.op == "expand" else None


def _gives(node: Node, operands: Sequence[Value]) -> bool:
    """Whether the op gives the same type for other operands."""
    try:
        _, types = lookup(node.op).check(tuple(o.type for o in operands), node.attributes)
    except InvalidArgumentError:
        return False
    return types == tuple(result.type for result in node.results)


def _broadcast_result(node: Node, context: PassContext) -> Results:
    """Compute before broadcasting, where every operand is a broadcast or a single element."""
    if not _is_plain_elementwise(node) or not node.operands or len(node.results) != 1:
        return None
    sources = [_narrow(operand) for operand in node.operands]
    if all(new is old for new, old in zip(sources, node.operands, strict=True)):
        return None
    (value,) = create_node(node.op, tuple(sources), node.attributes)
    if value.shape == node.results[0].shape or not _is_smaller(value, node.results[0]):
        return None
    return ops.expand(value, node.results[0].shape)


def _narrow(operand: Value) -> Value:
    source = _before_expand(operand)
    return operand if source is None else source


def _is_smaller(value: Value, other: Value) -> bool:
    """Whether a value that broadcasts to another has fewer elements."""
    return value.shape != other.shape and numel(value.shape) != numel(other.shape)


def _table() -> dict[str, tuple[tuple[str, Rule], ...]]:
    table: dict[str, list[tuple[str, Rule]]] = {}
    for record_rules, name, make in (
        (_IDENTITIES, "identity element", _identity),
        (_ABSORBING, "absorbing element", _absorbed),
    ):
        for op, kinds, element, side in record_rules:
            table.setdefault(op, []).append((name, make(kinds, element, side)))
    for op, name, rule in _OTHERS:
        table.setdefault(op, []).append((name, rule))
    return {op: tuple(rules) for op, rules in table.items()}


_OTHERS: tuple[tuple[str, str, Rule], ...] = (
    ("neg", "undoes itself", _undoes_itself),
    ("logical_not", "undoes itself", _undoes_itself),
    ("bitwise_not", "undoes itself", _undoes_itself),
    ("add", "add of negative", _add_of_negative),
    ("sub", "sub of negative", _sub_of_negative),
    ("div", "div by power of two", _div_by_power_of_two),
    ("pow", "square", _pow_as_product),
    ("where", "known choice", _same_choice),
    *(
        (op, "reduces nothing", _reduces_nothing)
        for op in ("sum", "mean", "max", "min", "prod", "any", "all")
    ),
    ("*", "constant to the right", _constant_to_the_right),
    ("*", "broadcast operand", _broadcast_operand),
    ("*", "broadcast result", _broadcast_result),
)

ARITHMETIC: Mapping[str, tuple[tuple[str, Rule], ...]] = _table()
