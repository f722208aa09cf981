"""Scans whose batch is cut into tiles: one kernel runs all steps of a tile, with no wait between.

    parallel chunk                     some rows of the batch
      copy the rows of the carries into local memory
      for t in length
        the kernels of the body, on these rows, one after the other on this thread
      copy the rows of the last carries out

Rows of a batch don't know of each other: what a step computes for a row, it computes from that row
of the carries and elements, and from captures. That this holds is found by building the body once
more for fewer rows: every value either keeps its type, or has the rows of the tile in place of
those of the batch, by rules that let rows meet nowhere. The tile depends on shapes alone, and each
row is computed as it would be in the whole batch.

What a tile needs from step to step (carries, what lies between the kernels of the body) stays in
local memory; a carry alternates between two places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import (
    Block,
    Buffer,
    Call,
    Copy,
    Expr,
    For,
    Kernel,
    LoopKind,
    Scope,
    Var,
    View,
)
from frame.codegen.loops.rewrites import parallel_loop
from frame.codegen.loops.traverse import bound_variables, used_buffers, used_variables, walk
from frame.codegen.schedules.group import KernelCall, Part
from frame.codegen.schedules.registry import schedule_for
from frame.codegen.schedules.work import Work, group_work
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType, uint8
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Size
from frame.core.targets import TargetDescription
from frame.ir.builder import GraphBuilder
from frame.ir.graph import ROW_MAJOR, Graph, GraphInput, Node, Role, TensorType, Value
from frame.ops.record import Trait
from frame.ops.registry import create_node, lookup

NOTE = __doc__.split("\n\n")[1]
_LOCAL = 3 << 16  # bytes of local memory of a chunk at most
_ROWS = 4  # of a tile whose steps multiply by weights: enough to hide that these come from a cache
_WORK = 1 << 13  # operations of a step of a tile at least: what the calls of its kernels are worth
_FEW = 1 << 17  # operations of a step that is worth no second thread
_BUSY = 1 << 24  # operations of a step from which on a launch of its own costs nothing


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """A scan cut into tiles: its body for `tile` of `batch` rows, and the values that have rows."""

    node: Node
    batch: int
    tile: int
    body: Graph
    rows: frozenset[Value]

    @property
    def groups(self) -> tuple[Node, ...]:
        """The groups of the body, in order."""
        return groups_of(self.body)

    @property
    def work(self) -> Work:
        """The work of all steps."""
        each = [group_work(group) for group in groups_of(self.node.attributes["body"])]
        length: Size = self.node.attributes["length"]
        flops = sum((work.flops for work in each), start=0 * length)
        return Work(flops * length, sum((work.bytes for work in each), start=0 * length) * length)


def groups_of(body: Graph) -> tuple[Node, ...]:
    """Return the groups of a body, in order."""
    return tuple(node for node in body.nodes if node.op == "group")


def _root(value: Value) -> Value:
    """Return the value that a reshape, or several, show in another shape."""
    while value.node is not None and value.node.op == "reshape":
        value = value.node.operands[0]
    return value


# --- the body for fewer rows ----------------------------------------------------------------------


class _MeetError(Exception):
    """Rows of the batch meet in a node, or it is not known that they don't."""


def tile_steps(node: Node, target: TargetDescription) -> Steps | None:
    """Return a scan cut into tiles, None where that is impossible or does not pay."""
    body: Graph = node.attributes["body"]
    carries = body.outputs[: node.attributes["carries"]]
    batch = carries[0].shape[0] if carries and carries[0].shape else 0
    if not isinstance(batch, int) or not _is_plain(body):
        return None
    tile = _tile(body, batch, target)
    if tile == 0:
        return None
    for captures in (False, True):
        try:
            if tile < batch:
                _Rows(body, batch, _unlike_all(body)).build(captures)
            made = _Rows(body, batch, tile).build(captures)
        except (_MeetError, InvalidArgumentError):
            continue
        steps = Steps(node, batch, tile, *made)
        return steps if _has_rows(steps) and _fits(steps, target) else None
    return None


def _unlike_all(body: Graph) -> int:
    """Return a number of rows that no axis has.

    One row fits wherever a broadcast puts it, along an axis that is none of rows, too; so many rows
    fit only where there are rows.
    """
    graphs = (body, *(group.attributes["body"] for group in groups_of(body)))
    values = [entry.value for graph in graphs for entry in graph.inputs]
    values += [value for graph in graphs for node in graph.nodes for value in node.results]
    return 1 + max(size for value in values for size in (1, *value.shape))  # type: ignore[type-var]


def _is_plain(body: Graph) -> bool:
    """Whether a body is groups and reshapes of values of known sizes between them."""
    values = [v for node in body.nodes for v in (*node.operands, *node.results)]
    roots = [_root(value) for value in body.outputs]
    once = all(
        value is root or (root.node is not None and roots.count(root) == 1)
        for value, root in zip(body.outputs, roots, strict=True)
    )
    return (
        once
        and bool(body.nodes)
        and all(node.op in ("group", "reshape") for node in body.nodes)
        and all(isinstance(size, int) and size > 0 for v in values for size in v.shape)
    )


def _has_rows(steps: Steps) -> bool:
    """Whether all that a step hands on has rows: what has none would be written by every chunk."""
    return all(value in steps.rows for value in steps.body.outputs)


def _fits(steps: Steps, target: TargetDescription) -> bool:
    """Whether a chunk needs little local memory, and no group checks indices."""
    values: list[Value] = [v for group in steps.groups for v in group.results]
    values += steps.body.outputs[: steps.node.attributes["carries"]] * 2
    sizes: list[Size] = [math.prod(v.shape) * v.dtype.itemsize for v in values]  # type: ignore[arg-type]
    for group in steps.groups:
        schedule, body = schedule_for(group.attributes["anchor"]), group.attributes["body"]
        if schedule.checks(body):
            return False
        sizes += schedule.workspaces(body, target)
    return all(isinstance(size, int) for size in sizes) and sum(sizes) <= _LOCAL  # type: ignore[misc]


def _tile(body: Graph, batch: int, target: TargetDescription) -> int:
    """Return how many rows make a tile, 0 where steps should be launches of their own."""
    groups = groups_of(body)
    work = sum(int(group_work(node).flops) for node in groups)  # type: ignore[arg-type, misc]
    if batch == 0 or work > _BUSY or _weights(body) > target.l2:
        return 0
    products = any(node.attributes["anchor"] == "contraction" for node in groups)
    most = batch if work <= _FEW else batch // 2
    fitting = [rows for rows in range(1, most + 1) if batch % rows == 0]
    if products:
        return max((rows for rows in fitting if rows <= _ROWS), default=0)
    enough = [rows for rows in fitting if work * rows >= _WORK * batch]
    return min(enough, default=max(fitting, default=0))


def _weights(body: Graph) -> int:
    """Return the bytes of what every row reads in every step."""
    captures = [entry.value for entry in body.inputs if entry.role is Role.CAPTURE]
    return sum(math.prod(v.type.storage_shape) * v.dtype.itemsize for v in captures)  # type: ignore[misc]


class _Rows:
    """Builds a body for `tile` of `batch` rows, which are always along the first axis."""

    def __init__(self, body: Graph, batch: int, tile: int) -> None:
        self.body, self.batch, self.tile = body, batch, tile
        self.rows: set[Value] = set()

    def build(self, captures: bool) -> tuple[Graph, frozenset[Value]]:
        """Return the body and its values that have rows.

        `captures` says whether captures with as many elements along their first axis have rows.
        """
        with_rows = [
            self._long(entry.value) and (captures or entry.role is not Role.CAPTURE)
            for entry in self.body.inputs
        ]
        return self._graph(self.body, with_rows), frozenset(self.rows)

    def _long(self, value: Value) -> bool:
        return bool(value.shape) and value.shape[0] == self.batch

    def _graph(self, graph: Graph, with_rows: Sequence[bool]) -> Graph:
        known: dict[Value, Value] = {}
        with GraphBuilder(graph.name) as builder:
            for entry, rows in zip(graph.inputs, with_rows, strict=True):
                value = Value(self._type(entry.value.type, rows))
                builder.adopt(GraphInput(value, entry.role, entry.name))
                known[entry.value] = value
                self.rows.update([value] if rows else [])
            for node in graph.nodes:
                results = self._node(builder, node, [known[v] for v in node.operands])
                known.update(zip(node.results, results, strict=True))
            for value in graph.outputs:
                builder.output(known[value])
        return builder.finish()

    def _type(self, type_: TensorType, rows: bool) -> TensorType:
        if not rows:
            return type_
        if type_.layout != ROW_MAJOR or type_.shape[:1] != (self.batch,):
            raise _MeetError
        return replace(type_, shape=(self.tile, *type_.shape[1:]))

    def _node(
        self, builder: GraphBuilder, node: Node, operands: Sequence[Value]
    ) -> Sequence[Value]:
        rows = any(operand in self.rows for operand in operands)
        if node.op == "group":
            results = self._group(builder, node, operands)
        elif not rows:
            results = builder.append(Node(node.op, tuple(operands), node.attributes, _types(node)))
        else:
            change = _RULES.get(node.op, _rule_by_trait(node))
            attributes = change(node, self.batch, self.tile)
            results = create_node(node.op, tuple(operands), attributes)
        if node.op != "group":
            self.rows.update(results if rows else ())
        for old, new in zip(node.results, results, strict=True):
            if new.type != self._type(old.type, new in self.rows):
                raise _MeetError
        return results

    def _group(
        self, builder: GraphBuilder, node: Node, operands: Sequence[Value]
    ) -> Sequence[Value]:
        inner = self._graph(node.attributes["body"], [v in self.rows for v in operands])
        attributes = {**node.attributes, "body": inner}
        types = tuple(value.type for value in inner.outputs)
        made = builder.append(Node("group", tuple(operands), attributes, types, node.origin))
        self.rows.update(
            new for new, old in zip(made, inner.outputs, strict=True) if old in self.rows
        )
        return made


def _types(node: Node) -> tuple[TensorType, ...]:
    return tuple(result.type for result in node.results)


# What an op's attributes are for the rows of a tile: of (node, batch, tile).
_Change = Callable[[Node, int, int], Mapping[str, object]]


def _same(node: Node, batch: int, tile: int) -> Mapping[str, object]:
    return node.attributes


def _shape(node: Node, batch: int, tile: int) -> Mapping[str, object]:
    shape = node.attributes["shape"]
    if node.operands[0].shape[:1] != shape[:1]:
        raise _MeetError
    return {**node.attributes, "shape": (tile, *shape[1:])}


def _slice(node: Node, batch: int, tile: int) -> Mapping[str, object]:
    values = node.attributes
    if (values["starts"][0], values["stops"][0], values["steps"][0]) != (0, batch, 1):
        raise _MeetError
    return {**values, "stops": (tile, *values["stops"][1:])}


def _pad(node: Node, batch: int, tile: int) -> Mapping[str, object]:
    if node.attributes["low"][0] != 0 or node.attributes["high"][0] != 0:
        raise _MeetError
    return node.attributes


def _refuse(node: Node, batch: int, tile: int) -> Mapping[str, object]:
    raise _MeetError


_RULES: Mapping[str, _Change] = {
    **dict.fromkeys(("matmul", "concat", "split", "transpose", "unsqueeze", "squeeze"), _same),
    **dict.fromkeys(("expand", "reshape"), _shape),
    "slice": _slice,
    "pad": _pad,
}


def _rule_by_trait(node: Node) -> _Change:
    """Elementwise ops, and reductions over other axes, keep rows apart."""
    own = lookup(node.op).traits
    apart = (Trait.ELEMENTWISE, Trait.REDUCTION)
    barred = (Trait.RANDOM, Trait.SIDE_EFFECT, Trait.CHECKED, Trait.CONTROL_FLOW)
    fits = any(t in own for t in apart) and not any(t in own for t in barred)
    return _same if fits else _refuse


# --- the kernel -----------------------------------------------------------------------------------


def serial(kernel: Kernel) -> Kernel:
    """Return a kernel whose chunks run one after the other: others may call it."""
    loop = parallel_loop(kernel)
    if loop is None:
        return kernel
    inner = For(LoopKind.SERIAL, loop.var, loop.extent, loop.body)
    return replace(kernel, body=(*kernel.body[:-1], inner))


@dataclass(frozen=True, slots=True)
class Lowered:
    """What a schedule made of a group of the body: calls of serial kernels, bytes of workspaces."""

    calls: Sequence[KernelCall]
    workspaces: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class StepsKernel:
    """The kernel of a scan; its buffers are the operands of the scan, then its results.

    `buffers` are positions among these, `scalars` what the kernel needs of the entry.
    """

    kernel: Kernel
    buffers: tuple[int, ...]
    chunks: int


def write_steps(steps: Steps, lowered: Sequence[Lowered], length: Expr) -> StepsKernel:
    """Return the kernel of a scan."""
    return _Writer(steps, lowered, length).write()


class _Writer:
    """Writes the kernel of one scan. Every buffer has one more axis in front: steps, or places."""

    def __init__(self, steps: Steps, lowered: Sequence[Lowered], length: Expr) -> None:
        self.steps, self.lowered, self.length = steps, lowered, length
        node, self.count = steps.node, steps.node.attributes["carries"]
        elements = range(self.count, self.count + node.attributes["elements"])
        self.operands = [
            self._parameter(f"in{i}", value, length if i in elements else None)
            for i, value in enumerate(node.operands)
        ]
        self.results = [
            self._parameter(f"out{i}", value, length if i >= self.count else None)
            for i, value in enumerate(node.results)
        ]
        self.body = b.Body()
        self.places: dict[Value, View] = {}
        self.copies: list[tuple[View, View, Value]] = []

    @staticmethod
    def _parameter(name: str, value: Value, length: Expr | None) -> Buffer:
        shape: tuple[int | Expr, ...] = value.type.storage_shape  # type: ignore[assignment]
        if length is None:
            return Buffer(name, value.dtype, (1, *shape))
        known = b.constant_value(length)
        return Buffer(name, value.dtype, (length if known is None else int(known), *shape[1:]))

    def write(self) -> StepsKernel:
        """Write the kernel."""
        steps, body = self.steps, self.body
        chunks = steps.batch // steps.tile
        with body.loop(b.index(chunks), "chunk", LoopKind.PARALLEL) as chunk:
            row = body.let("row", b.mul(chunk, steps.tile))
            carries = self._carries(row)
            scratch = [self._scratch(group.workspaces) for group in self.lowered]
            between = self._between()
            with body.loop(self.length, "t") as t:
                self._step(t, row, carries, between, scratch)
            last = body.let("last", b.rem(self.length, 2))
            for carry, result, value in zip(
                carries, self.results, steps.body.outputs, strict=False
            ):
                target = self._rows(result, b.index(0), row, value)
                self._copy(target, self._rows(carry, last, None, value), value)
        block = body.block()
        parameters = (*self.operands, *self.results)
        used = used_buffers(block)
        kept = tuple(i for i, memory in enumerate(parameters) if memory in used)
        buffers = tuple(parameters[i] for i in kept)
        scalars = tuple(
            sorted(used_variables(block, buffers) - _bound(block), key=lambda var: var.name)
        )
        kernel = Kernel("scan", buffers, scalars, block, NOTE)
        return StepsKernel(kernel, kept, chunks)

    def _carries(self, row: Expr) -> list[Buffer]:
        found = []
        for init, value in zip(self.operands, self.steps.body.outputs[: self.count], strict=False):
            carry = self._local("carry", value.dtype, (2, *value.shape))
            source = self._rows(init, b.index(0), row, value)
            self._copy(self._rows(carry, b.index(0), None, value), source, value)
            found.append(carry)
        return found

    def _scratch(self, sizes: Iterable[int]) -> list[View]:
        return [View(self._local("scratch", uint8, (size,)), (b.index(0),)) for size in sizes]

    def _between(self) -> dict[Value, Buffer]:
        """Return local memory for what no output of the body holds."""
        kept = set(map(_root, self.steps.body.outputs))
        made = [v for node in self.steps.groups for v in node.results if v not in kept]
        return {v: self._local("between", v.dtype, (1, *v.shape)) for v in made}

    def _local(self, stem: str, dtype: DType, shape: Sequence[object]) -> Buffer:
        return self.body.alloc(stem, dtype, tuple(shape), Scope.LOCAL)  # type: ignore[arg-type]

    def _step(
        self,
        t: Var,
        row: Expr,
        carries: Sequence[Buffer],
        between: Mapping[Value, Buffer],
        scratch: Sequence[Sequence[View]],
    ) -> None:
        """Write one step: the calls of all groups, and copies of what stands in two places."""
        body, graph = self.body, self.steps.body
        backwards = self.steps.node.attributes["reverse"]
        at = body.let("at", b.sub(b.sub(self.length, 1), t) if backwards else t)
        now = body.let("now", b.rem(t, 2))
        following = body.let("next", b.sub(1, now))
        places = {v: self._rows(memory, b.index(0), None, v) for v, memory in between.items()}
        for i, entry in enumerate(graph.inputs):
            where = self._input(i, entry, at, now, row, carries)
            places[entry.value] = where
        copies = []
        for i, value in enumerate(graph.outputs):
            target = self._output(i, value, at, following, row, carries)
            if _root(value) in places:
                copies.append((target, value))
            else:
                places[_root(value)] = target
        made = iter(zip(self.lowered, scratch, strict=True))
        for group in graph.nodes:
            if group.op == "reshape":
                places[group.results[0]] = places[group.operands[0]]
                continue
            lowered, workspaces = next(made)
            views = {
                Part.CAPTURE: [places[v] for v in group.operands],
                Part.OUTPUT: [places[v] for v in group.results],
                Part.WORKSPACE: list(workspaces),
            }
            for call in lowered.calls:
                buffers = tuple(views[ref.part][ref.position] for ref in call.operands)
                body.add(Call(call.kernel.name, buffers, call.scalars))
        for target, value in copies:
            self._copy(target, places[value], value)

    def _input(
        self,
        position: int,
        entry: GraphInput,
        at: Expr,
        now: Expr,
        row: Expr,
        carries: Sequence[Buffer],
    ) -> View:
        value, memory = entry.value, self.operands[position]
        if position < self.count:
            return self._rows(carries[position], now, None, value)
        elements = self.steps.node.attributes["elements"]
        first = at if position < self.count + elements else b.index(0)
        if value in self.steps.rows:
            return self._rows(memory, first, row, value)
        return View(memory, (first, *(b.index(0) for _ in memory.shape[1:])))

    def _output(
        self,
        position: int,
        value: Value,
        at: Expr,
        following: Expr,
        row: Expr,
        carries: Sequence[Buffer],
    ) -> View:
        if position < self.count:
            return self._rows(carries[position], following, None, value)
        return self._rows(self.results[position], at, row, value)

    def _rows(self, memory: Buffer, first: Expr, row: Expr | None, value: Value) -> View:
        """Return the rows of a tile in the part `first` of a buffer, from the first row if None."""
        rest = [b.index(0) for _ in value.shape[1:]]
        lead = [] if not value.shape else [b.index(0) if row is None else row]
        return View(memory, (first, *lead, *rest))

    def _copy(self, target: View, source: View, value: Value) -> None:
        extents = tuple(b.index(size) for size in value.shape)  # type: ignore[arg-type]
        self.body.add(Copy(target, source, (b.index(1), *extents)))


def _bound(block: Block) -> set[Var]:
    """Return the variables that a block binds itself."""
    return {var for statement in walk(block) for var in bound_variables(statement)}
