"""Finding the normalisations that end residual branches, whose gains "zero gamma" starts at 0.

The graph of the network is looked at, not its modules, so that a residual sum counts however it was
written: by `nn.Residual`, in the DSL, or as `x + branch(x)` in a function.
"""

from __future__ import annotations

from frame.ir.graph import Graph, Node, Role, Value
from frame.ops.registry import lookup

NORMALISATIONS = frozenset({"batch_norm_train", "group_norm", "layer_norm", "rms_norm"})
_PASSING = frozenset({"reshape", "transpose", "dropout"})
"""What may stand between a normalisation and the sum: nothing that makes zeros something else."""


def residual_gains(graph: Graph) -> list[str]:
    """Return the paths of the gains of the normalisations that end residual branches, in order.

    A residual branch is the operand of a sum that is further from the data than the other one,
    counted in ops: the other is the shortcut, which may hold ops, too, and is left alone. A sum of
    two values equally far has no shortcut.
    """
    names = {entry.value: entry.name for entry in graph.inputs if entry.role is Role.PARAMETER}
    far = _distances(graph)
    found: dict[str, None] = {}
    for node in graph.nodes:
        branch = _branch(node, far) if node.op == "add" else None
        gain = None if branch is None else _gain(branch)
        if gain is not None and gain in names:
            found[names[gain]] = None
    return list(found)


def _distances(graph: Graph) -> dict[Value, int]:
    """Return the most ops on a way from an input to each value that depends on one."""
    far = {entry.value: 0 for entry in graph.inputs if entry.role is Role.INPUT}
    for node in graph.nodes:
        steps = [far[operand] for operand in node.operands if operand in far]
        if steps:
            far.update(dict.fromkeys(node.results, max(steps) + 1))
    return far


def _branch(node: Node, far: dict[Value, int]) -> Value | None:
    """Return the residual branch of a sum, or None."""
    left, right = node.operands
    if left not in far or right not in far or left.shape != right.shape or far[left] == far[right]:
        return None
    return left if far[left] > far[right] else right


def _gain(value: Value) -> Value | None:
    """Return the gain of the normalisation that a value comes from."""
    node = value.node
    while node is not None and node.op in _PASSING:
        node = node.operands[0].node
    if node is None or node.op not in NORMALISATIONS:
        return None
    names = [operand.name for operand in lookup(node.op).operands]
    return node.operands[names.index("gamma")]
