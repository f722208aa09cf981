"""Real Fourier transforms of long rows, forwards and back, as many rows at a time as a vector has.

    parallel chunk                     some groups of rows, a vector of them each
      for group in chunk
        squares of the rows, turned    memory: for each element the vector of the rows
        [pairs of a spectrum]          the spectrum of the half transform, backwards
        for radix                      one pass over memory each, into another memory
          for p, for q                 load `radix` complex elements; codelet; roots; store
        [pairs of a spectrum]          the spectrum of the whole transform, forwards
        squares, turned                the rows of the result

A length with a large prime factor is a convolution: its passes run forwards, and then back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Expr, LoopKind, Scope
from frame.codegen.schedules.access import Reader
from frame.codegen.schedules.cpu.chunks import remaining
from frame.codegen.schedules.cpu.copy_rows import Element, Parts, elements_of, with_views
from frame.codegen.schedules.cpu.fourier_codelets import Codelets, Complex
from frame.codegen.schedules.cpu.gemm_pack import write_transposed
from frame.codegen.schedules.group import Group, KernelCall
from frame.codegen.schedules.scalar_rules import compute_dtype
from frame.codegen.schedules.sizes import product
from frame.core import config
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType
from frame.core.shapes import Size
from frame.core.targets import TargetDescription
from frame.ir.graph import Graph, Node
from frame.ops.fourier_tables import Transform, plan_of

NOTE = __doc__.split("\n\n")[1]
_LOCAL = 3 << 16  # bytes of memory that a chunk has on its stack, at most
_CHUNK = 1 << 13  # elements of a chunk: some ten microseconds of work
_CHUNKS = 16  # chunks that have their memory in a workspace, at most


def _anchor(body: Graph) -> Node:
    return next(node for node in body.nodes if node.op == "fourier_rows")


def _batch(node: Node) -> tuple[Size, ...]:
    inverse = node.attributes["inverse"]
    return node.operands[0].shape[: -2 if inverse else -1]


def _points(plan: Transform) -> int:
    """Return the complex elements of a memory: the whole spectrum of a half has one more."""
    return max(plan.points, plan.length + 1)


def _memory_bytes(node: Node, target: TargetDescription) -> int:
    dtype = compute_dtype(node.operands[0].dtype)
    plan = plan_of(node.attributes["size"])
    return 4 * _points(plan) * target.lanes(dtype) * dtype.itemsize


def _most_chunks(node: Node, target: TargetDescription) -> int:
    """Return how many chunks have a memory: no more than there are groups of rows, where known."""
    rows = product(_batch(node))
    if not isinstance(rows, int):
        return _CHUNKS
    return max(1, min(_CHUNKS, -(-rows // target.lanes(compute_dtype(node.operands[0].dtype)))))


def workspaces(body: Graph, target: TargetDescription) -> tuple[Size, ...]:
    """Return the bytes of the memories of all chunks, where they are too large for the stack."""
    node = _anchor(body)
    size = _memory_bytes(node, target)
    return () if size <= _LOCAL else (_most_chunks(node, target) * size,)


def lower(group: Group) -> tuple[KernelCall, ...]:
    """Return the one kernel."""
    return (_Rows(group).write(),)


@dataclass(frozen=True, slots=True)
class _Memory:
    """Complex elements of a vector of rows: [part, real or imaginary part of an element, lane].

    Where `swapped`, real and imaginary parts are taken for each other: a transform of such a memory
    is the inverse of it.
    """

    buffer: Buffer
    prefix: tuple[Expr, ...]
    part: int
    lanes: int
    swapped: bool = False

    def place(self, position: Expr, lanes: Expr | None = None) -> list[Expr]:
        """Return where the real numbers at a position, counted through all pairs, lie."""
        lanes = b.ramp(b.index(0), self.lanes) if lanes is None else lanes
        return [*self.prefix, b.index(self.part), position, lanes]

    def _sides(self, element: Expr) -> list[list[Expr]]:
        first = b.mul(element, 2)
        return [self.place(b.add(first, int(side != self.swapped))) for side in (0, 1)]

    def load(self, body: b.Body, element: Expr) -> Complex:
        """Return a complex element."""
        real, imaginary = (b.load(self.buffer, place) for place in self._sides(element))
        return body.let("re", real), body.let("im", imaginary)

    def store(self, body: b.Body, element: Expr, value: Complex) -> None:
        """Write a complex element."""
        for place, part in zip(self._sides(element), value, strict=True):
            body.store(self.buffer, place, part)


class _Rows:
    """Writes the kernel of one transform."""

    def __init__(self, group: Group) -> None:
        node = _anchor(group.body)
        self.node, self.plan = node, plan_of(node.attributes["size"])
        self.inverse = bool(node.attributes["inverse"])
        (source, table), (result,) = node.operands, node.results
        self.dtype: DType = compute_dtype(source.dtype)
        self.lanes = group.target.lanes(self.dtype)
        self.most_chunks = _most_chunks(node, group.target)
        batch = _batch(node)
        read, written = (Parts(batch, (), v.shape[len(batch) :]) for v in (source, result))
        viewed = with_views(group, source, read, written)
        self.element: Element = elements_of(viewed, source, read)
        self.taken, self.given = (math.prod(map(int, part.inner)) for part in (read, written))  # type: ignore[arg-type]
        self.rows = viewed.extent(product(batch))
        self.table = table
        self.group = viewed.with_buffers(workspaces=tuple(map(self._shaped, group.workspaces)))
        self.codelets = Codelets(group.target.fma, self.dtype, self.lanes)

    def _shape(self) -> tuple[int, int, int]:
        return (2, 2 * _points(self.plan), self.lanes)

    def _shaped(self, memory: Buffer) -> Buffer:
        shape = (self.most_chunks, *self._shape())
        return Buffer(memory.name, self.dtype, shape, (), Scope.WORKSPACE)

    def write(self) -> KernelCall:
        """Write the kernel."""
        body = b.Body()
        groups = b.ceil_div(self.rows, self.lanes)
        count: Expr = b.index(max(1, self._grain() // (self.plan.size * self.lanes)))
        if self.group.workspaces:
            count = b.max_(count, b.ceil_div(groups, self.most_chunks))
        chunks = b.ceil_div(groups, count)
        with body.loop(chunks, "chunk", LoopKind.PARALLEL) as chunk:
            first = body.let("first", b.mul(chunk, count))
            memories = self.memories(body, chunk)
            with body.loop(remaining(groups, first, count), "group") as position:
                row = body.let("row", b.mul(b.add(first, position), self.lanes))
                self.write_group(body, row, *memories)
        return self.group.call("", body.block(), chunks, NOTE)

    def _grain(self) -> int:
        return config.get("FRAME_GRAIN") or _CHUNK

    def memories(self, body: b.Body, chunk: Expr) -> tuple[_Memory, _Memory]:
        """Return the two memories of a chunk."""
        prefix: tuple[Expr, ...] = (chunk,) if self.group.workspaces else ()
        if self.group.workspaces:
            buffer = self.group.workspaces[0]
        else:
            buffer = body.alloc("memory", self.dtype, self._shape(), Scope.LOCAL)
        first, second = (_Memory(buffer, prefix, part, self.lanes) for part in (0, 1))
        return first, second

    def write_group(self, body: b.Body, row: Expr, first: _Memory, second: _Memory) -> None:
        """Transform a vector of rows."""
        spoiled = self.read_rows(body, row, first)
        if self.inverse:
            found = self.transformed(body, *self.spectrum_halved(body, first, second), True)
        else:
            found = self.transformed(body, first, second, False)
            found = self.spectrum_doubled(body, *found)
        self.write_rows(body, row, found[0], spoiled)

    # --- rows to vectors and back ----------------------------------------------------------------

    def read_rows(self, body: b.Body, row: Expr, memory: _Memory) -> Expr:
        """Read rows; return 0 for each, NaN where it holds a number that is not finite.

        The last group reads its last row again in place of those that are not there.
        """
        single = not self.inverse and not self.plan.is_halved
        last = body.let("last", b.sub(self.rows, 1))

        def read(position: Expr, lane: Expr) -> Expr:
            return self.element(body, b.min_(b.add(row, lane), last), b.index(0), position)

        def save(position: Expr, lanes: Expr, value: Expr) -> None:
            place = b.mul(position, 2) if single else position
            body.store(memory.buffer, memory.place(place, lanes), value)

        taken, lanes = b.index(self.taken), b.index(self.lanes)
        write_transposed(body, read, save, taken, lanes, self.lanes)
        spoiled = self._spoiled(body, memory, 2 if single else 1)
        if single:
            self._clear(body, memory, 0, self.plan.length, (1,))
        elif self.inverse:
            self._clear(body, memory, self.taken // 2, self.plan.size // 2 + 1, (0, 1))
        return spoiled

    def _spoiled(self, body: b.Body, memory: _Memory, step: int) -> Expr:
        zero = b.broadcast(b.const(0.0, self.dtype), self.lanes)
        with body.fold(b.index(self.taken), [zero], "k") as folding:
            value = b.load(memory.buffer, memory.place(b.mul(folding.index, step)))
            folding.next = [b.add(folding.values[0], b.mul(value, zero))]
        return folding.results[0]

    def _clear(
        self, body: b.Body, memory: _Memory, start: int, stop: int, sides: Sequence[int]
    ) -> None:
        """Write zeros to complex elements."""
        if start >= stop:
            return
        zero = b.broadcast(b.const(0.0, self.dtype), self.lanes)
        with body.loop(b.index(stop - start), "k") as k:
            first = b.mul(b.add(k, start), 2)
            for side in sides:
                body.store(memory.buffer, memory.place(b.add(first, side)), zero)

    def write_rows(self, body: b.Body, row: Expr, memory: _Memory, spoiled: Expr) -> None:
        """Write the rows of the result; those of the last group that are there one by one."""
        single = self.inverse and not self.plan.is_halved
        target = self.group.outputs[0]
        marks = body.alloc("spoiled", self.dtype, (self.lanes,), Scope.LOCAL)
        body.store(marks, [b.ramp(b.index(0), self.lanes)], spoiled)

        def read(lane: Expr, position: Expr) -> Expr:
            place = b.mul(position, 2) if single else position
            value = b.load(memory.buffer, memory.place(place, lane))
            return b.add(value, b.load(marks, [lane]))

        def save(lane: Expr, position: Expr, value: Expr) -> None:
            place = [b.add(row, lane), b.index(0), position]
            body.store(target, place, b.cast(value, target.dtype))

        given = b.index(self.given)
        there = body.let("there", remaining(self.rows, row, self.lanes))
        with body.when(b.eq(there, self.lanes)):
            write_transposed(body, read, save, b.index(self.lanes), given, self.lanes)
        with body.otherwise(), body.loop(there, "lane") as lane, body.loop(given, "k") as k:
            save(lane, k, read(lane, k))

    # --- the spectrum of a real sequence and that of its pairs ------------------------------------

    def spectrum_doubled(
        self, body: b.Body, source: _Memory, target: _Memory
    ) -> tuple[_Memory, _Memory]:
        """Turn the spectrum Z of z[j] = x[2j] + i x[2j + 1] into that of x."""
        if not self.plan.is_halved:
            return source, target
        length, half = self.plan.length, b.const(0.5, self.dtype)
        zero = b.broadcast(b.const(0.0, self.dtype), self.lanes)
        real, imaginary = source.load(body, b.index(0))
        target.store(body, b.index(0), (b.add(real, imaginary), zero))
        target.store(body, b.index(length), (b.sub(real, imaginary), zero))
        if length % 2 == 0:
            real, imaginary = source.load(body, b.index(length // 2))
            target.store(body, b.index(length // 2), (real, b.neg(imaginary)))
        with body.loop(b.index((length - 1) // 2), "k") as position:
            k = body.let("k", b.add(position, 1))
            mirror = body.let("mirror", b.sub(length, k))
            even, odd = self._parts(body, source.load(body, k), source.load(body, mirror), half)
            odd = odd[1], b.neg(odd[0])  # over i
            turned = self.codelets.times(body, odd, self._root(body, k, forward=True))
            target.store(body, k, self.codelets.plus(body, even, turned))
            real, imaginary = self.codelets.minus(body, even, turned)
            target.store(body, mirror, (real, b.neg(imaginary)))
        return target, source

    def _parts(
        self, body: b.Body, one: Complex, other: Complex, scale: Expr
    ) -> tuple[Complex, Complex]:
        """Return (one + conj other) * scale and (one - conj other) * scale."""
        scale = b.broadcast(scale, self.lanes)
        conjugate = other[0], b.neg(other[1])
        total = self.codelets.plus(body, one, conjugate)
        difference = self.codelets.minus(body, one, conjugate)
        return self.codelets.scaled(body, total, scale), self.codelets.scaled(
            body, difference, scale
        )

    def spectrum_halved(
        self, body: b.Body, source: _Memory, target: _Memory
    ) -> tuple[_Memory, _Memory]:
        """Turn the spectrum of x into that of its pairs, or write out all of it; over `size`."""
        scale = b.const(1.0 / self.plan.size, self.dtype)
        if not self.plan.is_halved:
            self._mirrored(body, source, target, scale)
            return target, source
        length = self.plan.length
        wide = b.broadcast(scale, self.lanes)
        (first, _), (last, _) = (source.load(body, b.index(k)) for k in (0, length))
        ends = b.add(first, last), b.sub(first, last)
        target.store(body, b.index(0), self.codelets.scaled(body, ends, wide))
        if length % 2 == 0:
            real, imaginary = source.load(body, b.index(length // 2))
            middle = b.add(real, real), b.neg(b.add(imaginary, imaginary))
            target.store(body, b.index(length // 2), self.codelets.scaled(body, middle, wide))
        with body.loop(b.index((length - 1) // 2), "k") as position:
            k = body.let("k", b.add(position, 1))
            mirror = body.let("mirror", b.sub(length, k))
            even, odd = self._parts(body, source.load(body, k), source.load(body, mirror), scale)
            turned = self.codelets.times(body, odd, self._root(body, k, forward=False))
            turned = b.neg(turned[1]), turned[0]  # times i
            target.store(body, k, self.codelets.plus(body, even, turned))
            real, imaginary = self.codelets.minus(body, even, turned)
            target.store(body, mirror, (real, b.neg(imaginary)))
        return target, source

    def _mirrored(self, body: b.Body, source: _Memory, target: _Memory, scale: Expr) -> None:
        """Write the spectrum of an odd number of real elements, over it, with its other half."""
        length, wide = self.plan.length, b.broadcast(scale, self.lanes)
        zero = b.broadcast(b.const(0.0, self.dtype), self.lanes)
        real, _ = self.codelets.scaled(body, source.load(body, b.index(0)), wide)
        target.store(body, b.index(0), (real, zero))
        with body.loop(b.index(length // 2), "k") as position:
            k = body.let("k", b.add(position, 1))
            real, imaginary = self.codelets.scaled(body, source.load(body, k), wide)
            target.store(body, k, (real, imaginary))
            target.store(body, b.sub(length, k), (real, b.neg(imaginary)))

    def _root(self, body: b.Body, row: Expr, forward: bool) -> Complex:
        """Return a row of the table as vectors, conjugated for a forward transform."""
        reader = Reader(self.group, body)
        loads = (reader.load(self.table, (row, b.index(side))) for side in (0, 1))
        values = (b.broadcast(b.cast(value, self.dtype), self.lanes) for value in loads)
        real, imaginary = (body.let("w", value) for value in values)
        return (real, body.let("w", b.neg(imaginary))) if forward else (real, imaginary)

    # --- complex transforms -----------------------------------------------------------------------

    def transformed(
        self, body: b.Body, source: _Memory, target: _Memory, inverse: bool
    ) -> tuple[_Memory, _Memory]:
        """Transform `length` complex elements; return where they are, and the other memory."""
        pair = self._swapped((source, target), inverse)
        pair = self._convolved(body, *pair) if self.plan.padded else self._passes(body, *pair)
        return self._swapped(pair, inverse)

    def _swapped(self, pair: tuple[_Memory, _Memory], swap: bool) -> tuple[_Memory, _Memory]:
        """Return two memories with their parts taken for each other."""
        first, second = (
            _Memory(m.buffer, m.prefix, m.part, m.lanes, m.swapped != swap) for m in pair
        )
        return first, second

    def _passes(self, body: b.Body, source: _Memory, target: _Memory) -> tuple[_Memory, _Memory]:
        span, stride = self.plan.points, 1
        for radix in self.plan.radices:
            self._pass(body, source, target, (radix, span // radix, stride))
            source, target = target, source
            span, stride = span // radix, stride * radix
        return source, target

    def _pass(
        self, body: b.Body, source: _Memory, target: _Memory, sizes: tuple[int, int, int]
    ) -> None:
        """Write one pass: `count` sets of roots, each for `stride` sets of `radix` elements."""
        radix, count, stride = sizes
        with body.loop(b.index(count), "p") as p:
            roots = []
            for k in range(1, radix if count > 1 else 1):
                row = b.add(b.mul(p, k * stride * self.plan.step), self.plan.offset)
                roots.append(self._root(body, body.let("row", row), forward=True))
            read = body.let("read", b.mul(p, stride))
            written = body.let("written", b.mul(p, radix * stride))
            with body.loop(b.index(stride), "q") as q:
                values = [
                    source.load(body, b.add(b.add(read, q), k * count * stride))
                    for k in range(radix)
                ]
                for k, value in enumerate(self.codelets.transformed(body, values)):
                    if k and roots:
                        value = self.codelets.times(body, value, roots[k - 1])
                    target.store(body, b.add(b.add(written, q), k * stride), value)

    def _convolved(self, body: b.Body, source: _Memory, target: _Memory) -> tuple[_Memory, _Memory]:
        """Transform by Bluestein's convolution."""
        plan = self.plan
        self._multiply(body, source, source, (plan.chirp, plan.length))
        self._clear(body, source, plan.length, plan.padded, (0, 1))
        source, target = self._passes(body, source, target)
        self._multiply(body, source, source, (plan.chirp + plan.length, plan.padded))
        pair = self._passes(body, *self._swapped((source, target), True))
        source, target = self._swapped(pair, True)
        self._multiply(body, source, source, (plan.chirp, plan.length))
        return source, target

    def _multiply(
        self, body: b.Body, source: _Memory, target: _Memory, rows: tuple[int, int]
    ) -> None:
        """Multiply complex elements by rows of the table."""
        first, count = rows
        with body.loop(b.index(count), "k") as k:
            root = self._root(body, body.let("row", b.add(k, first)), forward=False)
            target.store(body, k, self.codelets.times(body, source.load(body, k), root))
