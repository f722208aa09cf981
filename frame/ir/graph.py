"""The graph IR: immutable values, nodes and graphs in static single assignment form.

Nodes hold their operands directly, so a node may stand in any number of graphs. A pass that leaves
a node alone puts the same object into its result, and a graph is no more than an order of nodes.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from frame.core.dataclass import dataclass
from frame.core.devices import HOST, Device
from frame.core.dtypes import DType, dtype
from frame.core.errors import InternalError, InvalidArgumentError
from frame.core.forks import cached_property
from frame.core.shapes import MAX_RANK, Dim, Shape, Size, numel, shape_text

MAX_DEPTH = 16
"""How many graphs may stand inside one another: bodies of scan, cond and while."""


def dim_symbols(size: Size) -> tuple[str, ...]:
    """Return the symbols of one dimension, each once, in the order of its text."""
    if not isinstance(size, Dim):
        return ()
    return tuple(dict.fromkeys(name for monomial, _ in size.terms for name in monomial))


def shape_symbols(shape: Shape) -> tuple[str, ...]:
    """Return the symbols of a shape, each once, in order of first appearance."""
    return tuple(dict.fromkeys(name for size in shape for name in dim_symbols(size)))


@dataclass(frozen=True, slots=True)
class Layout:
    """How the elements of a logical shape lie in memory.

    `permutation` orders the logical axes from outermost to innermost (empty: row-major order).
    Each block `(axis, size)` splits that axis: its quotient stays in place, its remainder is
    appended as an innermost dimension. NCHW16c is `Layout(blocks=((1, 16),))`.

    With `winograd`, windows of 3 x 3, the last two of four axes, are stored as their transforms
    for so many results of a tile along an axis: that many points and two more.
    """

    permutation: tuple[int, ...] = ()
    blocks: tuple[tuple[int, int], ...] = ()
    winograd: int = 0

    def storage_shape(self, shape: Shape) -> Shape:
        """Return the dense row-major shape in which a tensor of `shape` is stored.

        A block that does not divide a constant axis pads it up.

        Raises:
            InvalidArgumentError: a block splits a symbolic axis that it does not divide.
        """
        if self == ROW_MAJOR:
            return shape
        sizes = list(shape)
        if self.winograd:
            sizes[-2:] = [self.winograd + 2] * 2
        for axis, block in self.blocks:
            size = sizes[axis]
            sizes[axis] = -(-size // block) if isinstance(size, int) else size // block
        order = self.permutation or range(len(shape))
        return tuple(sizes[axis] for axis in order) + tuple(block for _, block in self.blocks)

    def __str__(self) -> str:
        order = ",".join(map(str, self.permutation))
        blocks = ",".join(f"{axis}:{size}" for axis, size in self.blocks)
        return f"<{order}|{blocks}{f'|{self.winograd}' if self.winograd else ''}>"


ROW_MAJOR = Layout()


@dataclass(frozen=True, slots=True)
class TensorType:
    """The static type of a value: element type, logical shape, memory layout and device."""

    dtype: DType
    shape: Shape
    layout: Layout = ROW_MAJOR
    device: Device = HOST

    def __post_init__(self) -> None:
        if len(self.shape) > MAX_RANK:
            raise InvalidArgumentError(
                f"expected at most {MAX_RANK} dimensions, as numpy has, received a shape of "
                f"{len(self.shape)}: {shape_text(self.shape):.60}...; merge some with reshape"
            )

    @property
    def rank(self) -> int:
        """The number of logical dimensions."""
        return len(self.shape)

    @property
    def storage_shape(self) -> Shape:
        """The dense row-major shape in memory: permuted axes, then one dimension a block.

        Raises:
            InvalidArgumentError: a block splits a symbolic axis that it does not divide.
        """
        return self.layout.storage_shape(self.shape)

    @property
    def nbytes(self) -> Size:
        """The bytes that a value of this type takes, padding of blocks included."""
        return _byte_count(self.storage_shape, self.dtype.itemsize)

    def __str__(self) -> str:
        text = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        if self.layout != ROW_MAJOR:
            text += str(self.layout)
        return text if self.device == HOST else f"{text}@{self.device}"


@functools.lru_cache(maxsize=4096)
def _byte_count(shape: Shape, itemsize: int) -> Size:
    return numel(shape) * itemsize


class Role(enum.StrEnum):
    """What a graph input is to the program that runs the graph."""

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPTIMIZER_STATE = "optimizer_state"
    HYPERPARAMETER = "hyperparameter"
    COUNTER = "counter"
    DERIVED = "derived"
    CARRY = "carry"
    ELEMENT = "element"
    CAPTURE = "capture"


if TYPE_CHECKING:

    class _Operators:
        """The Python operators of Value, which are installed at the end of this module."""

        def __add__(self, other: Any) -> Value: ...
        def __radd__(self, other: Any) -> Value: ...
        def __sub__(self, other: Any) -> Value: ...
        def __rsub__(self, other: Any) -> Value: ...
        def __mul__(self, other: Any) -> Value: ...
        def __rmul__(self, other: Any) -> Value: ...
        def __truediv__(self, other: Any) -> Value: ...
        def __rtruediv__(self, other: Any) -> Value: ...
        def __floordiv__(self, other: Any) -> Value: ...
        def __rfloordiv__(self, other: Any) -> Value: ...
        def __mod__(self, other: Any) -> Value: ...
        def __rmod__(self, other: Any) -> Value: ...
        def __pow__(self, other: Any) -> Value: ...
        def __rpow__(self, other: Any) -> Value: ...
        def __matmul__(self, other: Any) -> Value: ...
        def __rmatmul__(self, other: Any) -> Value: ...
        def __and__(self, other: Any) -> Value: ...
        def __rand__(self, other: Any) -> Value: ...
        def __or__(self, other: Any) -> Value: ...
        def __ror__(self, other: Any) -> Value: ...
        def __xor__(self, other: Any) -> Value: ...
        def __rxor__(self, other: Any) -> Value: ...
        def __lshift__(self, other: Any) -> Value: ...
        def __rlshift__(self, other: Any) -> Value: ...
        def __rshift__(self, other: Any) -> Value: ...
        def __rrshift__(self, other: Any) -> Value: ...
        def __lt__(self, other: Any) -> Value: ...
        def __le__(self, other: Any) -> Value: ...
        def __gt__(self, other: Any) -> Value: ...
        def __ge__(self, other: Any) -> Value: ...
        def __getitem__(self, key: Any) -> Value: ...
        def __neg__(self) -> Value: ...
        def __abs__(self) -> Value: ...
        def __invert__(self) -> Value: ...
        def __iter__(self) -> Iterator[Value]: ...
else:
    _Operators = object


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Value(_Operators):
    """One result of a node, or a graph input when `node` is None.

    `==` and `!=` compare elements where the user builds a graph (a traced function, a module, a
    gradient), and identity in passes and everywhere else.
    """

    type: TensorType
    node: Node | None = None
    index: int = 0

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        """The logical shape."""
        return self.type.shape

    @property
    def rank(self) -> int:
        """The number of logical dimensions."""
        return len(self.type.shape)

    def __repr__(self) -> str:
        source = "input" if self.node is None else f"{self.node.op}#{self.index}"
        return f"<Value {source}: {self.type}>"

    def __bool__(self) -> bool:
        raise InvalidArgumentError(
            "a graph value has no truth value while the graph is being built: use frame.ops.where "
            "or frame.ops.cond to choose by a value that is known at run time"
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise InvalidArgumentError(
            f"{self!r} has no elements while the graph is being built: use frame.ops in place of "
            "numpy, or frame.eager to run the function op by op and look at its values"
        )


class Constant:
    """The elements of a constant: a read-only array and its digest, compared by content.

    The array is copied, C-contiguous and in native byte order; InvalidArgumentError is raised for
    an element type that frame does not have.
    """

    __slots__ = ("array", "digest")

    def __init__(self, array: np.ndarray) -> None:
        native = dtype(np.asarray(array).dtype).numpy
        data = np.array(array, dtype=native, order="C", copy=True)
        data.flags.writeable = False
        self.array = data
        header = f"{data.dtype.name}{data.shape}".encode()
        self.digest = hashlib.sha256(header + data.tobytes()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Constant({self.array.dtype.name}{list(self.array.shape)}, {self.digest[:12]})"


# The closed set of attribute types: a scalar, a tuple of scalars, a dtype, a dimension, a shape
# (a tuple of int and Dim), a constant, or a graph.
Attribute = Any
NO_ATTRIBUTES: Mapping[str, Attribute] = MappingProxyType({})


class Node:
    """One operation: a name, operands, attributes and typed results. Immutable.

    `origin` is the index of the declared node that this one stems from; it leads to the location
    in the user's model and is neither printed nor hashed.
    """

    __slots__ = (
        "__weakref__",
        "attributes",
        "facts",
        "op",
        "operands",
        "origin",
        "results",
        "sound",
    )

    op: str
    operands: tuple[Value, ...]
    attributes: Mapping[str, Attribute]
    results: tuple[Value, ...]
    origin: int | None
    sound: OpSchema | None
    """The schema that the node was found to follow, which then holds for good; None before."""
    facts: Any
    """What the verifier has found of the node alone; None before."""

    def __init__(
        self,
        op: str,
        operands: tuple[Value, ...],
        attributes: Mapping[str, Attribute],
        types: tuple[TensorType, ...],
        origin: int | None = None,
    ) -> None:
        fill = object.__setattr__
        fill(self, "op", op)
        fill(self, "operands", tuple(operands))
        fill(
            self, "attributes", MappingProxyType(dict(attributes)) if attributes else NO_ATTRIBUTES
        )
        fill(self, "origin", origin)
        results = tuple(Value(type_, self, index) for index, type_ in enumerate(types))
        fill(self, "results", results)
        fill(self, "sound", None)
        fill(self, "facts", None)

    def on(self, operands: tuple[Value, ...], always: bool = False) -> Node:
        """Return this operation on other operands: the node itself if they are the same, unless a
        new one is wanted `always`. Where their types are, what was checked of it holds on."""
        if not always and all(map(operator.is_, operands, self.operands)):
            return self
        types = tuple([result.type for result in self.results])
        node = Node(self.op, operands, self.attributes, types, self.origin)
        pairs = zip(operands, self.operands, strict=True)
        if all([a.type is b.type or a.type == b.type for a, b in pairs]):
            node.found(self.sound, self.facts)
        return node

    def found(self, sound: OpSchema | None, facts: Any = None) -> None:
        """Note what checks have found of the node; the meaning of the node stays."""
        object.__setattr__(self, "sound", sound)
        object.__setattr__(self, "facts", facts)

    def __setattr__(self, name: str, value: object) -> None:
        raise InternalError(f"Node is immutable: {name} of a {self.op} node can't be set")

    def __repr__(self) -> str:
        types = ", ".join(str(result.type) for result in self.results)
        return f"<Node {self.op} -> {types}>"

    @property
    def bodies(self) -> Iterator[tuple[str, Graph]]:
        """The graphs among the attributes, with their names."""
        for name, value in self.attributes.items():
            if isinstance(value, Graph):
                yield name, value


@dataclass(frozen=True, slots=True, eq=False)
class GraphInput:
    """A graph input: its value, its role, and its name (unique in the graph, never hashed)."""

    value: Value
    role: Role = Role.INPUT
    name: str = ""


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """At the end of a run, the memory of input `input_index` holds `value` (donation)."""

    input_index: int
    value: Value


@dataclass(frozen=True, slots=True)
class Location:
    """Where a node was declared: module path, the user's source line, and the op as declared."""

    module: str = ""
    source: str = ""
    op: str = ""

    def __str__(self) -> str:
        return ", ".join(part for part in (self.module, self.source) if part)


@dataclass(frozen=True, eq=False)
class Graph:
    """An ordered graph of nodes with inputs, outputs and state updates. Immutable.

    `nodes` is a topological order and holds every node that is reachable from the outputs and the
    updates. `locations` is indexed by a node's `origin`.
    """

    inputs: tuple[GraphInput, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    updates: tuple[StateUpdate, ...] = ()
    name: str = "graph"
    output_names: tuple[str, ...] = ()
    locations: tuple[Location, ...] = field(default=(), repr=False)

    @property
    def input_values(self) -> tuple[Value, ...]:
        """The values of the inputs, in order."""
        return tuple(entry.value for entry in self.inputs)

    @property
    def returned(self) -> tuple[Value, ...]:
        """Every value that must be computed: the outputs, then the values of the updates."""
        return self.outputs + tuple(update.value for update in self.updates)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of the input shapes, in order of first appearance."""
        seen: dict[str, None] = {}
        for entry in self.inputs:
            seen.update(dict.fromkeys(shape_symbols(entry.value.shape)))
        return tuple(seen)

    @cached_property
    def uses(self) -> Mapping[Value, tuple[tuple[Node, int], ...]]:
        """For each value, the (node, operand position) pairs that read it."""
        table: dict[Value, list[tuple[Node, int]]] = {}
        for node in self.nodes:
            for position, operand in enumerate(node.operands):
                table.setdefault(operand, []).append((node, position))
        return MappingProxyType({value: tuple(users) for value, users in table.items()})

    def location(self, node: Node) -> Location:
        """Return where `node` was declared; empty when it is not known."""
        if node.origin is None or not 0 <= node.origin < len(self.locations):
            return Location()
        return self.locations[node.origin]

    def __str__(self) -> str:
        from frame.ir.printer import print_graph

        return print_graph(self)

    def _repr_html_(self) -> str:
        from frame.ir.html import graph_html

        return graph_html(self)

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self.inputs)} inputs, {len(self.nodes)} nodes>"


class OpSchema(Protocol):
    """What the IR must know of an op: enough to build, parse and verify its nodes."""

    @property
    def name(self) -> str:
        """The name of the op."""

    @property
    def traits(self) -> Collection[str]:
        """The traits of the op; the plan asks for `checked`."""

    @property
    def indices(self) -> Callable[[Node], Mapping[Value, Size]]:
        """Which operands and results of a node hold indices below a limit once it has run."""

    def check(
        self, operands: tuple[TensorType, ...], attributes: Mapping[str, Attribute]
    ) -> tuple[Mapping[str, Attribute], tuple[TensorType, ...]]:
        """Return the normalised attributes and the result types, or raise InvalidArgumentError."""


class OpTable(Protocol):
    """The table of ops that builder, verifier, parser and the operators of Value use."""

    def lookup(self, name: str) -> OpSchema:
        """Return the schema of op `name`; raise NotFoundError for an unknown op."""

    def operator(self, name: str, *operands: Any) -> Any:
        """Apply a Python operator (`add`, `matmul`, `getitem`, ...) to values and scalars."""


_table: list[OpTable] = []


def install_op_table(table: OpTable) -> None:
    """Install the op table; `frame.ops` calls this once when it is imported."""
    _table[:] = [table]


def op_table() -> OpTable:
    """Return the installed op table."""
    if not _table:
        import importlib

        importlib.import_module("frame.ops")
    return _table[0]


def _operator(name: str, reflected: bool = False) -> Any:
    def apply(self: Value, other: Any) -> Value:
        pair = (other, self) if reflected else (self, other)
        return op_table().operator(name, *pair)

    return apply


def _equality(name: str, same: bool) -> Any:
    """Return `==` or `!=`: an op where the user's code writes it, else a question of identity.

    frame itself, and passes, keep values in tables and compare tuples of them.
    """

    def compare(self: Value, other: Any) -> Any:
        if other is None or isinstance(other, str):
            return (self is other) is same
        if not _user_compares(isinstance(other, Value)):
            return (self is other) is same
        return op_table().operator(name, self, other)

    return compare


def _user_compares(values: bool) -> bool:
    """Whether the caller of a comparison is not frame, and is building a graph.

    A pass of the user may ask whether two values are one; nobody asks that of a number.
    """
    from frame.ir.builder import active_builder  # which needs this module

    builder = active_builder()
    if builder is None or (values and not builder.of_user):
        return False
    caller = str(sys._getframe(2).f_globals.get("__name__", ""))
    return caller.partition(".")[0] != "frame"


_BINARY = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "truediv": "div",
    "floordiv": "floor_div",
    "mod": "mod",
    "pow": "pow",
    "matmul": "matmul",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "shift_left",
    "rshift": "shift_right",
}
_COMPARE = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
# what numpy calls the operators, when an array stands on the left of one
_UFUNCS = {
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "floor_divide": "floor_div",
    "remainder": "mod",
    "power": "pow",
    "left_shift": "shift_left",
    "right_shift": "shift_right",
    **{op: op for op in ("add", "matmul", "bitwise_and", "bitwise_or", "bitwise_xor")},
    **{op: op for op in (*_COMPARE.values(), "equal", "not_equal")},
}
# what people try as a method of an array -> the op that does it
_METHODS = {
    "T": "transpose",
    "astype": "cast",
    "clip": "clamp",
    "dot": "matmul",
    "ravel": "flatten",
    "view": "reshape",
    **{op: op for op in ("sum", "mean", "prod", "max", "min", "argmax", "argmin", "any", "all")},
    **{op: op for op in ("reshape", "transpose", "squeeze", "flatten", "round", "size")},
}


def _ufunc(self: Value, ufunc: np.ufunc, method: str, *operands: Any, **options: Any) -> Value:
    """Let an array on the left of an operator build the op; refuse other functions of numpy."""
    name = ufunc.__name__
    if method == "__call__" and not options and name in _UFUNCS:
        return op_table().operator(_UFUNCS[name], *operands)
    raise InvalidArgumentError(
        f"numpy.{name} takes arrays, received {self!r}, which the graph is built of: use "
        f"frame.ops in place of numpy, such as frame.ops.{_UFUNCS.get(name, name)}"
    )


def _absent(self: Value, name: str) -> Any:
    instead = f": use frame.ops.{_METHODS[name]}" if name in _METHODS else ""
    raise AttributeError(f"a graph value has no attribute {name!r}{instead}")


for _python, _op in _BINARY.items():
    setattr(Value, f"__{_python}__", _operator(_op))
    setattr(Value, f"__r{_python}__", _operator(_op, reflected=True))
for _python, _op in _COMPARE.items():
    setattr(Value, f"__{_python}__", _operator(_op))
setattr(Value, "__eq__", _equality("equal", True))  # noqa: B010
setattr(Value, "__ne__", _equality("not_equal", False))  # noqa: B010
setattr(Value, "__array_ufunc__", _ufunc)  # noqa: B010
setattr(Value, "__getattr__", _absent)  # noqa: B010
setattr(Value, "__iter__", lambda self: iter(op_table().operator("unpack", self)))  # noqa: B010
setattr(Value, "__getitem__", _operator("getitem"))  # noqa: B010
setattr(Value, "__neg__", lambda self: op_table().operator("neg", self))  # noqa: B010
setattr(Value, "__abs__", lambda self: op_table().operator("abs", self))  # noqa: B010
setattr(Value, "__invert__", lambda self: op_table().operator("bitwise_not", self))  # noqa: B010
