"""Decompositions: composites into simpler ops, where the target does not take them whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from frame.compiler.pass_manager import PassContext
from frame.ir.builder import rule_of_op
from frame.ir.graph import Node, Value
from frame.ops.registry import lookup

Results = Value | Sequence[Value] | None
Rule = Callable[[Node, PassContext], Results]


def decompose(node: Node, context: PassContext) -> Results:
    """Return the decomposition of a composite, unless the target takes it whole.

    A target without groups takes whole what it names as native.
    """
    decomposition, target = lookup(node.op).decomposition, context.capabilities
    whole = target.composites if target.anchors else target.composites | target.native
    if decomposition is None or node.op in whole:
        return None
    with rule_of_op():
        return decomposition(node.operands, node.attributes)


DECOMPOSITIONS: Mapping[str, tuple[tuple[str, Rule], ...]] = {
    "*": (("decomposed", decompose),),
}
