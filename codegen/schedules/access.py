"""Readers: the element of any value of a group at an index, as an expression.

A schedule never knows what is fused. It asks a `Reader` for the element of a value at an index;
loads of captures, broadcasts, views, conversions and elementwise chains are composed on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Const, Expr, Type, Var
from frame.codegen.schedules import lifting, random_bits
from frame.codegen.schedules.group import Group, Index
from frame.codegen.schedules.scalar_rules import apply_rule, compute_dtype
from frame.core.dataclass import dataclass
from frame.core.errors import InternalError
from frame.core.shapes import Shape
from frame.ir.graph import Graph, Node, Value
from frame.ops.record import Trait
from frame.ops.registry import lookup

Binding = Callable[[Index], Expr]
ScalarRule = Callable[[Node, Sequence[Expr]], Expr]


@dataclass(frozen=True, slots=True, eq=False)
class AxisPart(Var):
    """The index of one axis of several adjacent ones that run as a single loop `run`.

    It stands in indices only: where a buffer is indexed by all parts of a run in order, the buffer
    has one dimension for them and the index is `run`.
    """

    run: Expr = field(default=Const(0))
    position: int = 0
    count: int = 1


def merge_parts(shape: Shape, index: Index) -> Index:
    """Drop axes of size 1 and replace the parts of each run by the loop that they are parts of."""
    merged = []
    for size, i in zip(shape, index, strict=True):
        if size == 1 or (isinstance(i, AxisPart) and i.position > 0):
            continue
        merged.append(i.run if isinstance(i, AxisPart) else i)
    return tuple(merged)


@dataclass(slots=True)
class Trace:
    """What a dry run met: per access of memory the shape and the index; indices used as values."""

    accesses: list[tuple[Value | None, Shape, Index]] = field(default_factory=list)
    opaque: list[Expr] = field(default_factory=list)

    def note(self, value: Value | None, shape: Shape, index: Index) -> None:
        """Note an access, axes of size 1 left out."""
        rows = [(size, i) for size, i in zip(shape, index, strict=True) if size != 1]
        sizes, places = tuple(size for size, _ in rows), tuple(i for _, i in rows)
        self.accesses.append((value, sizes, places))


class Reader:
    """Evaluates values of a group at indices, inside one scope of a kernel.

    `bindings` give values that the schedule computes itself (the result of an anchor) as functions
    of their index; `rules` compute nodes of which the schedule knows more than their op says. A
    reader made with `inside` sees what its parent has evaluated already, so what
    does not vary in an inner loop is computed outside of it. One made with `guarded` reads memory
    only where its mask is true.
    """

    def __init__(
        self,
        group: Group,
        body: b.Body,
        bindings: Mapping[Value, Binding] | None = None,
        parent: Reader | None = None,
        trace: Trace | None = None,
        mask: Expr | None = None,
    ) -> None:
        self.group = group
        self.body = body
        self.mask = mask
        self.bindings: dict[Value, Binding] = dict(bindings or {})
        self.parent = parent
        self.trace = trace
        self.rules: dict[Node, ScalarRule] = {} if parent is None else parent.rules
        self._known: dict[tuple[Value, tuple[int, ...]], tuple[Expr, Index]] = {}
        self._uses: Mapping[Value, int]
        self._sources: Mapping[Value, Buffer]
        if parent is not None:
            self._uses, self._sources = parent._uses, parent._sources
        else:
            self._uses = _use_counts(group.body)
            self._sources = dict(zip(group.body.input_values, group.captures, strict=True))

    def inside(self, bindings: Mapping[Value, Binding] | None = None) -> Reader:
        """Return a reader for a scope nested in this one, with more bindings."""
        merged = {**self.bindings, **(bindings or {})}
        return Reader(self.group, self.body, merged, self, self.trace, self.mask)

    def guarded(self, mask: Expr) -> Reader:
        """Return a reader that reads captures where `mask` is true, and takes zero elsewhere.

        For an index that no clamping brings into a buffer: it may be empty at run time.
        """
        both = mask if self.mask is None else b.and_(self.mask, mask)
        return Reader(self.group, self.body, self.bindings, self, self.trace, both)

    def load(self, value: Value, index: Index) -> Expr:
        """Return the element of `value` at `index`, in the compute dtype of its element type."""
        key = (value, tuple(map(id, index)))
        found = self._find(key)
        if found is None:
            found = self._share(value, self._evaluate(value, index))
            self._known[key] = (found, index)
        return found

    def load_broadcast(self, value: Value, index: Index) -> Expr:
        """Return the element of `value` that numpy broadcasting puts at `index`."""
        return self.load(value, aligned(value.shape, index))

    def _find(self, key: tuple[Value, tuple[int, ...]]) -> Expr | None:
        reader: Reader | None = self
        while reader is not None:
            if key in reader._known and (key[0] in reader.bindings or key[0] not in self.bindings):
                return reader._known[key][0]
            reader = reader.parent
        return None

    def _share(self, value: Value, expression: Expr) -> Expr:
        if self.trace is not None or self._uses.get(value, 0) < 2:
            return expression
        return self.body.let("v", expression)

    def _evaluate(self, value: Value, index: Index) -> Expr:
        bound = self.bindings.get(value)
        if bound is not None:
            return bound(index)
        if value.node is None:
            return self._capture(value, index)
        rule = INDEX_RULES.get(value.node.op)
        if rule is not None:
            found = rule(self, value.node, index)
            return found if isinstance(found, Expr) else self._several(value, found, index)
        return self._elementwise(value.node, index)

    def _several(self, value: Value, found: tuple[Expr, ...], index: Index) -> Expr:
        """Keep what a rule gives for the other results of a node."""
        node = value.node
        for result, element in zip(node.results, found, strict=True):  # type: ignore[union-attr]
            self._known[(result, tuple(map(id, index)))] = (element, index)
        return found[value.index]

    def _capture(self, value: Value, index: Index) -> Expr:
        dtype = compute_dtype(value.dtype)
        if self.trace is not None:
            self.trace.note(value, value.shape, index)
            return _unknown(value)
        memory = self._sources[value]
        return b.cast(b.load(memory, place_in(memory, value.shape, index), self.mask), dtype)

    def _elementwise(self, node: Node, index: Index) -> Expr:
        if Trait.ELEMENTWISE not in lookup(node.op).traits:
            raise InternalError(f"{node.op} is fused into a group that has no rule to compute it")
        operands = [self.load_broadcast(operand, index) for operand in node.operands]
        if self.trace is not None:
            return _unknown(node.results[0])
        return self.rules.get(node, apply_rule)(node, operands)

    def store(
        self,
        position: int,
        index: Index,
        value: Expr,
        mask: Expr | None = None,
        streamed: bool = False,
    ) -> None:
        """Write an element of output `position` of the group."""
        output = self.group.body.outputs[position]
        if self.trace is not None:
            self.trace.note(output, output.shape, index)
            return
        target = self.group.outputs[position]
        place = place_in(target, output.shape, index)
        self.body.store(target, place, b.cast(value, target.dtype), mask, streamed)


def _unknown(value: Value) -> Expr:
    return Var("element", Type(compute_dtype(value.dtype)))


def place_in(memory: Buffer, shape: Shape, index: Index) -> Index:
    """Return the index into a buffer that may have merged dimensions for an index into a shape."""
    whole = len(memory.shape) == len(shape) and not any(isinstance(i, AxisPart) for i in index)
    return index if whole else merge_parts(shape, index)


def _use_counts(body: Graph) -> dict[Value, int]:
    counts: dict[Value, int] = {}
    for node in body.nodes:
        for operand in node.operands:
            counts[operand] = counts.get(operand, 0) + 1
    for output in body.outputs:
        counts[output] = counts.get(output, 0) + 1
    return counts


def may_be_empty(shape: Shape) -> bool:
    """Return whether a shape may have no element at run time."""
    return not all(isinstance(size, int) and size > 0 for size in shape)


def aligned(shape: Shape, index: Index) -> Index:
    """Return the index of a broadcast operand: right-aligned, 0 where its size is 1."""
    tail = index[len(index) - len(shape) :]
    return tuple(b.index(0) if size == 1 else i for size, i in zip(shape, tail, strict=True))


def squeezed(old: Shape, new: Shape, index: Index) -> Index:
    """Return the index into `old` for an index into `new`; they differ by sizes of 1 only."""
    rest = iter([i for size, i in zip(new, index, strict=True) if size != 1])
    return tuple(b.index(0) if size == 1 else next(rest) for size in old)


def _reshape(reader: Reader, node: Node, index: Index) -> Expr:
    (source,) = node.operands
    return reader.load(source, squeezed(source.shape, node.results[0].shape, index))


def _expand(reader: Reader, node: Node, index: Index) -> Expr:
    return reader.load_broadcast(node.operands[0], index)


def _transpose(reader: Reader, node: Node, index: Index) -> Expr:
    place: list[Expr] = [b.index(0)] * len(index)
    for axis, origin in enumerate(node.attributes["permutation"]):
        place[origin] = index[axis]
    return reader.load(node.operands[0], tuple(place))


def _slice(reader: Reader, node: Node, index: Index) -> Expr:
    _use_as_values(reader, index)
    starts = reader.group.extents(node.attributes["starts"])
    steps = reader.group.extents(node.attributes["steps"])
    place = tuple(
        b.add(b.mul(i, step), start) for i, start, step in zip(index, starts, steps, strict=True)
    )
    return reader.load(node.operands[0], place)


def _flip(reader: Reader, node: Node, index: Index) -> Expr:
    _use_as_values(reader, index)
    place = list(index)
    for axis in node.attributes["axes"]:
        last = b.sub(reader.group.extent(node.results[0].shape[axis]), 1)
        place[axis] = b.sub(last, index[axis])
    return reader.load(node.operands[0], tuple(place))


def _pad(reader: Reader, node: Node, index: Index) -> Expr:
    _use_as_values(reader, index)
    (source,) = node.operands
    inside: Expr = b.boolean(True)
    place = []
    for axis, (low, high) in enumerate(
        zip(node.attributes["low"], node.attributes["high"], strict=True)
    ):
        extent = reader.group.extent(source.shape[axis])
        first = b.sub(index[axis], reader.group.extent(low))
        moved = first
        if low != 0:
            inside = b.and_(inside, b.ge(first, 0))
            moved = b.max_(first, 0)
        if low != 0 or high != 0:
            inside = b.and_(inside, b.lt(first, extent))
            moved = b.min_(moved, b.sub(extent, 1))
        place.append(moved)
    # An index moved into an axis is in its buffer, but for an axis without elements.
    reader = reader.guarded(inside) if may_be_empty(source.shape) else reader
    value, fill = reader.load(source, tuple(place)), node.attributes["value"]
    if not source.dtype.is_float:
        fill = bool(fill) if source.dtype.is_bool else int(fill)
    return b.select(inside, value, b.like(fill, value))


def _use_as_values(reader: Reader, index: Index) -> None:
    """Note that the axes are computed with, so that they must be loops of their own."""
    if reader.trace is not None:
        reader.trace.opaque.extend(index)


def _iota(reader: Reader, node: Node, index: Index) -> Expr:
    _use_as_values(reader, index)
    return b.cast(index[node.attributes["axis"]], compute_dtype(node.results[0].dtype))


def _size(reader: Reader, node: Node, index: Index) -> Expr:
    extent = reader.group.extent(node.operands[0].shape[node.attributes["axis"]])
    return b.cast(extent, compute_dtype(node.results[0].dtype))


def _constant(reader: Reader, node: Node, index: Index) -> Expr:
    scalar = reader.group.scalars.get(node)
    if scalar is not None:
        return lifting.element(scalar, node.results[0].dtype)
    array = node.attributes["value"].array
    return b.const(array.reshape(-1)[0].item(), compute_dtype(node.results[0].dtype))


def _random(reader: Reader, node: Node, index: Index) -> Expr:
    shape = node.results[0].shape
    if reader.trace is not None:
        reader.trace.note(None, shape, index)
        return _unknown(node.results[0])
    return random_bits.element(reader, node, _flat(reader, shape, index))


def _flat(reader: Reader, shape: Shape, index: Index) -> Expr:
    """The row-major position of an index, with the parts of a run taken as their one loop."""
    place: Expr = b.index(0)
    extent: Expr = b.index(1)
    for size, i in zip(shape, index, strict=True):
        extent = b.mul(extent, reader.group.extent(size))
        if isinstance(i, AxisPart):
            if i.position + 1 < i.count:
                continue
            i = i.run
        place = b.add(b.mul(place, extent), i)
        extent = b.index(1)
    return place


IndexRule = Callable[[Reader, Node, Index], "Expr | tuple[Expr, ...]"]

# op -> the element of its result (of each result) at an index, in terms of elements of its operands
# elsewhere
INDEX_RULES: dict[str, IndexRule] = {
    "reshape": _reshape,
    "expand": _expand,
    "transpose": _transpose,
    "slice": _slice,
    "flip": _flip,
    "pad": _pad,
    "iota": _iota,
    "size": _size,
    "constant": _constant,
    "uniform": _random,
    "normal": _random,
}


def captures_below(values: Iterable[Value]) -> set[Value]:
    """Return the captures of a group that any of these values of it are computed from."""
    found: set[Value] = set()
    seen: set[Value] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.node is None:
            found.add(value)
        else:
            pending.extend(value.node.operands)
    return found
