"""From a planned graph of groups to a loop module: kernels by the schedules, and one entry.

The entry launches the kernels of each group in order. A scan becomes a loop in it, a cond a branch;
their bodies are lowered in place, over the views of one iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import (
    Block,
    Buffer,
    ConstantData,
    Copy,
    Entry,
    Expr,
    For,
    If,
    Kernel,
    Launch,
    LoopKind,
    Module,
    Place,
    Placement,
    Return,
    Stmt,
    Var,
    View,
    While,
)
from frame.codegen.loops.printer import kernel_key
from frame.codegen.recurrence import Lowered as LoweredSteps
from frame.codegen.recurrence import serial, tile_steps, write_steps
from frame.codegen.schedules.cpu.vectors import vectorise_loops
from frame.codegen.schedules.group import KernelCall, Part, Ref, make_group
from frame.codegen.schedules.lifting import families
from frame.codegen.schedules.registry import schedule_of, variant_of
from frame.codegen.schedules.sizes import size_expr
from frame.codegen.schedules.work import Work, group_work
from frame.core.dataclass import dataclass
from frame.core.dtypes import bool_, uint8
from frame.core.errors import InternalError
from frame.core.shapes import Shape, Size
from frame.core.targets import TargetDescription
from frame.ir import memory
from frame.ir.graph import Graph, Node, TensorType, Value
from frame.ir.hashing import structural_hash
from frame.ir.memory import MemoryPlan, Space

_COPY_BYTES = 1 << 16  # bytes of one chunk of a copy
_COPY_LANES = 32


@dataclass(frozen=True, slots=True)
class CheckSite:
    """One check of indices: the node that checks and the size that the indices must stay below.

    `origin` is the declared node behind it: for a node in a body, the outermost node around it.
    """

    node: Node
    limit: Size
    origin: int | None


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """One launch in the text of the entry: its kernel, the nodes behind it, and its work."""

    kernel: str
    nodes: tuple[Node, ...]
    work: Work


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """A loop module, and what its sites and launches mean."""

    module: Module
    checks: tuple[CheckSite, ...]
    launches: tuple[LaunchSite, ...]


def control_workspaces(node: Node) -> tuple[Size, ...]:
    """Return the scratch bytes of a control-flow node: two buffers a carry of a scan; one a carry
    of a while, and its condition."""
    carries = node.results[: node.attributes.get("carries", 0)]
    sizes = tuple(_bytes(value) for value in carries)
    if node.op == "scan":
        return tuple(size * 2 for size in sizes)
    return (*sizes, 1) if node.op == "while" else ()


def _types(node: Node) -> tuple[TensorType, ...]:
    return tuple(result.type for result in node.results)


def _bytes(value: Value) -> Size:
    return value.type.nbytes


def lower_piece(
    graph: Graph, plan: MemoryPlan, symbols: Sequence[str], target: TargetDescription
) -> Lowered:
    """Return the loop module of a piece.

    Args:
        graph: groups, control flow, constants and reshapes, in execution order.
        plan: its memory plan.
        symbols: the names of the symbols, in the order in which the entry receives them.
        target: what to schedule for.

    Raises:
        UnimplementedError: carrying the nodes that no schedule takes.
    """
    return _Lowering(graph, plan, symbols, target).run()


@dataclass(frozen=True, slots=True, eq=False)
class _Scope:
    """One graph that is being lowered, and where its values are."""

    graph: Graph
    plan: MemoryPlan
    table: int  # the first entry of this plan in the offset table
    constants: int  # the first constant of this graph in the module
    inputs: tuple[View, ...] = ()  # where the inputs and outputs of a body are
    outputs: tuple[View, ...] = ()
    outer: Node | None = None  # the outermost node of control flow around this graph


@dataclass(frozen=True, slots=True)
class _Scheduled:
    """What the schedule of a group made of it: calls of kernels of the module, bytes of workspaces,
    (node, limit) of its checks, and the work of a run."""

    calls: tuple[KernelCall, ...]
    workspaces: tuple[Size, ...]
    checks: tuple[tuple[Node, Size], ...]
    work: Work


class _Lowering:
    """The state of one lowering."""

    def __init__(
        self, graph: Graph, plan: MemoryPlan, symbols: Sequence[str], target: TargetDescription
    ) -> None:
        self.graph, self.plan, self.target = graph, plan, target
        self.symbols: Mapping[str, Var] = {name: Var(f"size_{name}") for name in symbols}
        self.statements: list[Stmt] = []
        self.placements: dict[tuple[object, ...], Placement] = {}
        self.kernels: dict[str, Kernel] = {}
        self.names: dict[str, int] = {}
        self.scheduled: dict[tuple[str, str, str, bool, bool], _Scheduled] = {}
        self.families = families(graph.nodes)
        self.constants: list[ConstantData] = []
        self.checks: list[CheckSite] = []
        self.launches: list[LaunchSite] = []
        self.reserved = len(plan.static.offsets) if plan.static is not None else 0

    def run(self) -> Lowered:
        """Lower the whole piece."""
        scope = _Scope(self.graph, self.plan, 0, self._constants(self.graph))
        self._lower_graph(scope)
        entry = Entry(
            "frame_entry",
            tuple(self.placements.values()),
            tuple(self.symbols.values()),
            tuple(self.statements),
        )
        module = Module(self.graph.name, tuple(self.kernels.values()), entry, tuple(self.constants))
        return Lowered(module, tuple(self.checks), tuple(self.launches))

    def _constants(self, graph: Graph) -> int:
        first = len(self.constants)
        for node in graph.nodes:
            if node.op == "constant":
                data = node.attributes["value"].array.tobytes()
                self.constants.append(ConstantData(f"constant{len(self.constants)}", data))
        return first

    # --- where values are ----------------------------------------------------------------------

    def _view(self, scope: _Scope, value: Value, place: memory.Place) -> View:
        """The memory of a value, as the entry sees it."""
        return self._at(scope, place, value.dtype, value.type.storage_shape)

    def _at(self, scope: _Scope, place: memory.Place, dtype: object, shape: Shape) -> View:
        if place.offset != 0:
            raise InternalError(f"the plan put a value at {place}, inside of another one")
        if place.space is Space.INPUT and scope.inputs:
            return scope.inputs[place.index]
        if place.space is Space.OUTPUT and scope.outputs:
            return scope.outputs[place.index]
        kind, slot = self._slot(scope, place)
        key = (kind, slot, dtype, shape)
        if key not in self.placements:
            extents = tuple(
                size if isinstance(size, int) else size_expr(size, self.symbols) for size in shape
            )
            buffer = Buffer(f"{kind}{slot}_{len(self.placements)}", dtype, extents)  # type: ignore[arg-type]
            self.placements[key] = Placement(buffer, kind, slot)
        buffer = self.placements[key].buffer
        return View(buffer, tuple(b.index(0) for _ in buffer.shape))

    def _slot(self, scope: _Scope, place: memory.Place) -> tuple[Place, int]:
        if place.space is Space.INPUT:
            return Place.ARGUMENT, place.index
        if place.space is Space.OUTPUT:
            return Place.ARGUMENT, len(scope.graph.inputs) + place.index
        if place.space is Space.CONSTANT:
            return Place.CONSTANT, scope.constants + place.index
        entry = scope.table + place.index
        if self.plan.static is not None:
            return Place.ARENA, self.plan.static.offsets[entry]
        return Place.TABLE, entry

    def _slot_view(self, scope: _Scope, slot: int, dtype: object, shape: Shape) -> View:
        return self._at(scope, memory.Place(Space.ARENA, slot), dtype, shape)

    # --- graphs ----------------------------------------------------------------------------------

    def _lower_graph(self, scope: _Scope) -> None:
        places = scope.plan.places_of(scope.graph)
        views = {value: self._view(scope, value, place) for value, place in places.items()}
        for step, node in enumerate(scope.graph.nodes):
            if step == scope.plan.status_step:
                self.statements.append(Return())
            lower = _NODES.get(node.op)
            if lower is not None:
                lower(self, scope, step, node, views)
        if scope.plan.status_step == len(scope.graph.nodes):
            self.statements.append(Return())
        makers = {place: v.node for v, place in places.items() if v.node is not None}
        for copy in scope.plan.copies:
            self._copy_bytes(scope, copy, makers.get(copy.source))

    def _lower_group(
        self, scope: _Scope, step: int, node: Node, views: Mapping[Value, View]
    ) -> None:
        made = self._scheduled(node)
        slots = scope.plan.workspaces[step]
        scratch = [
            self._slot_view(scope, slot, uint8, (size,))
            for slot, size in zip(slots, made.workspaces, strict=True)
        ]
        operands = {
            Part.CAPTURE: [views[value] for value in node.operands],
            Part.OUTPUT: [views[value] for value in node.results],
            Part.WORKSPACE: scratch,
        }
        for position, call in enumerate(made.calls):
            last = position == len(made.calls) - 1
            self._launch(call, operands, node, made.work if last else Work())
        self.checks.extend(
            CheckSite(checked, limit, (scope.outer or checked).origin)
            for checked, limit in made.checks
        )

    def _scheduled(self, node: Node, inside: bool = False) -> _Scheduled:
        """Lower a group by its schedule, or take what an equal one was lowered to.

        Deep models repeat their layers, and to schedule a group takes far longer than to hash it.
        A group that checks indices has a number of its own in its kernels. `inside`: its kernels
        are called by another one, not launched.
        """
        family = self.families.get(node)
        body: Graph = node.attributes["body"] if family is None else family.body
        anchor: str = node.attributes["anchor"]
        schedule, variant = schedule_of(node), variant_of(node)
        key = anchor, variant, structural_hash(body), family is not None, inside
        if key in self.scheduled:
            return self.scheduled[key]
        sizes, checks = schedule.workspaces(body, self.target), schedule.checks(body)
        if family is not None:
            node = Node(node.op, node.operands, {"anchor": anchor, "body": body}, _types(node))
        group = make_group(node, self.target, self.symbols, sizes, len(self.checks) + 1)
        if family is not None:
            group = replace(group, scalars=family.scalars)
        calls = schedule.lower(group)
        if inside:
            calls = tuple(replace(call, kernel=serial(call.kernel)) for call in calls)
        calls = tuple(map(self._shared_call, calls))
        made = _Scheduled(calls, sizes, checks, group_work(node))
        if not checks:
            self.scheduled[key] = made
        return made

    def _shared_call(self, call: KernelCall) -> KernelCall:
        for helper in call.helpers:
            self._share_helper(helper)
        return replace(call, kernel=self._share(call.kernel))

    def _launch(
        self, call: KernelCall, operands: Mapping[Part, list[View]], node: Node, work: Work
    ) -> None:
        views = tuple(_operand(operands, ref) for ref in call.operands)
        body: Graph = node.attributes["body"]
        family = self.families.get(node)
        bound = {} if family is None else family.bound(body)
        scalars = tuple(bound.get(value, value) for value in call.scalars)
        self.statements.append(Launch(call.kernel.name, views, scalars, call.chunks))
        self.launches.append(LaunchSite(call.kernel.name, body.nodes, work))

    def _share(self, kernel: Kernel) -> Kernel:
        """Return an equal kernel that exists already, or add this one under a name of its own."""
        key = kernel_key(kernel)
        if key not in self.kernels:
            count = self.names[kernel.name] = self.names.get(kernel.name, 0) + 1
            name = kernel.name if count == 1 else f"{kernel.name}_{count}"
            self.kernels[key] = replace(kernel, name=name)
        return self.kernels[key]

    def _share_helper(self, helper: Kernel) -> None:
        """Add a kernel that others call by its name."""
        if self._share(helper).name != helper.name:
            raise InternalError(f"two different kernels are named {helper.name}")

    def _copy_bytes(self, scope: _Scope, copy: memory.Copy, maker: Node | None) -> None:
        """Launch a copy that the plan asks for at the end of a graph, of what `maker` made."""
        source = self._at(scope, copy.source, uint8, (copy.nbytes,))
        target = self._at(scope, copy.target, uint8, (copy.nbytes,))
        self._launch_copy(target, source, copy.nbytes, () if maker is None else (maker,))

    def _launch_copy(
        self, target: View, source: View, nbytes: Size, nodes: tuple[Node, ...] = ()
    ) -> None:
        kernel = self._share(_copy_kernel())
        length = size_expr(nbytes, self.symbols)
        chunks = b.ceil_div(length, _COPY_BYTES)
        self.statements.append(Launch(kernel.name, (target, source), (length,), chunks))
        self.launches.append(LaunchSite(kernel.name, nodes, Work(0, nbytes * 2)))

    # --- control flow ----------------------------------------------------------------------------

    def _nested(self, write: object) -> Block:
        outer, self.statements = self.statements, []
        write()  # type: ignore[operator]
        inner, self.statements = tuple(self.statements), outer
        return inner

    def _body_scope(
        self,
        scope: _Scope,
        step: int,
        attribute: str,
        node: Node,
        inputs: Sequence[View],
        outputs: Sequence[View],
    ) -> _Scope:
        index = next(
            i
            for i, body in enumerate(scope.plan.bodies)
            if body.node == step and body.attribute == attribute
        )
        graph: Graph = node.attributes[attribute]
        return _Scope(
            graph,
            scope.plan.bodies[index].plan,
            scope.table + scope.plan.body_table(index),
            self._constants(graph),
            tuple(inputs),
            tuple(outputs),
            scope.outer or node,
        )

    def _lower_cond(
        self, scope: _Scope, step: int, node: Node, views: Mapping[Value, View]
    ) -> None:
        predicate, *captures = (views[value] for value in node.operands)
        results = [views[value] for value in node.results]
        branches = [
            self._nested(
                lambda name=name: self._lower_graph(
                    self._body_scope(scope, step, name, node, captures, results)
                )
            )
            for name in ("then", "otherwise")
        ]
        condition = b.load(predicate.buffer, predicate.indices)
        self.statements.append(If(condition, *branches))

    def _lower_scan(
        self, scope: _Scope, step: int, node: Node, views: Mapping[Value, View]
    ) -> None:
        """Carries alternate between two buffers; elements and stacked results are views of step t.

        for t in length:  body(carry[t % 2], xs[t], captures) -> carry[1 - t % 2], ys[t]

        Where the batch can be cut into tiles, one kernel runs all steps of each instead.
        """
        if self._lower_steps(node, views):
            return
        carries, elements = node.attributes["carries"], node.attributes["elements"]
        operands = [views[value] for value in node.operands]
        results = [views[value] for value in node.results]
        length = size_expr(node.attributes["length"], self.symbols)
        pairs = [
            self._slot_view(scope, slot, value.dtype, (2, *value.shape))
            for slot, value in zip(scope.plan.workspaces[step], node.results, strict=False)
        ]
        for pair, init, value in zip(pairs, operands, node.results, strict=False):
            self._copy(_plane(pair, b.index(0), value.rank + 1), init, value)
        t = b.fresh("t")
        at: Expr = b.sub(b.sub(length, 1), t) if node.attributes["reverse"] else t
        parity = b.rem(t, 2)
        finals, stacks = node.results[:carries], node.results[carries:]
        xs = range(carries, carries + elements)
        inputs = _planes(pairs, parity, [value.rank + 1 for value in finals])
        inputs += [_plane(operands[i], at, node.operands[i].rank) for i in xs]
        inputs += operands[carries + elements :]
        outputs = _planes(pairs, b.sub(1, parity), [value.rank + 1 for value in finals])
        outputs += _planes(results[carries:], at, [value.rank for value in stacks])
        inner = self._body_scope(scope, step, "body", node, inputs, outputs)
        block = self._nested(lambda: self._lower_graph(inner))
        self.statements.append(For(LoopKind.SERIAL, t, length, block))
        last = b.rem(length, 2)
        for pair, result, value in zip(pairs, results, node.results, strict=False):
            self._copy(result, _plane(pair, last, value.rank + 1), value)

    def _lower_steps(self, node: Node, views: Mapping[Value, View]) -> bool:
        """Launch the kernel that runs all steps of the tiles of a scan, if it has one."""
        steps = tile_steps(node, self.target)
        if steps is None:
            return False
        made = [self._scheduled(group, inside=True) for group in steps.groups]
        lowered = [LoweredSteps(m.calls, m.workspaces) for m in made]  # type: ignore[arg-type]
        length = size_expr(node.attributes["length"], self.symbols)
        written = write_steps(steps, lowered, length)
        kernel = self._share(written.kernel)
        places = [*(views[v] for v in node.operands), *(views[v] for v in node.results)]
        buffers = tuple(places[i] for i in written.buffers)
        chunks = b.index(written.chunks)
        self.statements.append(Launch(kernel.name, buffers, kernel.scalars, chunks))
        nodes = tuple(n for group in steps.groups for n in group.attributes["body"].nodes)
        self.launches.append(LaunchSite(kernel.name, nodes, steps.work))
        return True

    def _lower_while(
        self, scope: _Scope, step: int, node: Node, views: Mapping[Value, View]
    ) -> None:
        """The carries are in the results; the body writes the next ones beside them."""
        carries = node.attributes["carries"]
        operands = [views[value] for value in node.operands]
        current = [views[value] for value in node.results]
        *slots, flag_slot = scope.plan.workspaces[step]
        following = [
            self._slot_view(scope, slot, value.dtype, value.shape)
            for slot, value in zip(slots, node.results, strict=True)
        ]
        flag = self._slot_view(scope, flag_slot, bool_, ())
        for result, init, value in zip(current, operands, node.results, strict=False):
            self._copy(result, init, value)
        captures = operands[carries:]
        test = self._body_scope(scope, step, "condition", node, [*current, *captures], [flag])
        body = self._body_scope(scope, step, "body", node, [*current, *captures], following)

        def iterate() -> None:
            self._lower_graph(body)
            for result, value, new in zip(current, node.results, following, strict=True):
                self._copy(result, new, value)
            self._lower_graph(test)

        self._lower_graph(test)
        self.statements.append(While(flag.buffer, self._nested(iterate)))

    def _copy(self, target: View, source: View, value: Value) -> None:
        """Copy a whole value between two places of its shape."""
        extents = [size_expr(size, self.symbols) for size in value.shape]
        ones = max(len(target.buffer.shape), len(source.buffer.shape)) - len(extents)
        if len(target.buffer.shape) == len(source.buffer.shape):
            self.statements.append(Copy(target, source, tuple([b.index(1)] * ones + list(extents))))
        else:
            self._launch_copy(target, source, _bytes(value))


def _plane(view: View, index: Expr, rank: int) -> View:
    """The part at `index` of the leading axis of a value of this rank.

    The value may be a plane itself: then its axes are the last ones of the buffer.
    """
    axis = len(view.indices) - rank
    place = list(view.indices)
    place[axis] = b.add(place[axis], index)
    return View(view.buffer, tuple(place))


def _planes(views: Sequence[View], index: Expr, ranks: Sequence[int]) -> list[View]:
    return [_plane(view, index, rank) for view, rank in zip(views, ranks, strict=True)]


def _operand(operands: Mapping[Part, list[View]], ref: Ref) -> View:
    return operands[ref.part][ref.position]


@cache
def _copy_kernel() -> Kernel:
    """A copy of `length` bytes in chunks."""
    length = Var("length")
    target = Buffer("target", uint8, (length,))
    source = Buffer("source", uint8, (length,))
    body = b.Body()
    with body.loop(b.ceil_div(length, _COPY_BYTES), "chunk", LoopKind.PARALLEL) as chunk:
        start = body.let("start", b.mul(chunk, _COPY_BYTES))
        extent = b.min_(b.index(_COPY_BYTES), b.sub(length, start))
        with body.loop(extent, "i", LoopKind.VECTOR) as i:
            body.store(target, [b.add(start, i)], b.load(source, [b.add(start, i)]))
    block = vectorise_loops(body.block(), _COPY_LANES)
    return Kernel("copy", (target, source), (length,), block, "copy bytes, a block a chunk")


_NODES = {
    "group": _Lowering._lower_group,
    "cond": _Lowering._lower_cond,
    "scan": _Lowering._lower_scan,
    "while": _Lowering._lower_while,
}
