"""Control flow: scan, cond and while, whose bodies are graphs.

A body reads values of the graph around it through captures: inputs that repeat the last operands
of the node. The Python forms trace functions into bodies and find the captures themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np

from frame import ops
from frame.core.dataclass import dataclass
from frame.core.dtypes import bool_, uint64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Size, numel, shape_text
from frame.ir.builder import GraphBuilder, current_builder
from frame.ir.graph import Attribute, Graph, GraphInput, Role, TensorType, Value
from frame.ops import control_samples
from frame.ops.holes import GRADIENTS
from frame.ops.interpreter import bound_shape, run_body
from frame.ops.record import (
    AttributeSpec,
    GradientContext,
    NoGradient,
    OpDef,
    Operand,
    Trait,
)
from frame.ops.registry import create_node, lookup, python_form, register
from frame.ops.vjp import filled, is_zeros, pullback

Attributes = Mapping[str, Attribute]
Types = tuple[TensorType, ...]
T = TypeVar("T")

_LARGE_STACK = 1 << 21  # bytes of a stack from which on computing exp again costs less than memory
_MOST_AGAIN = 16  # nodes that one value may need to be computed again

_ROLE_ORDER = (Role.CARRY, Role.ELEMENT, Role.CAPTURE)


# --- bodies ---------------------------------------------------------------------------------------


def _text(types: Iterable[TensorType]) -> str:
    return ", ".join(f"{t.dtype}{shape_text(t.shape)}" for t in types) or "nothing"


def _equal(left: TensorType, right: TensorType) -> bool:
    return (left.dtype, left.shape) == (right.dtype, right.shape)


def _check_types(what: str, expected: Sequence[TensorType], received: Sequence[TensorType]) -> None:
    """Check that two lists of types agree; `what` says where, such as 'carries of scan'."""
    if len(expected) != len(received):
        raise InvalidArgumentError(
            f"{what}: expected {len(expected)} values ({_text(expected)}), received "
            f"{len(received)} ({_text(received)})"
        )
    for position, (one, other) in enumerate(zip(expected, received, strict=True)):
        if not _equal(one, other):
            raise InvalidArgumentError(
                f"{what}: value {position} must be {_text([one])}, received {_text([other])}"
            )


def _types(values: Iterable[Value]) -> Types:
    return tuple(value.type for value in values)


def _check_body(op: str, name: str, body: Graph, operands: Types) -> None:
    if body.updates:
        raise InvalidArgumentError(f"the {name} of {op} updates state: only a whole graph may")
    _check_types(f"inputs of the {name} of {op}", operands, _types(body.input_values))


def _ordered(builder: GraphBuilder) -> Graph:
    """Finish a body with its inputs in the order carries, elements, captures."""
    graph = builder.finish()
    inputs = sorted(graph.inputs, key=lambda entry: _ROLE_ORDER.index(entry.role))
    return replace(graph, inputs=tuple(inputs))


def _captured(builder: GraphBuilder, graph: Graph) -> list[Value]:
    """Return the outer value of each capture of a body, in the order of its inputs."""
    outer = {inner: value for value, inner in builder.captures.items()}
    return [outer[entry.value] for entry in graph.inputs if entry.role is Role.CAPTURE]


@dataclass(frozen=True, slots=True)
class _Parts(Generic[T]):
    """What belongs to the carries, the elements and the captures of a scan."""

    carries: Sequence[T]
    elements: Sequence[T]
    captures: Sequence[T]


def _parts(items: Sequence[T], attributes: Attributes) -> _Parts[T]:
    carries = attributes["carries"]
    end = carries + attributes["elements"]
    return _Parts(items[:carries], items[carries:end], items[end:])


# --- random numbers in loops ----------------------------------------------------------------------


class LoopBuilder(GraphBuilder):
    """Builds a body that runs many times; knows the iteration if a random node needs it."""

    def __init__(self, name: str, role: Role) -> None:
        super().__init__(name)
        self.iteration: Value | None = None
        self.salt = 0
        self._role = role

    def count(self) -> Value:
        """Return the iteration as a uint64 scalar, an input that is made at the first call."""
        if self.iteration is None:
            self.salt = _spread_bits(self.next_stream())
            self.iteration = self.input(TensorType(uint64, ()), self._role, "iteration")
        return self.iteration


def _spread_bits(number: int) -> int:
    """Return an odd 64-bit number that depends on every bit of `number` (splitmix64)."""
    mask = 2**64 - 1
    z = number * 0x9E3779B97F4A7C15 & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return (z ^ z >> 31) | 1


def local_counter(counter: Value) -> Value:
    """Return the counter for a random node built here: other numbers in each iteration.

    For each loop between the graph that owns `counter` and the active builder, seed becomes
    seed + salt * (iteration + 1) modulo 2**64, with a salt that differs from loop to loop.
    """
    loops: list[LoopBuilder] = []
    builder: GraphBuilder | None = current_builder()
    while builder is not None and isinstance(counter, Value) and not builder.owns(counter):
        if isinstance(builder, LoopBuilder):
            loops.append(builder)
        builder = builder.parent
    for loop in reversed(loops):
        turn = ops.reshape(ops.add(loop.count(), 1), (1,))
        salt = ops.constant(np.array([loop.salt, 0], np.uint64))
        counter = ops.add(counter, ops.mul(salt, turn))
    return counter


# --- trees of values ------------------------------------------------------------------------------

Rebuild = Callable[[Sequence[Any]], Any]


def _flatten(tree: Any) -> tuple[list[Any], Rebuild]:
    """Return the leaves of nested tuples and lists, and the function that nests leaves again."""
    if tree is None:
        return [], lambda leaves: None
    if not isinstance(tree, (tuple, list)):
        return [tree], lambda leaves: leaves[0]
    flat = [_flatten(item) for item in tree]

    def rebuild(leaves: Sequence[Any]) -> Any:
        items, start = [], 0
        for own, nest in flat:
            items.append(nest(leaves[start : start + len(own)]))
            start += len(own)
        return getattr(type(tree), "_make", type(tree))(items)

    return [leaf for own, _ in flat for leaf in own], rebuild


def _values(leaves: Iterable[Any], like: Sequence[TensorType] = ()) -> list[Value]:
    """Turn numbers and arrays among `leaves` into constants, of the dtypes of `like` if given."""
    types = list(like)
    return [
        leaf
        if isinstance(leaf, Value)
        else ops.constant(leaf, types[i].dtype if i < len(types) else None)
        for i, leaf in enumerate(leaves)
    ]


# --- scan -----------------------------------------------------------------------------------------


def _infer_scan(operands: Types, attributes: Attributes) -> Types:
    body, length = attributes["body"], attributes["length"]
    if isinstance(length, int) and length < 0:
        raise InvalidArgumentError(f"attribute 'length' of scan must be >= 0, received {length}")
    for name in ("carries", "elements"):
        if not 0 <= attributes[name] <= len(operands):
            raise InvalidArgumentError(
                f"attribute {name!r} of scan must be from 0 to the {len(operands)} operands, "
                f"received {attributes[name]}"
            )
    parts = _parts(operands, attributes)
    for position, type_ in enumerate(parts.elements):
        if type_.rank == 0 or type_.shape[0] != length:
            raise InvalidArgumentError(
                f"scan goes over {length} elements, so the leading axis of xs {position} must be "
                f"{length}, received the shape {shape_text(type_.shape)}"
            )
    steps = [TensorType(t.dtype, t.shape[1:]) for t in parts.elements]
    _check_body("scan", "body", body, (*parts.carries, *steps, *parts.captures))
    results = _types(body.outputs)
    count = attributes["carries"]
    _check_types("carries that the body of scan returns", parts.carries, results[:count])
    stacked = [TensorType(t.dtype, (length, *t.shape)) for t in results[count:]]
    return (*parts.carries, *stacked)


def _reference_scan(operands: Sequence[np.ndarray], attributes: Attributes) -> tuple[Any, ...]:
    body, length, count = attributes["body"], attributes["length"], attributes["carries"]
    parts = _parts(operands, attributes)
    carries = list(parts.carries)
    stacks = [
        np.zeros((length, *bound_shape(y.shape)), np.float64 if y.dtype.is_float else y.dtype.numpy)
        for y in body.outputs[count:]
    ]
    order = range(length)
    for step in reversed(order) if attributes["reverse"] else order:
        results = run_body(body, [*carries, *(x[step] for x in parts.elements), *parts.captures])
        carries = results[:count]
        for stack, y in zip(stacks, results[count:], strict=True):
            stack[step] = y
    return (*carries, *stacks)


class _BackwardBody(GraphBuilder):
    """The body of the backward scan: reads what the forward body computed in the same step.

    A value of the forward body becomes an element: a slice of xs, or a residual that the forward
    scan must return as well (`reads`, in order of the inputs). Those in `again` are computed once
    more instead, from others and from what is the same in each step (`hoisted`).
    """

    def __init__(
        self, body: Graph, hoisted: Mapping[Value, Value], again: Collection[Value] = ()
    ) -> None:
        super().__init__(f"{body.name}_backward")
        self.locations = list(body.locations)
        self.reads: dict[Value, Value] = {}
        self._hoisted, self._again = hoisted, again
        self._computed: dict[Value, Value] = {}
        self._forward = {v for node in body.nodes for v in node.results} | set(body.input_values)

    def resolve(self, value: Value) -> Value:
        """Return `value` as seen in this body."""
        if value not in self._forward:
            return super().resolve(value)
        if value in self._again:
            return self._compute(value)
        if value not in self.reads:
            name = f"forward{len(self.reads)}"
            self.reads[value] = self.input(value.type, Role.ELEMENT, name)
        return self.reads[value]

    def _compute(self, value: Value) -> Value:
        """Return what a node of the forward body computes, built here at the first use."""
        node = value.node
        if value not in self._computed and node is not None:
            operands = tuple(self._hoisted.get(operand, operand) for operand in node.operands)
            types = tuple(result.type for result in node.results)
            results = self.add(node.op, operands, node.attributes, types)
            self._computed.update(zip(node.results, results, strict=True))
        return self._computed[value]

    def can_see(self, value: Value) -> bool:
        """Tell whether `value` can be read here or in a body nested here."""
        return value in self._forward or super().can_see(value)


def _hoist(body: Graph, inner: Sequence[Value], outer: Sequence[Value]) -> dict[Value, Value]:
    """Build the part of a body that depends on captures alone in the active builder, outside.

    Returns what to read in place of each such value. The backward scan then captures it, instead
    of reading it from a stack that would hold one copy a step.
    """
    hoisted = dict(zip(inner, outer, strict=True))
    builder = current_builder()
    for node in body.nodes:
        if all(operand in hoisted for operand in node.operands):
            operands = tuple(hoisted[operand] for operand in node.operands)
            types = tuple(result.type for result in node.results)
            results = builder.add(node.op, operands, node.attributes, types)
            hoisted.update(zip(node.results, results, strict=True))
    return hoisted


def _floats(values: Sequence[Value], wanted: Sequence[bool] | None = None) -> list[int]:
    """Return the positions of float values (that are wanted)."""
    return [i for i, v in enumerate(values) if v.dtype.is_float and (wanted is None or wanted[i])]


@dataclass(frozen=True, slots=True)
class _Flow:
    """The positions through which gradients flow: among carries, captures, xs and body outputs."""

    carries: Sequence[int]
    captures: Sequence[int]
    elements: Sequence[int]
    ys: Sequence[int]

    def operands(self, attributes: Attributes) -> list[int]:
        """Return the operand position of each result of the backward scan."""
        count, elements = attributes["carries"], attributes["elements"]
        captures = [count + elements + i for i in self.captures]
        return [*self.carries, *captures, *(count + i for i in self.elements)]


def _flow(context: GradientContext) -> _Flow:
    attributes, outputs = context.attributes, context.attributes["body"].outputs
    inner = _parts(attributes["body"].input_values, attributes)
    needed = _parts(context.needed, attributes)
    ys = [i for i in _floats(outputs) if i >= attributes["carries"]]
    return _Flow(
        _floats(inner.carries),
        _floats(inner.captures, needed.captures),
        _floats(inner.elements, needed.elements),
        [i for i in ys if not is_zeros(context.cotangents[i])],
    )


def _gradient_scan(context: GradientContext) -> Sequence[Value | None]:
    """Rerun the scan with its residuals as extra ys, then scan backwards over them.

    The carries of the backward scan are the cotangents of the carries and the sums of the
    cotangents of the captures; its ys are the cotangents of xs.
    """
    attributes, body, flow = context.attributes, context.attributes["body"], _flow(context)
    inner, outer = _parts(body.input_values, attributes), _parts(context.operands, attributes)
    hoisted = _hoist(body, inner.captures, outer.captures)
    backward = _backward_body(body, inner, flow, hoisted)
    again = _cheaper_again(body, backward.reads, hoisted, attributes["length"])
    if again:
        backward = _backward_body(body, inner, flow, hoisted, again)
    graph = _ordered(backward)
    initial = [context.cotangents[i] for i in flow.carries]
    initial += [filled(inner.captures[i].type, 0) for i in flow.captures]
    elements = [context.cotangents[i] for i in flow.ys]
    elements += _stacked_reads(context, backward, outer.elements)
    changed = {
        "body": graph,
        "carries": len(initial),
        "elements": len(elements),
        "reverse": not attributes["reverse"],
    }
    operands = (*initial, *elements, *_captured(backward, graph))
    results = create_node("scan", operands, {**attributes, **changed})
    found: list[Value | None] = [None] * len(context.operands)
    for position, result in zip(flow.operands(attributes), results, strict=True):
        found[position] = result
    return found


def _backward_body(
    body: Graph,
    inner: _Parts[Value],
    flow: _Flow,
    hoisted: Mapping[Value, Value],
    again: Collection[Value] = (),
) -> _BackwardBody:
    """Build one backward step: (d carries, sums; d ys, reads) -> (d carries, sums, d xs)."""
    outputs = body.outputs
    builder = _BackwardBody(body, hoisted, again)
    with builder:
        seeds = [(outputs[i], builder.input(outputs[i].type, Role.CARRY)) for i in flow.carries]
        sums = [builder.input(inner.captures[i].type, Role.CARRY) for i in flow.captures]
        seeds += [(outputs[i], builder.input(outputs[i].type, Role.ELEMENT)) for i in flow.ys]
        wrt = [inner.carries[i] for i in flow.carries]
        wrt += [inner.captures[i] for i in flow.captures]
        wrt += [inner.elements[i] for i in flow.elements]
        gradients = list(pullback(body.nodes, seeds, wrt, hoisted))
        for position, total in enumerate(sums, start=len(flow.carries)):
            gradients[position] = ops.add(total, gradients[position])
        for gradient in gradients:
            builder.output(gradient)
    return builder


def _cheaper_again(
    body: Graph, reads: Iterable[Value], hoisted: Collection[Value], length: Size
) -> set[Value]:
    """Return the values of a body that the backward body should compute, not read from a stack.

    Views and simple elementwise ops of what it reads anyway cost less than memory; exp and its
    like do where the stack is large. Broadcasts and reshapes are never worth a stack.
    """
    known = {*hoisted, *reads}
    known.update(entry.value for entry in body.inputs if entry.role is Role.ELEMENT)
    again: set[Value] = set()
    for value in reversed(list(reads)):
        if value.node is None:
            continue
        known.discard(value)
        below = _below(value, known)
        if below is None or not _is_cheap(value, below, length):
            known.add(value)
        else:
            again.update(below)
    return again - known


def _below(value: Value, known: Collection[Value]) -> set[Value] | None:
    """Return what must be computed to get a value from known ones; None if that is a lot."""
    found: set[Value] = set()
    pending = [value]
    while pending:
        node = (current := pending.pop()).node
        if current in known or current in found:
            continue
        if node is None or len(node.results) > 1 or len(found) == _MOST_AGAIN:
            return None
        traits = lookup(node.op).traits
        if Trait.RANDOM in traits or not traits & {Trait.ELEMENTWISE, Trait.VIEW}:
            return None
        found.add(current)
        pending.extend(node.operands)
    return found


def _is_cheap(value: Value, below: Iterable[Value], length: Size) -> bool:
    count = numel((length, *value.shape))
    large = isinstance(count, int) and count * value.dtype.itemsize >= _LARGE_STACK
    nodes = (each.node for each in below)
    return large or not any(n and Trait.EXPENSIVE in lookup(n.op).traits for n in nodes)


def _stacked_reads(
    context: GradientContext, backward: _BackwardBody, xs: Sequence[Value]
) -> list[Value]:
    """Return the stack that each read of the backward body slices, rerunning the forward scan."""
    attributes, body = context.attributes, context.attributes["body"]
    known = dict(zip(_parts(body.input_values, attributes).elements, xs, strict=True))
    residuals = [value for value in backward.reads if value not in known]
    if residuals:
        # The outputs that the body had come first: the rerun can stand in for the scan itself.
        names = tuple(f"residual{i}" for i in range(len(residuals)))
        extended = replace(
            body,
            outputs=(*body.outputs, *residuals),
            output_names=(*body.output_names, *names),
        )
        results = create_node("scan", context.operands, {**attributes, "body": extended})
        known.update(zip(residuals, results[len(body.outputs) :], strict=True))
    return [known[value] for value in backward.reads]


register(
    OpDef(
        "scan",
        "Runs the body once for each element of xs, handing carries from step to step: "
        "(carries, x, captures) -> (carries, y). Returns the final carries and the stacked ys.",
        (Operand("operands", group="", variadic=True, storage=True, doc="init, xs, captures"),),
        _infer_scan,
        _reference_scan,
        _gradient_scan,
        attributes=(
            AttributeSpec("body", "graph", doc="one step"),
            AttributeSpec("carries", "int", doc="number of carries"),
            AttributeSpec("elements", "int", doc="number of xs"),
            AttributeSpec("length", "size", doc="number of steps"),
            AttributeSpec("reverse", "bool", False, "whether the last element comes first"),
        ),
        results=("result...",),
        traits=frozenset({Trait.CONTROL_FLOW}),
        samples=control_samples.scan,
    )
)


@python_form
def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: Size | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Run `fn(carry, x) -> (carry, y)` over the leading axis of xs.

    `fn` is traced once. It may read values around it; those become captures. Carry, xs and y are
    values, None, or nested tuples and lists of values.

    Args:
        fn: one step.
        init: the carry of the first step; the carry keeps its types.
        xs: what the steps go over, along axis 0; None needs `length`.
        length: the number of steps, where there are no xs.
        reverse: whether to begin with the last element; ys keep the order of xs.

    Returns:
        The final carry and the ys, stacked along a new axis 0.

    Raises:
        InvalidArgumentError: lengths differ, or a carry changes its type.
    """
    first, nest_carry = _flatten(init)
    over, nest_xs = _flatten(xs)
    carries, elements = _values(first), _values(over)
    length = _common_length(elements, length)
    builder = LoopBuilder("scan", Role.ELEMENT)
    with builder:
        inner = [builder.input(v.type, Role.CARRY, f"carry{i}") for i, v in enumerate(carries)]
        slices = [
            builder.input(TensorType(v.dtype, v.shape[1:]), Role.ELEMENT, f"x{i}")
            for i, v in enumerate(elements)
        ]
        following, y = _pair(fn(nest_carry(inner), nest_xs(slices)))
        stepped, _ = _flatten(following)
        out, nest_y = _flatten(y)
        for value in (*_values(stepped, _types(carries)), *_values(out)):
            builder.output(value)
    _check_count("scan", len(carries), len(stepped))
    if builder.iteration is not None:
        elements.append(ops.iota(shape=(length,), axis=0, dtype=uint64))
    graph = _ordered(builder)
    results = create_node(
        "scan",
        (*carries, *elements, *_captured(builder, graph)),
        {
            "body": graph,
            "carries": len(carries),
            "elements": len(elements),
            "length": length,
            "reverse": reverse,
        },
    )
    return nest_carry(results[: len(carries)]), nest_y(results[len(carries) :])


def _pair(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise InvalidArgumentError(
            f"the function of scan must return the pair (carry, y), received {result!r:.80}"
        )
    return result[0], result[1]


def _check_count(op: str, expected: int, received: int) -> None:
    if expected != received:
        raise InvalidArgumentError(
            f"the function of {op} must return as many carries as it gets, {expected}, received "
            f"{received}"
        )


def _common_length(elements: Sequence[Value], length: Size | None) -> Size:
    for position, value in enumerate(elements):
        if value.rank == 0:
            raise InvalidArgumentError(
                f"scan goes over the leading axis of xs, and xs {position} is a scalar"
            )
    if length is not None:
        return length
    if not elements:
        raise InvalidArgumentError("scan without xs needs `length`, the number of steps")
    return elements[0].shape[0]


# --- cond -----------------------------------------------------------------------------------------


def _check_predicate(op: str, what: str, type_: TensorType) -> None:
    if (type_.dtype, type_.shape) != (bool_, ()):
        raise InvalidArgumentError(
            f"the {what} of {op} must be a bool scalar, received {_text([type_])}; frame.ops.all "
            "and frame.ops.any reduce a tensor, frame.ops.where chooses element by element"
        )


def _infer_cond(operands: Types, attributes: Attributes) -> Types:
    then, otherwise = attributes["then"], attributes["otherwise"]
    _check_predicate("cond", "predicate", operands[0])
    _check_body("cond", "branch 'then'", then, operands[1:])
    _check_body("cond", "branch 'otherwise'", otherwise, operands[1:])
    results = _types(then.outputs)
    _check_types("results of the branches of cond", results, _types(otherwise.outputs))
    return tuple(TensorType(t.dtype, t.shape) for t in results)


def _reference_cond(operands: Sequence[np.ndarray], attributes: Attributes) -> tuple[Any, ...]:
    branch = attributes["then" if bool(operands[0]) else "otherwise"]
    return tuple(run_body(branch, operands[1:]))


def _branch_gradient(body: Graph, seeded: Sequence[int], wanted: Sequence[int]) -> Graph:
    """Return the branch (captures, cotangents) -> cotangents of the captures `wanted`."""
    with GraphBuilder(f"{body.name}_backward") as builder:
        builder.locations = list(body.locations)
        for position, entry in enumerate(body.inputs):
            builder.adopt(GraphInput(entry.value, Role.CAPTURE, f"capture{position}"))
        for node in body.nodes:
            builder.append(node)
        seeds = [
            (body.outputs[i], builder.input(body.outputs[i].type, Role.CAPTURE, f"cotangent{i}"))
            for i in seeded
        ]
        for gradient in pullback(body.nodes, seeds, [body.inputs[i].value for i in wanted]):
            builder.output(gradient)
    return builder.finish()


def _gradient_cond(context: GradientContext) -> Sequence[Value | None]:
    """Choose between the gradients of the branches, each of which reruns its branch."""
    then, otherwise = context.attributes["then"], context.attributes["otherwise"]
    wanted = _floats(context.operands[1:], context.needed[1:])
    seeded = _floats(context.results)
    operands = (*context.operands, *(context.cotangents[i] for i in seeded))
    branches = {
        "then": _branch_gradient(then, seeded, wanted),
        "otherwise": _branch_gradient(otherwise, seeded, wanted),
    }
    found: list[Value | None] = [None] * len(context.operands)
    for position, result in zip(wanted, create_node("cond", operands, branches), strict=True):
        found[position + 1] = result
    return found


register(
    OpDef(
        "cond",
        "Runs one of two branches, both graphs over the same captures, by a bool scalar.",
        (
            Operand("predicate", ("bool",), group="predicate", doc="chooses 'then' if true"),
            Operand(
                "captures", group="", variadic=True, storage=True, doc="what the branches read"
            ),
        ),
        _infer_cond,
        _reference_cond,
        _gradient_cond,
        attributes=(
            AttributeSpec("then", "graph", doc="the branch for true"),
            AttributeSpec("otherwise", "graph", doc="the branch for false"),
        ),
        results=("result...",),
        traits=frozenset({Trait.CONTROL_FLOW}),
        samples=control_samples.cond,
    )
)


@python_form
def cond(predicate: Value, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Return `then()` if the bool scalar `predicate` is true when the graph runs, else the other.

    Both functions are traced; they take no argument and read the values around them. Their results
    are values, None, or nested tuples and lists of values, of equal types.

    Raises:
        InvalidArgumentError: the predicate is no bool scalar, or the results differ in type.
    """
    builders, nests = [], []
    for name, function in (("then", then), ("otherwise", otherwise)):
        builder, nest = _trace_branch(name, function)
        builders.append(builder)
        nests.append(nest)
    graphs, captures = _unify(builders)
    (predicate,) = _values([predicate])
    attributes = {"then": graphs[0], "otherwise": graphs[1]}
    return nests[0](create_node("cond", (predicate, *captures), attributes))


def _trace_branch(name: str, function: Callable[[], Any]) -> tuple[GraphBuilder, Rebuild]:
    with GraphBuilder(name) as builder:
        leaves, nest = _flatten(function())
        for value in _values(leaves):
            builder.output(value)
    return builder, nest


def _unify(builders: Sequence[GraphBuilder]) -> tuple[list[Graph], list[Value]]:
    """Give bodies one list of captures: their union, in order of first use."""
    parent = current_builder()
    inner: list[dict[Value, Value]] = [
        {parent.resolve(value): own for value, own in builder.captures.items()}
        for builder in builders
    ]
    union = list(dict.fromkeys(value for own in inner for value in own))
    graphs = []
    for builder, own in zip(builders, inner, strict=True):
        inputs = [entry for entry in builder.inputs if entry.role is not Role.CAPTURE]
        for position, value in enumerate(union):
            inner_value = own[value] if value in own else Value(value.type)
            inputs.append(GraphInput(inner_value, Role.CAPTURE, f"capture{position}"))
        graphs.append(replace(builder.finish(), inputs=tuple(inputs)))
    return graphs, union


# --- while ----------------------------------------------------------------------------------------


def _infer_while(operands: Types, attributes: Attributes) -> Types:
    condition, body, count = attributes["condition"], attributes["body"], attributes["carries"]
    if not 0 <= count <= len(operands):
        raise InvalidArgumentError(
            f"attribute 'carries' of while must be from 0 to the {len(operands)} operands, "
            f"received {count}"
        )
    _check_body("while", "condition", condition, operands)
    _check_body("while", "body", body, operands)
    if len(condition.outputs) != 1:
        raise InvalidArgumentError(
            f"the condition of while must return one value, received {len(condition.outputs)}"
        )
    _check_predicate("while", "condition", condition.outputs[0].type)
    _check_types("carries that the body of while returns", operands[:count], _types(body.outputs))
    return operands[:count]


def _reference_while(operands: Sequence[np.ndarray], attributes: Attributes) -> tuple[Any, ...]:
    condition, body, count = attributes["condition"], attributes["body"], attributes["carries"]
    carries, captures = list(operands[:count]), list(operands[count:])
    while bool(run_body(condition, [*carries, *captures])[0]):
        carries = run_body(body, [*carries, *captures])
    return tuple(carries)


register(
    OpDef(
        "while",
        "Runs the body on the carries as long as the condition holds; the condition comes first.",
        (Operand("operands", group="", variadic=True, storage=True, doc="init, captures"),),
        _infer_while,
        _reference_while,
        NoGradient(GRADIENTS["while"]),
        attributes=(
            AttributeSpec("condition", "graph", doc="(carries, captures) -> bool scalar"),
            AttributeSpec("body", "graph", doc="(carries, captures) -> carries"),
            AttributeSpec("carries", "int", doc="number of carries"),
        ),
        results=("result...",),
        traits=frozenset({Trait.CONTROL_FLOW}),
        samples=control_samples.while_loop,
    )
)


@python_form
def while_loop(condition: Callable[[Any], Value], body: Callable[[Any], Any], init: Any) -> Any:
    """Run `carry = body(carry)` as long as `condition(carry)` holds, and return the last carry.

    Both functions are traced once and may read values around them. The carry is a value, or nested
    tuples and lists of values; it keeps its types. There is no gradient: see `frame.ops.scan`.

    Raises:
        InvalidArgumentError: the condition is no bool scalar, or a carry changes its type.
    """
    leaves, nest = _flatten(init)
    carries = _values(leaves)
    builders = [LoopBuilder("condition", Role.CARRY), LoopBuilder("body", Role.CARRY)]
    for builder, function in zip(builders, (condition, body), strict=True):
        with builder:
            inner = [builder.input(v.type, Role.CARRY, f"carry{i}") for i, v in enumerate(carries)]
            results, _ = _flatten(function(nest(inner)))
            for value in _values(results, _types(carries) if function is body else ()):
                builder.output(value)
    _check_count("while_loop", len(carries), len(builders[1].outputs))
    count = len(carries)
    if any(builder.iteration is not None for builder in builders):
        carries.append(_count_iterations(builders))
    graphs, captures = _unify(builders)
    attributes = {"condition": graphs[0], "body": graphs[1], "carries": len(carries)}
    finals = create_node("while", (*carries, *captures), attributes)
    return nest(finals[:count])


def _count_iterations(builders: Sequence[LoopBuilder]) -> Value:
    """Add the iteration as the last carry of a while loop, and return where it begins."""
    for builder in builders:
        builder.count()
    body = builders[1]
    with body:
        body.output(ops.add(body.count(), 1))
    return ops.constant(np.zeros((), np.uint64))
