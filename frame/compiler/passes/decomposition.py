"""Decompositions: composites into simpler ops, where the target does not take them whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from frame import ops
from frame.compiler.pass_manager import PassContext
from frame.core.dtypes import int64
from frame.ir.graph import Node, Value
from frame.ops.registry import lookup

Results = Value | Sequence[Value] | None
Rule = Callable[[Node, PassContext], Results]

# A position that no axis has: what an element that is not the extreme takes part with.
_NOWHERE = np.iinfo(np.int64).max


def decompose(node: Node, context: PassContext) -> Results:
    """Return the decomposition of a composite, unless the target takes it whole."""
    decomposition = lookup(node.op).decomposition
    if decomposition is None or node.op in context.capabilities.composites:
        return None
    return decomposition(node.operands, node.attributes)


def _arg_extreme(reduce: Callable[..., Value]) -> Rule:
    """Argmax and argmin as two reductions, which fuse with what is around them.

    The extreme first, then the lowest position that holds it. NaN is an extreme of both kinds, as
    in numpy: where there is one, every NaN and nothing else is a candidate.
    """

    def rule(node: Node, context: PassContext) -> Results:
        capabilities = context.capabilities
        whole = not capabilities.anchors and node.op in capabilities.native
        if whole or node.op in capabilities.composites:
            return None
        (x,), axis, keepdims = node.operands, node.attributes["axis"], node.attributes["keepdims"]
        hit = ops.equal(x, reduce(x, axes=(axis,), keepdims=True))
        if x.dtype.is_float:
            hit = ops.logical_or(hit, ops.isnan(x))
        positions = ops.iota(shape=x.shape, axis=axis, dtype=int64)
        candidates = ops.where(hit, positions, np.int64(_NOWHERE))
        return ops.min(candidates, axes=(axis,), keepdims=keepdims)

    return rule


DECOMPOSITIONS: Mapping[str, tuple[tuple[str, Rule], ...]] = {
    "argmax": (("argmax as reductions", _arg_extreme(lambda *a, **k: ops.max(*a, **k))),),
    "argmin": (("argmin as reductions", _arg_extreme(lambda *a, **k: ops.min(*a, **k))),),
    "*": (("decomposed", decompose),),
}
