"""The loops of an elementwise or reduction group: which axes run together, and in what order.

A dry run over the group notes how every buffer is indexed. Adjacent axes that every access either
walks in order or does not walk at all become one loop, and the buffers get one dimension for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Expr, Type, Var, fresh
from frame.codegen.schedules.access import AxisPart, Binding, Reader, Trace
from frame.codegen.schedules.group import Group, Index, buffers_of
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.codegen.schedules.sizes import product
from frame.core.dataclass import dataclass
from frame.core.shapes import Shape, Size
from frame.ir.graph import Node, Value
from frame.ops.record import Trait
from frame.ops.registry import lookup


@dataclass(frozen=True, slots=True)
class Run:
    """Adjacent axes of the domain that run as one loop; `size` is the product of their sizes."""

    axes: tuple[int, ...]
    size: Size
    reduced: bool


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
    """A group with buffers shaped for its loops.

    `reduced` holds the reduced axes of the domain; `stage` gives for each reduction, and for each
    value that depends on one, how many sweeps over the reduced axes come before it.
    """

    group: Group
    domain: Shape
    reduced: tuple[int, ...]
    runs: tuple[Run, ...]
    reductions: tuple[Node, ...]
    stage: Mapping[Value, int]

    @property
    def kept_runs(self) -> tuple[Run, ...]:
        """The runs that are not reduced, outermost first."""
        return tuple(run for run in self.runs if not run.reduced)

    @property
    def reduced_runs(self) -> tuple[Run, ...]:
        """The runs that are reduced, outermost first."""
        return tuple(run for run in self.runs if run.reduced)

    def index(self, loops: Mapping[Run, Expr]) -> Index:
        """Return the index of the domain for the values of its loops."""
        place: list[Expr] = [b.index(0)] * len(self.domain)
        for run, var in loops.items():
            if len(run.axes) == 1:
                place[run.axes[0]] = var
                continue
            for position, axis in enumerate(run.axes):
                name = fresh("part").name
                place[axis] = AxisPart(name, run=var, position=position, count=len(run.axes))
        return tuple(place)

    def index_of(self, value: Value, index: Index) -> Index:
        """Return the index of a value of the group, of the domain's shape or a reduced one."""
        if value.shape == self.domain:
            return index
        kept = [i for axis, i in enumerate(index) if axis not in self.reduced]
        if len(value.shape) == len(kept):
            return tuple(kept)
        return tuple(b.index(0) if axis in self.reduced else i for axis, i in enumerate(index))

    def is_full(self, value: Value) -> bool:
        """Whether a value has the shape of the domain, not a reduced one."""
        return not self.reductions or value.shape == self.domain


def make_nest(group: Group, domain: Shape, reduced: Sequence[int] = ()) -> Nest:
    """Analyse a group and return its loops."""
    axes = tuple(sorted(reduced))
    reductions = tuple(n for n in group.body.nodes if Trait.REDUCTION in lookup(n.op).traits)
    stage = _stages(group, reductions)
    plain = Nest(group, domain, axes, (), reductions, stage)
    trace, variables = _dry_run(plain)
    runs = _runs(domain, axes, trace, variables)
    return Nest(_reshaped(group, runs, trace, variables), domain, axes, runs, reductions, stage)


def _stages(group: Group, reductions: Sequence[Node]) -> dict[Value, int]:
    """The number of reductions in a row that each value waits for."""
    stage: dict[Value, int] = {}
    for node in group.body.nodes:
        level = max((stage.get(operand, 0) for operand in node.operands), default=0)
        level += node in reductions
        stage.update(dict.fromkeys(node.results, level))
    return stage


def _dry_run(nest: Nest) -> tuple[Trace, tuple[Expr, ...]]:
    variables: tuple[Expr, ...] = tuple(
        b.index(0) if size == 1 else fresh("axis") for size in nest.domain
    )
    trace = Trace()
    bindings: dict[Value, Binding] = {
        node.results[0]: _opaque(node.results[0]) for node in nest.reductions
    }
    reader = Reader(nest.group, b.Body(), bindings, trace=trace)
    for node in nest.reductions:
        reader.load(node.operands[0], variables)
    for position, output in enumerate(nest.group.body.outputs):
        index = nest.index_of(output, variables)
        reader.store(position, index, reader.load(output, index))
    return trace, variables


def _opaque(value: Value) -> Binding:
    element = Var("reduced", Type(compute_dtype(value.dtype)))
    return lambda index: element


def _runs(
    domain: Shape, reduced: tuple[int, ...], trace: Trace, variables: Sequence[Expr]
) -> tuple[Run, ...]:
    axes = [axis for axis, size in enumerate(domain) if size != 1]
    grouped: list[list[int]] = []
    for axis in axes:
        last = grouped[-1][-1] if grouped else None
        if last is not None and _together(last, axis, reduced, trace, variables):
            grouped[-1].append(axis)
        else:
            grouped.append([axis])
    return tuple(
        Run(tuple(run), product(domain[axis] for axis in run), run[0] in reduced) for run in grouped
    )


def _together(
    first: int, second: int, reduced: tuple[int, ...], trace: Trace, variables: Sequence[Expr]
) -> bool:
    """Whether every access walks the two axes one right after the other, or neither of them."""
    if (first in reduced) != (second in reduced):
        return False
    a, c = variables[first], variables[second]
    if any(use is a or use is c for use in trace.opaque):
        return False
    return all(_adjacent(index, a, c) for _, _, index in trace.accesses)


def _adjacent(index: Index, a: Expr, c: Expr) -> bool:
    places_a = [k for k, i in enumerate(index) if i is a]
    places_c = [k for k, i in enumerate(index) if i is c]
    return [k + 1 for k in places_a] == places_c


def _reshaped(group: Group, runs: Sequence[Run], trace: Trace, variables: Sequence[Expr]) -> Group:
    """Give the buffers one dimension for each run, and none for axes of size 1."""
    follows = {id(variables[axis]) for run in runs for axis in run.axes[1:]}
    shapes: dict[Value, Shape] = {}
    for value, sizes, index in trace.accesses:
        if value is not None:
            shapes[value] = _merged(sizes, index, follows)
    captures = _views(group, group.captures, group.body.input_values, shapes)
    outputs = _views(group, group.outputs, group.body.outputs, shapes)
    return group.with_buffers(captures=captures, outputs=outputs)


def _merged(sizes: Shape, index: Index, follows: set[int]) -> Shape:
    merged: list[Size] = []
    for size, i in zip(sizes, index, strict=True):
        if id(i) in follows:
            merged[-1] = merged[-1] * size
        else:
            merged.append(size)
    return tuple(merged)


def _views(
    group: Group, memories: Sequence[Buffer], values: Sequence[Value], shapes: Mapping[Value, Shape]
) -> tuple[Buffer, ...]:
    fallback = buffers_of(values, group.symbols, "unused")
    return tuple(
        Buffer(
            memory.name,
            memory.dtype,
            tuple(_plain(group, size) for size in shapes[value])
            if value in shapes
            else spare.shape,
        )
        for memory, value, spare in zip(memories, values, fallback, strict=True)
    )


def _plain(group: Group, size: Size) -> int | Expr:
    return size if isinstance(size, int) else group.extent(size)
