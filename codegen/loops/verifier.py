"""Check that loop IR means something: types, scopes, ranks, forms. A failure is a bug of frame.

The checks are tables, one row a class of expression or statement. Each expression node is looked at
once a kernel. Messages name the kernel, the statement (its position in each enclosing block, from
the outermost) and what was expected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from frame.codegen.loops import builder as b
from frame.codegen.loops import semantics
from frame.codegen.loops.ir import (
    INDEX,
    Alloc,
    Binary,
    BinaryOp,
    Bitcast,
    Block,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    Const,
    Copy,
    Entry,
    Expr,
    Extract,
    Fail,
    Fma,
    For,
    If,
    Kernel,
    Launch,
    Let,
    Load,
    LoopKind,
    Module,
    MulHigh,
    PairDot,
    Place,
    Prefetch,
    Ramp,
    Reduce,
    Return,
    Scope,
    Select,
    Shuffle,
    Stmt,
    Store,
    Type,
    Unary,
    Var,
    View,
    While,
)
from frame.codegen.loops.rewrites.parallelise import parallel_extent, parallel_loop
from frame.codegen.loops.traverse import Substitution, fold_dag, post_order, walk
from frame.core.dtypes import bfloat16, float32, float64, uint8, uint32
from frame.core.errors import InternalError

MAX_LANES = 64
MAX_LOCAL_BYTES = 256 * 1024
"""The most stack that one allocation takes."""
MAX_REGISTER_BYTES = 16 * 1024
"""The most bytes of one register buffer: 4 times the 64 registers of 64 bytes of a large target."""

REDUCTIONS = frozenset(
    {
        *(BinaryOp.ADD, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX),
        *(BinaryOp.MINIMUM, BinaryOp.MAXIMUM, BinaryOp.AND, BinaryOp.OR),
    }
)
_NAME = re.compile(r"[A-Za-z_][\w.$/-]*")
_SHIFTS = (BinaryOp.SHL, BinaryOp.SHR)


def verify_module(module: Module, lowered: bool = False) -> None:
    """Check a module: its kernels in order (callees first), its entry, its constants.

    `lowered` says that the text of a target comes next: no `vector` or `unroll` loop may be left,
    and register buffers have constant indices.

    Raises:
        InternalError: a rule of the loop IR is broken.
    """
    _unique([kernel.name for kernel in module.kernels], f"module {module.name}: kernel")
    _unique([constant.name for constant in module.constants], f"module {module.name}: constant")
    known: dict[str, Kernel] = {}
    for kernel in module.kernels:
        verify_kernel(kernel, lowered, known)
        known[kernel.name] = kernel
    _EntryChecker(module, known, lowered).run()


def verify_kernel(
    kernel: Kernel, lowered: bool = False, kernels: Mapping[str, Kernel] | None = None
) -> None:
    """Check one kernel; `kernels` are those that it may call (None: calls are not looked up).

    Raises:
        InternalError: a rule of the loop IR is broken.
    """
    checker = _Checker(f"kernel {kernel.name}", lowered, kernels)
    checker.name(kernel.name)
    for scalar in kernel.scalars:
        checker.expect(scalar.type == INDEX, f"scalar {scalar.name} must be {INDEX}")
        checker.bind(scalar)
    for memory in kernel.buffers:
        checker.parameter(memory)
    checker.body(kernel.body)


def _unique(names: Sequence[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if not _NAME.fullmatch(name):
            raise InternalError(f"{what} {name!r} is not a name")
        if name in seen:
            raise InternalError(f"{what} {name} is defined twice")
        seen.add(name)


class _Checker:
    """Checks one kernel or entry.

    Each variable and buffer gets the next number when it is bound and dies at the end of its block.
    An expression needs the latest of what it uses: if that is alive, so are the earlier ones that
    were visible with it, since blocks nest.
    """

    forbidden: tuple[type[Stmt], ...] = (While, Launch, Return)

    def __init__(self, where: str, lowered: bool, kernels: Mapping[str, Kernel] | None) -> None:
        self.where, self.lowered, self.kernels = where, lowered, kernels
        self.path: list[str] = []
        self.current: Stmt | None = None
        self.order: dict[Var | Buffer, int] = {}
        self.alive: list[bool] = []
        self.names: set[str] = set()
        self.needs: dict[Expr, int] = {}

    def error(self, problem: str) -> NoReturn:
        place = ""
        if self.current is not None:
            place = f", statement {'.'.join(self.path)} ({describe(self.current)})"
        raise InternalError(f"{self.where}{place}: {problem}")

    def expect(self, condition: bool, problem: str) -> None:
        if not condition:
            self.error(problem)

    def name(self, name: str) -> None:
        self.expect(_NAME.fullmatch(name) is not None, f"{name!r} is not a name")

    # Scopes

    def bind(self, item: Var | Buffer) -> None:
        self.name(item.name)
        self.expect(item not in self.order, f"{item.name} is bound twice")
        self.expect(item.name not in self.names, f"the name {item.name} is used twice")
        self.names.add(item.name)
        self.order[item] = len(self.alive)
        self.alive.append(True)

    def visible(self, item: Var | Buffer) -> int:
        number = self.order.get(item, -1)
        if number < 0 or not self.alive[number]:
            kind = "variable" if isinstance(item, Var) else "buffer"
            self.error(f"{kind} {item.name} is not bound here")
        return number

    def parameter(self, memory: Buffer) -> None:
        scopes = (Scope.GLOBAL, Scope.WORKSPACE)
        self.expect(memory.scope in scopes, f"parameter {memory.name} has scope {memory.scope}")
        self.expect(memory.lanes == 1, f"parameter {memory.name} has vector elements")
        self.sizes(memory)
        self.bind(memory)

    def sizes(self, memory: Buffer) -> None:
        rank = len(memory.shape)
        good = not memory.strides or len(memory.strides) == rank
        self.expect(good, f"{memory.name} has rank {rank} and {len(memory.strides)} strides")
        for extent in memory.shape:
            negative = isinstance(extent, int) and extent < 0
            self.expect(not negative, f"{memory.name} has the negative extent {extent}")
        for size in (*memory.shape, *memory.strides):
            if isinstance(size, Expr):
                self.index(size, f"a size of {memory.name}")
                reads = any(isinstance(node, Load) for node in post_order([size]))
                self.expect(not reads, f"a size of {memory.name} reads memory")

    # Expressions

    def expression(self, root: Expr) -> Type:
        """Check an expression where the current statement stands, and return its type."""
        need = fold_dag(root, self.needs, self.visit)
        if need >= 0 and not self.alive[need]:
            self.dead(root)
        return root.type

    def dead(self, root: Expr) -> None:
        for node in post_order([root]):
            if isinstance(node, Var):
                self.visible(node)
            elif isinstance(node, Load):
                self.visible(node.buffer)

    def visit(self, node: Expr, needs: list[int]) -> int:
        for arg, need in zip(node.args, needs, strict=True):
            if need >= 0 and not self.alive[need]:
                self.dead(arg)
        lanes = node.type.lanes
        if not _power(lanes):
            self.error(f"{lanes} lanes: expected a power of two up to {MAX_LANES}")
        rule = _EXPRESSIONS.get(type(node))
        if rule is None:
            self.error(f"{type(node).__name__} is no expression of the loop IR")
        own = rule(self, node)
        return max([*needs, -1 if own is None else own])

    def index(self, value: Expr, what: str) -> None:
        type_ = self.expression(value)
        self.expect(type_ == INDEX, f"{what} must be {INDEX}, it is {type_}")

    def same(self, node: Expr, *types: Type) -> None:
        if any(type_ != types[0] for type_ in types):
            listed = ", ".join(map(str, types))
            self.error(f"{_operator(node)} needs operands of one type, received {listed}")

    def access(self, memory: Buffer, indices: Sequence[Expr], mask: Expr | None) -> int:
        """Check an access and return the lanes that it has."""
        rank = len(memory.shape)
        given = len(indices)
        self.expect(given == rank, f"{memory.name} has rank {rank}, received {given} indices")
        lanes = {index.type.lanes for index in indices} - {1}
        self.expect(len(lanes) <= 1, f"indices of {memory.name} have {sorted(lanes)} lanes")
        for axis, index in enumerate(indices):
            good = index.type.dtype == INDEX.dtype
            self.expect(good, f"index {axis} of {memory.name} is {index.type}, not {INDEX.dtype}")
            if mask is None:
                self.inside(memory, axis, index)
        self.near(memory, indices, lanes)
        width = max(memory.lanes, *lanes, 1)
        if mask is not None:
            good = mask.type.dtype.is_bool and mask.type.lanes == width
            self.expect(good, f"mask of {memory.name} is {mask.type}, expected boolx{width}")
        return width

    def near(self, memory: Buffer, indices: Sequence[Expr], lanes: set[int]) -> None:
        """Check what registers need: scalar and, once lowered, constant indices."""
        if memory.scope is not Scope.REGISTER:
            return
        self.expect(not lanes, f"register buffer {memory.name} has a vector index")
        fixed = all(isinstance(index, Const) for index in indices)
        self.expect(fixed or not self.lowered, f"register buffer {memory.name}: index not constant")

    def inside(self, memory: Buffer, axis: int, index: Expr) -> None:
        """Check a constant index against a constant extent."""
        extent = memory.shape[axis]
        base = index.base if isinstance(index, Ramp) else index
        first = b.constant_value(base)
        if not isinstance(extent, int) or first is None or 0 in memory.shape:
            return  # an empty buffer is never accessed: its loops run no trip
        last = first + (index.type.lanes - 1 if isinstance(index, Ramp) else 0)
        good = 0 <= first and last < extent
        self.expect(good, f"index {axis} of {memory.name} reaches {last} of {extent} elements")

    # Statements

    def body(self, block: Block) -> None:
        """Check a whole body; a parallel loop may be its last statement, after Lets."""
        loop = block[-1] if block else None
        outermost = isinstance(loop, For) and loop.kind is LoopKind.PARALLEL
        lets = all(isinstance(statement, Let) for statement in block[:-1])
        self.block(block, loop if outermost and lets and self.parallel_allowed else None)

    parallel_allowed = True

    def block(self, block: Block, parallel: Stmt | None = None) -> None:
        """Check statements in a scope of their own."""
        start = len(self.alive)
        for position, statement in enumerate(block):
            self.path.append(str(position))
            outer, self.current = self.current, statement
            self.statement(statement, parallel)
            self.current = outer
            self.path.pop()
        for number in range(start, len(self.alive)):
            self.alive[number] = False

    def statement(self, statement: Stmt, parallel: Stmt | None) -> None:
        rule = _STATEMENTS.get(type(statement))
        if rule is None or isinstance(statement, self.forbidden):
            self.error(f"a {type(statement).__name__} has no place in a {self.where.split()[0]}")
        if isinstance(statement, For):
            good = statement.kind is not LoopKind.PARALLEL or statement is parallel
            self.expect(good, "a parallel loop must be the last statement of a kernel, after Lets")
        rule(self, statement)

    def let(self, s: Let) -> None:
        type_ = self.expression(s.value)
        self.expect(s.var.type == type_, f"{s.var.name} is {s.var.type}, its value is {type_}")
        self.bind(s.var)

    def for_(self, s: For) -> None:
        self.index(s.extent, "the extent")
        self.expect(s.var.type == INDEX, f"loop variable {s.var.name} is {s.var.type}")
        left = s.kind in (LoopKind.VECTOR, LoopKind.UNROLL) and self.lowered
        self.expect(not left, f"a loop of kind {s.kind} is left after lowering")
        parallel = s.kind is LoopKind.PARALLEL
        self.expect(not (parallel and s.carried), "a parallel loop carries values")
        inits = [self.expression(c.init) for c in s.carried]
        start = len(self.alive)
        self.bind(s.var)
        for c in s.carried:
            self.bind(c.var)
        self.block_with_next(s)
        for number in range(start, len(self.alive)):
            self.alive[number] = False
        for c, init in zip(s.carried, inits, strict=True):
            types = {c.var.type, init, c.next.type, c.result.type}
            listed = ", ".join(sorted(map(str, types)))
            self.expect(len(types) == 1, f"carried {c.var.name} has the types {listed}")
            self.bind(c.result)

    def block_with_next(self, s: For) -> None:
        """Check the body; the next values see its Lets."""
        for position, statement in enumerate(s.body):
            self.path.append(str(position))
            outer, self.current = self.current, statement
            self.statement(statement, None)
            self.current = outer
            self.path.pop()
        for c in s.carried:
            self.expression(c.next)

    def if_(self, s: If) -> None:
        type_ = self.expression(s.condition)
        self.expect(type_ == b.BOOL, f"the condition is {type_}, expected a scalar bool")
        self.block(s.then)
        self.path[-1] += "e"
        self.block(s.otherwise)

    def while_(self, s: While) -> None:
        self.visible(s.condition)
        good = s.condition.dtype.is_bool and not s.condition.shape
        self.expect(good, f"condition {s.condition.name} must be a bool buffer of rank 0")
        self.block(s.body)

    def alloc(self, s: Alloc) -> None:
        memory = s.buffer
        near = memory.scope in (Scope.LOCAL, Scope.REGISTER)
        self.expect(near, f"{memory.name} has scope {memory.scope}")
        fixed = all(isinstance(size, int) for size in (*memory.shape, *memory.strides))
        self.expect(fixed, f"{memory.name} has a size that is not constant")
        self.sizes(memory)
        self.expect(_power(memory.lanes), f"{memory.name} has {memory.lanes} lanes")
        vector = memory.lanes > 1 and memory.scope is not Scope.REGISTER
        self.expect(not vector, f"{memory.name}: vector elements are for register buffers")
        count = math.prod(extent for extent in memory.shape if isinstance(extent, int))
        size = count * memory.lanes * memory.dtype.itemsize
        limit = MAX_REGISTER_BYTES if memory.scope is Scope.REGISTER else MAX_LOCAL_BYTES
        self.expect(size <= limit, f"{memory.name} takes {size} bytes, more than {limit}")
        self.bind(memory)

    def store(self, s: Store) -> None:
        self.visible(s.buffer)
        for index in s.indices:
            self.expression(index)
        type_ = self.expression(s.value)
        if s.mask is not None:
            self.expression(s.mask)
        expected = Type(s.buffer.dtype, self.access(s.buffer, s.indices, s.mask))
        self.expect(type_ == expected, f"stores {type_} where {s.buffer.name} takes {expected}")

    def prefetch(self, s: Prefetch) -> None:
        memory = s.buffer
        self.view(View(memory, s.indices))
        self.expect(memory.scope is not Scope.REGISTER, f"{memory.name} is in registers")
        rank, given = len(memory.shape), len(s.indices)
        self.expect(given == rank, f"{memory.name} has rank {rank}, a prefetch has {given}")

    def view(self, view: View) -> None:
        self.visible(view.buffer)
        rank, given = len(view.buffer.shape), len(view.indices)
        self.expect(given in (0, rank), f"{view.buffer.name} has rank {rank}, a view has {given}")
        for axis, index in enumerate(view.indices):
            self.index(index, f"index {axis} of a view of {view.buffer.name}")

    def copy(self, s: Copy) -> None:
        for view in (s.target, s.source):
            self.view(view)
            memory = view.buffer
            self.expect(memory.scope is not Scope.REGISTER, f"{memory.name} is in registers")
            rank = len(memory.shape)
            self.expect(len(s.extents) == rank, f"{memory.name} has rank {rank}, the copy differs")
        target, source = s.target.buffer.dtype, s.source.buffer.dtype
        self.expect(target == source, f"copies {source} into {target}")
        for extent in s.extents:
            self.index(extent, "an extent")

    def fail(self, s: Fail) -> None:
        self.expect(s.site >= 1, f"site {s.site}: 0 means that all is well")
        self.index(s.position, "the position")
        self.index(s.value, "the value")

    def invocation(self, s: Call | Launch) -> Kernel | None:
        """Check the arguments of a kernel and return it, None if calls are not looked up."""
        for view in s.buffers:
            self.view(view)
            self.expect(
                view.buffer.scope is not Scope.REGISTER, f"{view.buffer.name} is in registers"
            )
        for scalar in s.scalars:
            self.index(scalar, "a scalar argument")
        if self.kernels is None:
            return None
        callee = self.kernels.get(s.kernel)
        if callee is None:
            self.error(f"no kernel {s.kernel} is defined before")
        counts = (len(s.buffers), len(s.scalars))
        expected = (len(callee.buffers), len(callee.scalars))
        self.expect(counts == expected, f"gives {counts} buffers and scalars, expected {expected}")
        for view, memory in zip(s.buffers, callee.buffers, strict=True):
            same = view.buffer.dtype == memory.dtype or uint8 in (view.buffer.dtype, memory.dtype)
            problem = f"gives {view.buffer.dtype} {view.buffer.name} for {memory.dtype}"
            self.expect(same, f"{problem} {memory.name}")
        return callee

    def call(self, s: Call) -> None:
        callee = self.invocation(s)
        parallel = callee is not None and parallel_loop(callee) is not None
        self.expect(not parallel, f"calls {s.kernel}, which has a parallel loop")

    def launch(self, s: Launch) -> None:
        callee = self.invocation(s)
        self.index(s.chunks, "the number of chunks")
        if callee is None:
            return
        given = b.constant_value(s.chunks)
        if parallel_loop(callee) is None:
            self.expect(given == 1, f"{s.kernel} has no parallel loop: it runs as 1 chunk")
            return
        scalars = dict(zip(callee.scalars, s.scalars, strict=True))
        extent = Substitution(scalars).expression(parallel_extent(callee))
        count = b.constant_value(extent)
        good = given is None or count is None or given == max(0, count)
        self.expect(good, f"gives {given} chunks, the loop of {s.kernel} has {count}")

    def return_(self, s: Return) -> None:
        """A Return has nothing to check but its place."""


class _EntryChecker(_Checker):
    """Checks the entry of a module."""

    forbidden = (Fail,)
    parallel_allowed = False

    def __init__(self, module: Module, kernels: Mapping[str, Kernel], lowered: bool) -> None:
        super().__init__(f"entry {module.entry.name}", lowered, kernels)
        self.module = module
        self.read_only = {
            placement.buffer
            for placement in module.entry.placements
            if placement.place is Place.CONSTANT
        }
        self.written = _written_parameters(module.kernels)

    def run(self) -> None:
        entry: Entry = self.module.entry
        self.name(entry.name)
        for scalar in entry.scalars:
            self.expect(scalar.type == INDEX, f"scalar {scalar.name} must be {INDEX}")
            self.bind(scalar)
        for placement in entry.placements:
            self.parameter(placement.buffer)
            self.placement(placement.buffer, placement.place, placement.slot)
        self.body(entry.body)

    def placement(self, memory: Buffer, place: Place, slot: int) -> None:
        self.expect(slot >= 0, f"{memory.name} has slot {slot}")
        if place is Place.ARENA:
            aligned = slot % memory.dtype.itemsize == 0
            self.expect(aligned, f"{memory.name} at byte {slot} is not aligned to its elements")
        if place is not Place.CONSTANT:
            return
        count = len(self.module.constants)
        self.expect(slot < count, f"{memory.name} is constant {slot} of {count}")
        if all(isinstance(extent, int) for extent in memory.shape) and not memory.strides:
            elements = math.prod(extent for extent in memory.shape if isinstance(extent, int))
            size, given = elements * memory.dtype.itemsize, len(self.module.constants[slot].data)
            self.expect(
                size <= given, f"{memory.name} needs {size} bytes, its constant has {given}"
            )

    def invocation(self, s: Call | Launch) -> Kernel | None:
        """Check the arguments, and that no constant is written."""
        callee = super().invocation(s)
        if callee is not None:
            for view, memory in zip(s.buffers, callee.buffers, strict=True):
                bad = view.buffer in self.read_only and memory in self.written
                self.expect(not bad, f"{s.kernel} writes the constant {view.buffer.name}")
        return callee

    def store(self, s: Store) -> None:
        """Check a store, and that it writes no constant."""
        super().store(s)
        self.expect(s.buffer not in self.read_only, f"stores to the constant {s.buffer.name}")


def _written_parameters(kernels: Iterable[Kernel]) -> set[Buffer]:
    """Return the parameters that kernels write, themselves or through calls."""
    written: set[Buffer] = set()
    known: dict[str, Kernel] = {}
    for kernel in kernels:
        for s in walk(kernel.body):
            if isinstance(s, Store):
                written.add(s.buffer)
            elif isinstance(s, Copy):
                written.add(s.target.buffer)
            elif isinstance(s, Call) and s.kernel in known:
                pairs = zip(s.buffers, known[s.kernel].buffers, strict=True)
                written.update(view.buffer for view, memory in pairs if memory in written)
        known[kernel.name] = kernel
    return written


def written_buffers(kernel: Kernel, kernels: Mapping[str, Kernel] | None = None) -> set[Buffer]:
    """Return the parameters that a kernel writes; calls are looked up in `kernels`."""
    callees = [] if kernels is None else [k for k in kernels.values() if k is not kernel]
    return _written_parameters([*callees, kernel]) & set(kernel.buffers)


def describe(statement: Stmt) -> str:
    """Return a few words that tell a statement from its neighbours."""
    kind = type(statement).__name__
    if isinstance(statement, (Let, For)):
        return f"{kind} {statement.var.name}"
    if isinstance(statement, (Store, Alloc, Prefetch)):
        return f"{kind} {statement.buffer.name}"
    return f"{kind} {statement.kernel}" if isinstance(statement, (Call, Launch)) else kind


def _operator(node: Expr) -> str:
    return str(getattr(node, "op", type(node).__name__))


def _power(lanes: int) -> bool:
    return 1 <= lanes <= MAX_LANES and lanes & (lanes - 1) == 0


# One row a class of expression. A row returns the number of what the node itself needs, or None.


def _const(c: _Checker, e: Const) -> None:
    try:
        value = semantics.normalise(e.value, e.type.dtype)
    except InternalError as error:
        c.error(str(error))
    same = value == e.value or (value != value and e.value != e.value)
    exact = same and type(value) is type(e.value)
    c.expect(exact, f"constant {e.value!r} is not exact in {e.type.dtype}")


def _var(c: _Checker, e: Var) -> int:
    return c.visible(e)


def _unary(c: _Checker, e: Unary) -> None:
    c.expect(b.unary_allowed(e.op, e.x.type.dtype), f"{e.op} of {e.x.type}")


def _binary(c: _Checker, e: Binary) -> None:
    c.same(e, e.a.type, e.b.type)
    if not b.binary_allowed(e.op, e.a.type.dtype):
        c.error(f"{e.op} of {e.a.type}")
    second = b.constant_value(e.b)
    if e.op in (BinaryOp.DIV, BinaryOp.REM) and e.type.dtype.is_integer:
        c.expect(second != 0, f"{e.op} by the constant 0")
    if e.op in _SHIFTS and second is not None:
        c.expect(0 <= second < e.type.dtype.bits, f"{e.op} of {e.type} by {second}")


def _compare(c: _Checker, e: Compare) -> None:
    c.same(e, e.a.type, e.b.type)
    c.expect(not e.a.type.dtype.storage_only, f"{e.op} of {e.a.type}")


def _select(c: _Checker, e: Select) -> None:
    c.same(e, e.a.type, e.b.type)
    expected = Type(b.BOOL.dtype, e.type.lanes)
    given = e.condition.type
    c.expect(given == expected, f"select on {given}, expected {expected}")


def _fma(c: _Checker, e: Fma) -> None:
    c.same(e, e.a.type, e.b.type, e.c.type)
    c.expect(e.type.dtype in (float32, float64), f"fma of {e.type}")


def _pair_dot(c: _Checker, e: PairDot) -> None:
    lanes = Type(bfloat16, 2 * e.type.lanes)
    good = e.type.dtype == float32 and e.a.type == lanes and e.b.type == lanes
    c.expect(good, f"pair_dot of {e.a.type}, {e.b.type} and {e.type}")


def _bitcast(c: _Checker, e: Bitcast) -> None:
    source, target = e.x.type.dtype, e.dtype
    good = source.bits == target.bits and not source.is_bool and not target.is_bool
    c.expect(good, f"bitcast of {source} to {target}")


def _mul_high(c: _Checker, e: MulHigh) -> None:
    c.same(e, e.a.type, e.b.type)
    c.expect(e.type.dtype == uint32, f"mul_high of {e.type}")


def _broadcast(c: _Checker, e: Broadcast) -> None:
    c.expect(e.x.type.lanes == 1 and e.lanes > 1, f"broadcast of {e.x.type} to {e.lanes} lanes")


def _ramp(c: _Checker, e: Ramp) -> None:
    good = e.base.type.lanes == 1 and e.base.type.dtype.is_integer and e.lanes > 1
    c.expect(good, f"ramp of {e.base.type} with {e.lanes} lanes")


def _shuffle(c: _Checker, e: Shuffle) -> None:
    c.same(e, e.a.type, e.b.type)
    total = 2 * e.a.type.lanes
    good = all(0 <= position < total for position in e.pattern)
    c.expect(good, f"shuffle {e.pattern} of {total} lanes")


def _extract(c: _Checker, e: Extract) -> None:
    c.expect(0 <= e.lane < e.x.type.lanes, f"extract of lane {e.lane} of {e.x.type}")


def _reduce(c: _Checker, e: Reduce) -> None:
    dtype = e.x.type.dtype
    good = e.op in REDUCTIONS and b.binary_allowed(e.op, dtype) and e.x.type.lanes > 1
    c.expect(good, f"reduce by {e.op} of {e.x.type}")


def _load(c: _Checker, e: Load) -> int:
    number = c.visible(e.buffer)
    width = c.access(e.buffer, e.indices, e.mask)
    c.expect(e.type == Type(e.buffer.dtype, width), f"load of {e.buffer.name} has type {e.type}")
    return number


_EXPRESSIONS: Mapping[type[Expr], Callable[[_Checker, Any], int | None]] = {
    Const: _const,
    Var: _var,
    Unary: _unary,
    Binary: _binary,
    Compare: _compare,
    Select: _select,
    Fma: _fma,
    PairDot: _pair_dot,
    Cast: lambda c, e: None,
    Bitcast: _bitcast,
    MulHigh: _mul_high,
    Broadcast: _broadcast,
    Ramp: _ramp,
    Shuffle: _shuffle,
    Extract: _extract,
    Reduce: _reduce,
    Load: _load,
}

_STATEMENTS: Mapping[type[Stmt], Callable[[_Checker, Any], None]] = {
    Let: _Checker.let,
    For: _Checker.for_,
    If: _Checker.if_,
    While: _Checker.while_,
    Alloc: _Checker.alloc,
    Store: lambda c, s: c.store(s),
    Copy: _Checker.copy,
    Prefetch: _Checker.prefetch,
    Call: _Checker.call,
    Fail: _Checker.fail,
    Launch: _Checker.launch,
    Return: _Checker.return_,
}
