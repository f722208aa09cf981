"""Moves sums over the steps of a scan out of its body, as far as rows of a batch meet in them.

A carry that only collects what each step adds is what the gradient of a capture is. Where a step
adds a product over the rows of its batch, a[t].T @ b[t], all steps are one product over steps and
rows, behind the scan, which hands over a and b: as long as this is no more than what the steps
read and write already. Where it adds a sum over rows, each row collects its own, and rows are added
up behind the scan. The body then has no place where rows meet: the target may run the steps of some
rows without waiting for the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from frame import ops
from frame.compiler.pass_manager import PassContext
from frame.compiler.passes.bodies import begin, byte_count, rewrite_scans
from frame.core.dataclass import dataclass
from frame.core.shapes import Size
from frame.ir.builder import Rewriter
from frame.ir.graph import Graph, GraphInput, Node, Role, TensorType, Value
from frame.ops.registry import create_node

_BYTES = 1 << 20  # of the sums of all rows at most
_SPARE = 1 << 20  # bytes of stacked operands of products that any scan may have more
_SYMBOLIC = 64  # what a symbolic size counts as


def move_sums(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with the sums of every scan behind it, bodies first."""
    return rewrite_scans(
        graph,
        lambda body: move_sums(body, context),
        lambda rewriter, node, changed: _move(rewriter, node, changed, context),
    )


@dataclass(frozen=True, slots=True)
class _Sum:
    """A carry that collects what `node` makes in each step; `total` adds it."""

    carry: int
    total: Node
    node: Node


def _collected(scan: Node, body: Graph) -> list[_Sum]:
    """Return the carries of a scan that collect products or sums over rows, and do nothing else."""
    found = _candidates(scan, body)
    sums = [each for each in found if not _is_stacked(each)]
    return [*sums, *_affordable(scan, body, [each for each in found if _is_stacked(each)])]


def _affordable(scan: Node, body: Graph, products: Sequence[_Sum]) -> list[_Sum]:
    """Return the products whose operands of all steps take no more than the stacks of the scan.

    These are its elements and what its steps hand on: gradients read as much from steps before.
    """
    stacked = {entry.value for entry in body.inputs if entry.role is Role.ELEMENT}
    stacked.update(body.outputs[scan.attributes["carries"] :])
    steps = max(1, _about(scan.attributes["length"]))
    left = max(_SPARE // steps, sum(map(_bytes_of, stacked)))
    found = []
    for each in products:
        new = {v for v in each.node.operands if v not in stacked}
        size = sum(map(_bytes_of, new))
        if size <= left:
            found.append(each)
            stacked |= new
            left -= size
    return found


def _about(size: Size) -> int:
    return size if isinstance(size, int) else _SYMBOLIC


def _bytes_of(value: Value) -> int:
    return math.prod(map(_about, value.shape)) * value.dtype.itemsize


def _candidates(scan: Node, body: Graph) -> list[_Sum]:
    """Return the carries that collect products or sums over rows, whatever they take."""
    reads = Counter(v for node in body.nodes for v in node.operands)
    reads.update(body.outputs)
    found = []
    for position in range(scan.attributes["carries"]):
        carry, total = body.inputs[position].value, body.outputs[position].node
        if total is None or total.op != "add" or reads[carry] != 1 or reads[total.results[0]] != 1:
            continue
        if carry not in total.operands:
            continue
        added = total.operands[1 if total.operands[0] is carry else 0]
        node = added.node
        if node is None or reads[added] != 1 or added.type != carry.type:
            continue
        if _is_product(node, body) or _is_sum(node):
            found.append(_Sum(position, total, node))
    return found


def _is_product(node: Node, body: Graph) -> bool:
    """Whether a node is a.T @ b of matrices that both differ from step to step."""
    if node.op != "matmul" or any(v.rank != 2 for v in node.operands):
        return False
    captures = {entry.value for entry in body.inputs if entry.role is Role.CAPTURE}
    made = all(v not in captures and not _is_constant(v) for v in node.operands)
    return made and node.attributes["transpose_a"] and not node.attributes["transpose_b"]


def _is_constant(value: Value) -> bool:
    return value.node is not None and not value.node.operands


def _is_sum(node: Node) -> bool:
    """Whether a node adds up rows whose own sums are small."""
    if node.op != "sum" or 0 not in node.attributes["axes"] or node.attributes["keepdims"]:
        return False
    rows, size = node.operands[0].shape[0], byte_count(node.results[0])
    return isinstance(rows, int) and rows > 1 and size is not None and size * rows <= _BYTES


# --- the body and what follows it -----------------------------------------------------------------


def _move(
    rewriter: Rewriter, node: Node, changed: Mapping[str, Graph], context: PassContext
) -> bool:
    """Build a scan without its sums, if it has any; tell whether it had."""
    body: Graph = changed.get("body") or node.attributes["body"]
    found = _collected(node, body)
    if found:
        context.count("sums moved out of a scan", len(found))
        begin(rewriter, node)
        _build(rewriter, node, body, found)
    return bool(found)


@dataclass(frozen=True, slots=True)
class _Without:
    """A body without its sums: the carries of the old one that it still has, and where the operands
    of each product are, among the operands of the scan (`over`) or its stacked results."""

    graph: Graph
    kept: Sequence[int]
    over: Mapping[Value, int]
    places: Mapping[Value, int]


def _build(rewriter: Rewriter, node: Node, body: Graph, found: Sequence[_Sum]) -> None:
    """Build a scan without its sums, and the sums behind it."""
    sums, count = {each.carry: each for each in found}, node.attributes["carries"]
    made = _without(body, sums, count)
    operands = [rewriter[v] for v in node.operands]
    initial = [_initial(operands[i], sums.get(i)) for i in made.kept]
    attributes = {**node.attributes, "body": made.graph, "carries": len(initial)}
    results = create_node("scan", (*initial, *operands[count:]), attributes)
    stacks = results[len(initial) :]
    for position, carry in enumerate(made.kept):
        total = results[position]
        if carry in sums:
            total = ops.add(operands[carry], ops.sum(total, axes=(0,)))
        rewriter.replace(node.results[carry], total)
    for each in filter(_is_stacked, found):
        a, b = (
            _rows_of_all_steps(operands[made.over[v]] if v in made.over else stacks[made.places[v]])
            for v in each.node.operands
        )
        product = ops.matmul(a, b, transpose_a=True)
        rewriter.replace(node.results[each.carry], ops.add(operands[each.carry], product))
    for old, new in zip(node.results[count:], stacks, strict=False):
        rewriter.replace(old, new)


def _without(body: Graph, sums: Mapping[int, _Sum], count: int) -> _Without:
    """Return a body that hands on what products need, and sums each row for itself."""
    over = {entry.value: i for i, entry in enumerate(body.inputs) if entry.role is Role.ELEMENT}
    stacked = [v for each in sums.values() if _is_stacked(each) for v in each.node.operands]
    with Rewriter(body, inputs=False) as inner:
        kept = _adopt_inputs(inner, body, sums)
        _copy_nodes(inner, body, sums)
        outputs = [inner[body.outputs[i]] for i in kept]
        stacks = [inner[value] for value in body.outputs[count:]]
        names = [body.output_names[i] for i in (*kept, *range(count, len(body.outputs)))]
        places: dict[Value, int] = {}
        for value in stacked:
            if value not in over and inner[value] not in stacks:
                names.append(_free_name(names))
                stacks.append(inner[value])
            if value not in over:
                places[value] = stacks.index(inner[value])
        inputs, nodes = tuple(inner.inputs), tuple(inner.nodes)
    graph = replace(
        body,
        inputs=inputs,
        nodes=nodes,
        outputs=(*outputs, *stacks),
        output_names=tuple(names),
    )
    return _Without(graph, kept, over, places)


def _free_name(names: Sequence[str]) -> str:
    """Return a name for one more output: a scan may have some of a run of this pass before."""
    number = len(names)
    while (name := f"summand{number}") in names:
        number += 1
    return name


def _is_stacked(each: _Sum) -> bool:
    return each.node.op == "matmul"


def _adopt_inputs(inner: Rewriter, body: Graph, sums: Mapping[int, _Sum]) -> list[int]:
    """Give the new body its inputs; return the carries that it still has."""
    kept = []
    for position, entry in enumerate(body.inputs):
        each = sums.get(position)
        if each is not None and _is_stacked(each):
            continue
        if each is not None:
            rows = each.node.operands[0].shape[0]
            type_ = TensorType(entry.value.dtype, (rows, *entry.value.shape))
            entry_of_rows = GraphInput(Value(type_), entry.role, entry.name)
            inner.adopt(entry_of_rows)
            inner.replace(entry.value, entry_of_rows.value)
        else:
            inner.adopt(entry)
            inner.replace(entry.value, entry.value)
        if entry.role is Role.CARRY:
            kept.append(position)
    return kept


def _copy_nodes(inner: Rewriter, body: Graph, sums: Mapping[int, _Sum]) -> None:
    """Copy the nodes of a body; sums over rows become sums of each row."""
    totals = {each.total: each for each in sums.values()}
    dropped = {each.node for each in sums.values()}
    for node in body.nodes:
        if node in dropped:
            continue
        each = totals.get(node)
        if each is None:
            inner.copy(node)
        elif not _is_stacked(each):
            begin(inner, node)
            carry = inner[body.inputs[each.carry].value]
            inner.replace(node.results[0], ops.add(carry, _sum_in_rows(inner, each.node)))


def _sum_in_rows(inner: Rewriter, node: Node) -> Value:
    value = inner[node.operands[0]]
    others = tuple(axis for axis in node.attributes["axes"] if axis != 0)
    return ops.sum(value, axes=others) if others else value


def _initial(operand: Value, each: _Sum | None) -> Value:
    """Return what a carry begins with; the sums of rows begin at zero."""
    if each is None:
        return operand
    rows = each.node.operands[0].shape[0]
    return ops.zeros((rows, *operand.shape), operand.dtype)


def _rows_of_all_steps(stack: Value) -> Value:
    """Return a stack [steps, rows, columns] as a matrix."""
    steps, rows, columns = stack.shape
    return ops.reshape(stack, (steps * rows, columns))
