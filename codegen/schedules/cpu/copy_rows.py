"""Copies of rows: the loops that concat and scatter share.

A value is seen as [outer, middle, inner]: axes before an axis, the axis (or the axes in its place),
and axes behind it. Captures are row-major, so this view costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Expr
from frame.codegen.schedules.access import Reader
from frame.codegen.schedules.cpu.chunks import unflatten
from frame.codegen.schedules.group import Group
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.codegen.schedules.sizes import product
from frame.core.dataclass import dataclass
from frame.core.shapes import Shape, Size
from frame.ir.graph import Value

Element = Callable[[b.Body, Expr, Expr, Expr], Expr]
"""Returns the element at (outer, middle, inner), written into a scope."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A shape cut into the axes before, in place of, and behind an axis."""

    outer: Shape
    middle: Shape
    inner: Shape

    @property
    def sizes(self) -> tuple[Size, Size, Size]:
        """The number of elements of each part."""
        return product(self.outer), product(self.middle), product(self.inner)


def cut(shape: Shape, axis: int, count: int = 1) -> Parts:
    """Cut a shape at the `count` axes from `axis` on."""
    return Parts(shape[:axis], shape[axis : axis + count], shape[axis + count :])


def reshaped(group: Group, memory: Buffer, parts: Parts) -> Buffer:
    """Return a row-major buffer with one dimension for each part."""
    extents = group.extents(parts.sizes)
    shape = b.buffer("shape", memory.dtype, extents).shape
    return Buffer(memory.name, memory.dtype, shape, (), memory.scope)


def with_views(group: Group, value: Value, parts: Parts, results: Parts) -> Group:
    """Return the group with `value`, if it is a capture, and its one output seen as parts."""
    captures = list(group.captures)
    if value.node is None:
        position = group.body.input_values.index(value)
        captures[position] = reshaped(group, captures[position], parts)
    outputs = (reshaped(group, group.outputs[0], results),)
    return group.with_buffers(captures=tuple(captures), outputs=outputs)


def elements_of(group: Group, value: Value, parts: Parts) -> Element:
    """Return how elements of `value` are read; its capture must have been seen as parts."""
    dtype = compute_dtype(value.dtype)
    if value.node is None:
        memory = group.captures[group.body.input_values.index(value)]
        return lambda body, *index: b.cast(b.load(memory, index), dtype)

    def element(body: b.Body, *index: Expr) -> Expr:
        places: list[Expr] = []
        for shape, i in zip((parts.outer, parts.middle, parts.inner), index, strict=True):
            places.extend(unflatten(i, group.extents(shape)))
        return Reader(group, body).load(value, tuple(places))

    return element
