"""The loop IR: typed expressions, structured statements, kernels and one entry. Immutable.

    module  := kernel* entry
    kernel  := buffers, scalars, body           one chunk of work is one trip of its parallel loop
    entry   := buffers, scalars, body           launches kernels, in loops and branches
    body    := statement*

Expressions are pure and form a DAG; objects compare by identity. A `Load` reads memory at the
place of the statement that holds it: share a loaded value between statements with `Let`.
Statement semantics are sequential; only iterations of a `parallel` loop may run in any order.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from frame.core.dataclass import dataclass
from frame.core.dtypes import DType, bool_, int64


@dataclass(frozen=True, slots=True)
class Type:
    """The type of an expression: an element type and a number of lanes (1: a scalar)."""

    dtype: DType
    lanes: int = 1

    def __str__(self) -> str:
        return str(self.dtype) if self.lanes == 1 else f"{self.dtype}x{self.lanes}"


INDEX = Type(int64)


class Expr:
    """Base of all expressions. Every subclass has `type` and lists its operands in `args`."""

    __slots__ = ()
    type: Type

    @property
    def args(self) -> tuple[Expr, ...]:
        """The operand expressions, in order."""
        return ()

    def __repr__(self) -> str:
        # Short: a DAG written out as a tree may be exponentially long. The printer writes DAGs.
        return f"<{type(self).__name__} {getattr(self, 'op', '')}: {self.type}>"


@dataclass(frozen=True, slots=True, eq=False)
class Const(Expr):
    """A scalar or splat constant. `value` is a Python bool, int or float."""

    value: bool | int | float
    type: Type = INDEX


@dataclass(frozen=True, slots=True, eq=False)
class Var(Expr):
    """A variable, bound once: a kernel scalar, a loop index, a carried value or a Let."""

    name: str
    type: Type = INDEX


class UnaryOp(StrEnum):
    """Unary operators. Integer negation and abs wrap; rounding operators are for floats."""

    NEG = "neg"
    ABS = "abs"
    SQRT = "sqrt"
    FLOOR = "floor"
    CEIL = "ceil"
    ROUND = "round"  # to nearest, ties to even
    TRUNC = "trunc"
    NOT = "not"  # bitwise; logical on bool


class BinaryOp(StrEnum):
    """Binary operators on equal types; the result has that type.

    Integer add, sub, mul wrap. `div` and `rem` truncate toward zero and are undefined for a zero
    divisor and for the overflowing quotient: the builder guards them. Shifts need 0 <= b < bits.
    `min` and `max` are `a < b ? a : b` and `a > b ? a : b` (so b when either is NaN);
    `minimum` and `maximum` are `a < b || a != a ? a : b` and its mirror image, so a NaN when
    either is NaN; the sign and payload of that NaN are not said.
    """

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    REM = "rem"
    MIN = "min"
    MAX = "max"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    AND = "and"
    OR = "or"
    XOR = "xor"
    SHL = "shl"
    SHR = "shr"  # arithmetic for int, logical for uint


class CompareOp(StrEnum):
    """Comparisons; the result is bool. On NaN all are false but `ne`."""

    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unary(Expr):
    """`op x`."""

    op: UnaryOp
    x: Expr
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", self.x.type)

    @property
    def args(self) -> tuple[Expr, ...]:
        """The operand."""
        return (self.x,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Binary(Expr):
    """`a op b`."""

    op: BinaryOp
    a: Expr
    b: Expr
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", self.a.type)

    @property
    def args(self) -> tuple[Expr, ...]:
        """Both operands."""
        return (self.a, self.b)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Compare(Expr):
    """`a op b`, a bool with the lanes of the operands."""

    op: CompareOp
    a: Expr
    b: Expr
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", Type(bool_, self.a.type.lanes))

    @property
    def args(self) -> tuple[Expr, ...]:
        """Both operands."""
        return (self.a, self.b)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Select(Expr):
    """`condition ? a : b`, lane by lane; both sides are evaluated."""

    condition: Expr
    a: Expr
    b: Expr
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", self.a.type)

    @property
    def args(self) -> tuple[Expr, ...]:
        """The condition and both sides."""
        return (self.condition, self.a, self.b)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Fma(Expr):
    """`a * b + c` with one rounding. Floats of 32 and 64 bits only."""

    a: Expr
    b: Expr
    c: Expr
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", self.a.type)

    @property
    def args(self) -> tuple[Expr, ...]:
        """The three operands."""
        return (self.a, self.b, self.c)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PairDot(Expr):
    """`c + a1 * b1 + a0 * b0` in every lane, for the pair (a0, a1) of that lane.

    `a` and `b` are bfloat16 and have two lanes for each float32 lane of `c`. The products are
    exact; the one of the second of a pair is added first, and each sum rounds to nearest even, as
    VDPBF16PS of x86 does (Intel SDM volume 2), which besides takes subnormals for zero and raises
    no exception. BFDOT of AArch64 adds the two products first and rounds each sum to odd (Arm ARM,
    BFDotAdd). Results differ by that between machines, never on one.
    """

    a: Expr
    b: Expr
    c: Expr
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", self.c.type)

    @property
    def args(self) -> tuple[Expr, ...]:
        """The three operands."""
        return (self.a, self.b, self.c)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cast(Expr):
    """Convert the value to another dtype.

    Float to integer truncates and saturates, NaN gives 0; between integers it wraps; to bool is
    `!= 0`. A float that does not fit (from a wider float or an integer) rounds once, to nearest
    even, in bfloat16 and float16 too.
    """

    x: Expr
    dtype: DType
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", Type(self.dtype, self.x.type.lanes))

    @property
    def args(self) -> tuple[Expr, ...]:
        """The operand."""
        return (self.x,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Bitcast(Expr):
    """Reinterpret the bits as another dtype of the same width."""

    x: Expr
    dtype: DType
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", Type(self.dtype, self.x.type.lanes))

    @property
    def args(self) -> tuple[Expr, ...]:
        """The operand."""
        return (self.x,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MulHigh(Expr):
    """The high half of the double-width product of two unsigned 32-bit integers (Philox)."""

    a: Expr
    b: Expr
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", self.a.type)

    @property
    def args(self) -> tuple[Expr, ...]:
        """Both operands."""
        return (self.a, self.b)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Broadcast(Expr):
    """A scalar in every lane."""

    x: Expr
    lanes: int
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", Type(self.x.type.dtype, self.lanes))

    @property
    def args(self) -> tuple[Expr, ...]:
        """The scalar."""
        return (self.x,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ramp(Expr):
    """The vector `base, base + 1, ..., base + lanes - 1` of an integer type."""

    base: Expr
    lanes: int
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", Type(self.base.type.dtype, self.lanes))

    @property
    def args(self) -> tuple[Expr, ...]:
        """The first lane."""
        return (self.base,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shuffle(Expr):
    """Lanes chosen from the concatenation of `a` and `b` by constant positions."""

    a: Expr
    b: Expr
    pattern: tuple[int, ...]
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", Type(self.a.type.dtype, len(self.pattern)))

    @property
    def args(self) -> tuple[Expr, ...]:
        """Both vectors."""
        return (self.a, self.b)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Extract(Expr):
    """One lane of a vector, by constant position."""

    x: Expr
    lane: int
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", Type(self.x.type.dtype))

    @property
    def args(self) -> tuple[Expr, ...]:
        """The vector."""
        return (self.x,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Reduce(Expr):
    """Reduce the lanes of a vector to a scalar, by halves: ((0+4)+(2+6))+((1+5)+(3+7)).

    The order is part of the meaning, so that every emitter gives the same bits. `op` is one of
    add, mul, min, max, minimum, maximum, and, or.
    """

    op: BinaryOp
    x: Expr
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", Type(self.x.type.dtype))

    @property
    def args(self) -> tuple[Expr, ...]:
        """The vector."""
        return (self.x,)


class Scope(StrEnum):
    """Where a buffer lives."""

    GLOBAL = "global"  # a parameter of the kernel: input, output or arena memory
    WORKSPACE = "workspace"  # a parameter: scratch memory that the plan provides
    LOCAL = "local"  # the stack of the kernel
    REGISTER = "register"  # registers: constant indices once loops are unrolled


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Typed memory with a shape and element strides.

    Extents and strides are ints or expressions of the kernel's scalars. Empty `strides` mean
    row-major order. `lanes` > 1 makes the element of a register buffer a vector.
    """

    name: str
    dtype: DType
    shape: tuple[int | Expr, ...]
    strides: tuple[int | Expr, ...] = ()
    scope: Scope = Scope.GLOBAL
    lanes: int = 1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Load(Expr):
    """An element, or a vector of elements, of a buffer.

    Indices are index expressions, one a dimension. When some are vectors, all vectors have the same
    lanes and the load is one: contiguous if the last index is a `Ramp` on a unit stride and the
    others are scalars, a gather otherwise. Where `mask` (bool, same lanes) is false nothing is read
    and the result is zero.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    mask: Expr | None = None
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        lanes = max((index.type.lanes for index in self.indices), default=1)
        object.__setattr__(self, "type", Type(self.buffer.dtype, max(lanes, self.buffer.lanes)))

    @property
    def args(self) -> tuple[Expr, ...]:
        """The indices, then the mask if there is one."""
        return self.indices if self.mask is None else (*self.indices, self.mask)


class Stmt:
    """Base of all statements."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


Block = tuple[Stmt, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Let(Stmt):
    """Bind `var` to the value that `value` has here, for the rest of the block."""

    var: Var
    value: Expr


class LoopKind(StrEnum):
    """How a loop runs. `vector` and `unroll` are requests that rewrites carry out."""

    SERIAL = "serial"
    PARALLEL = "parallel"  # the outermost loop of a kernel: its iterations are the chunks
    VECTOR = "vector"
    UNROLL = "unroll"


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """A loop-carried value.

    `var` is `init` in the first iteration and `next` of the previous one afterwards; `result` is
    bound after the loop to the last `next` (to `init` for no iteration).
    """

    var: Var
    init: Expr
    next: Expr
    result: Var


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class For(Stmt):
    """Run `body` for `var` = 0 .. extent - 1.

    `next` of each carried value is evaluated at the end of the body and may use its Lets. An extent
    below 1 means no iteration.
    """

    kind: LoopKind
    var: Var
    extent: Expr
    body: Block
    carried: tuple[Carried, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class If(Stmt):
    """Run one of two blocks. The condition is a scalar bool."""

    condition: Expr
    then: Block
    otherwise: Block = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class While(Stmt):
    """Entry only: run `body` as long as the one element of `condition` (rank 0, bool) is true.

    The condition is read before each iteration.
    """

    condition: Buffer
    body: Block


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Alloc(Stmt):
    """Make a LOCAL or REGISTER buffer of constant size for the rest of the block. Uninitialised."""

    buffer: Buffer


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Store(Stmt):
    """Write a value (scalar or vector, as for Load) into a buffer, where `mask` is true.

    A `streamed` store may go past the caches: a hint that changes no value. What it has written is
    seen by other threads once the chunk has ended.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    mask: Expr | None = None
    streamed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A buffer of a callee laid over memory of the caller.

    The element at `indices` is its first; no indices mean the first element of the buffer. Dtypes
    are equal, but any memory may be seen as bytes (uint8), and bytes as anything.
    """

    buffer: Buffer
    indices: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Copy(Stmt):
    """Copy a rectangular region of `extents` elements a dimension; regions must not overlap."""

    target: View
    source: View
    extents: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Prefetch(Stmt):
    """Ask for the cache line of an element that is read soon: a hint that changes no value.

    The element must exist, as for a Load, so that the interpreter can check the indices.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(Stmt):
    """Run a whole kernel (one without a parallel loop) inline, on the calling thread."""

    kernel: str
    buffers: tuple[View, ...]
    scalars: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Fail(Stmt):
    """Report a bad value: `site` names the check, `position` the element, `value` what was read.

    The kernel goes on; of several reports the smallest (site, position) is kept.
    """

    site: int
    position: Expr
    value: Expr


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Launch(Stmt):
    """Entry only: run `chunks` iterations of the parallel loop of a kernel on the thread pool."""

    kernel: str
    buffers: tuple[View, ...]
    scalars: tuple[Expr, ...]
    chunks: Expr


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Return(Stmt):
    """Entry only: leave at once with a bad status if any check has failed so far."""


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A function over buffers and index scalars.

    A kernel with a parallel loop has it as the last statement of its body, after Lets; its Launch
    gives the same extent. `note` is the picture of the loop nest, printed as comments.
    """

    name: str
    buffers: tuple[Buffer, ...]
    scalars: tuple[Var, ...]
    body: Block
    note: str = ""


class Place(StrEnum):
    """Where an entry buffer lives."""

    ARGUMENT = "argument"  # `slot` is the position among inputs then outputs
    ARENA = "arena"  # `slot` is a byte offset
    TABLE = "table"  # `slot` is the position in the run-time offset table
    CONSTANT = "constant"  # `slot` is the position in the module's constants


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """An entry buffer and where it lives."""

    buffer: Buffer
    place: Place
    slot: int


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """The one function that a run calls. `scalars` are the symbols of the graph, in order."""

    name: str
    placements: tuple[Placement, ...]
    scalars: tuple[Var, ...]
    body: Block


@dataclass(frozen=True, slots=True, eq=False)
class ConstantData:
    """Read-only bytes that travel with the module, with their alignment of 64 bytes."""

    name: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """Kernels, one entry, and constants."""

    name: str
    kernels: tuple[Kernel, ...]
    entry: Entry
    constants: tuple[ConstantData, ...] = ()

    @property
    def kernel_table(self) -> Mapping[str, Kernel]:
        """The kernels by name."""
        return {kernel.name: kernel for kernel in self.kernels}


_serial = itertools.count()


def fresh(stem: str, type_: Type = INDEX) -> Var:
    """Return a variable with a name that no other variable of this process has.

    The printer renumbers names, so texts don't depend on what was built before.
    """
    return Var(f"{stem}.{next(_serial)}", type_)
