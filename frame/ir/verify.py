"""The verifier of graphs: numbered invariants, checked after every pass that changed something.

V1   every value is defined once
V2   the order of the nodes is complete and acyclic: a node follows the nodes that it reads
V3   every op is known
V4   attributes and types are those that the schema of the op gives
V5   shapes are known: sizes are not negative, symbols are bound, layouts fit the rank
V6   one graph, one device
V7   attributes are of the closed set of types
V8   an update is of the type of its state input, which it updates alone; bodies have none
V9   names are unique and complete
V10  a body uses no value from around it: what it needs are captures, which are its inputs
V11  a graph returns something
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable
from typing import Any, NoReturn

from frame.core.dataclass import dataclass
from frame.core.devices import Device
from frame.core.dtypes import DType
from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.core.shapes import MAX_NUMEL, Dim, numel
from frame.ir.graph import (
    ROW_MAJOR,
    Constant,
    Graph,
    Node,
    OpSchema,
    TensorType,
    Value,
    op_table,
    shape_symbols,
)
from frame.ir.printer import print_node
from frame.ir.schema import check_node, find_schema

_MAX_DEPTH = 64


def verify(graph: Graph, symbols: Collection[str] = ()) -> None:
    """Check every invariant of a graph and of its bodies, in time linear in their nodes.

    Args:
        graph: the graph.
        symbols: symbols that are bound from outside, besides those of the input shapes.

    Raises:
        InvalidArgumentError: an invariant is broken. The message starts with its number and names
            the node, the graph and the place in the user's model.
    """
    _Verifier(graph, frozenset(symbols).union(graph.symbols), frozenset(), set(), 0).run()


def check_layout(type_: TensorType) -> None:
    """Check that the layout of a type fits its rank and sizes.

    Raises:
        InvalidArgumentError: it does not.
    """
    layout, rank = type_.layout, type_.rank
    if layout == ROW_MAJOR:
        return
    if layout.permutation and sorted(layout.permutation) != list(range(rank)):
        raise InvalidArgumentError(
            f"the layout of {type_} must order the axes 0 to {rank - 1}, each once"
        )
    if any(not 0 <= axis < rank or block < 1 for axis, block in layout.blocks):
        raise InvalidArgumentError(f"a block of the layout of {type_} must split one of its axes")
    if layout.winograd and (layout.winograd not in (2, 4) or type_.shape[2:] != (3, 3)):
        raise InvalidArgumentError(
            f"the layout of {type_} transforms windows [outputs, channels, 3, 3] by 2 or 4"
        )
    numel(type_.storage_shape)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a sound node needs of the graph around it."""

    schema: OpSchema | None
    symbols: tuple[str, ...]
    devices: tuple[Device, ...]
    bodies: tuple[Graph, ...] = ()


def _facts_of(
    schema: OpSchema | None, values: tuple[Value, ...], bodies: tuple[Graph, ...] = ()
) -> _Facts:
    symbols = (name for value in values for name in shape_symbols(value.shape))
    devices = (value.type.device for value in values)
    return _Facts(schema, tuple(dict.fromkeys(symbols)), tuple(dict.fromkeys(devices)), bodies)


def _schema_or_none(op: str) -> OpSchema | None:
    try:
        return op_table().lookup(op)
    except NotFoundError:
        return None


class _Verifier:
    """Checks one graph; `around` holds the values of the graphs that enclose it."""

    def __init__(
        self,
        graph: Graph,
        symbols: frozenset[str],
        around: Container[Value],
        done: set[int],
        depth: int,
        device: Device | None = None,
    ) -> None:
        self._graph = graph
        self._symbols = symbols
        self._around = around
        self._done = done
        self._depth = depth
        self._defined: set[Value] = set()
        self._devices: tuple[Device, ...] = () if device is None else (device,)

    def run(self) -> None:
        """Check the graph."""
        self._check_inputs()
        defined = self._defined
        for node in self._graph.nodes:
            if not defined.issuperset(node.operands):
                self._check_operands(node)
            for value in node.results:
                self._define(value, node)
            known = node.facts
            if known is None or known.schema is not _schema_or_none(node.op):
                known = self._facts(node)
            elif known.bodies:
                self._check_bodies(node)
            self._check_facts(known, node)
        self._check_returned()
        self._check_updates()
        self._check_names()

    # --- messages -----------------------------------------------------------------------------

    def _fail(self, number: int, problem: str, node: Node | None = None) -> NoReturn:
        text = f"V{number}: {problem}; in the graph {self._graph.name!r}"
        if node is not None:
            text += f", node {print_node(node, self._graph)}"
            location = str(self._graph.location(node))
            text += f" ({location})" if location else ""
        raise InvalidArgumentError(text)

    def _guard(self, number: int, check: Callable[..., Any], node: Node, *arguments: Any) -> None:
        try:
            check(*arguments)
        except InvalidArgumentError as error:
            self._fail(number, str(error), node)

    # --- V1, V2, V10: definitions and order -----------------------------------------------------

    def _define(self, value: Value, node: Node | None) -> None:
        if value in self._defined:
            self._fail(1, f"the value {value!r} is defined twice", node)
        self._defined.add(value)

    def _check_inputs(self) -> None:
        for entry in self._graph.inputs:
            if entry.value.node is not None:
                self._fail(1, f"the input {entry.name!r} is the result of a node")
            self._define(entry.value, None)
            self._check_type(entry.value.type, None)
            self._check_facts(_facts_of(None, (entry.value,)), None)

    def _check_operands(self, node: Node) -> None:
        for position, value in enumerate(node.operands):
            if value not in self._defined:
                self._fail_undefined(value, f"operand {position}", node)

    def _fail_undefined(self, value: Value, what: str, node: Node | None) -> NoReturn:
        if value in self._around:
            self._fail(
                10,
                f"{what} is a value of a graph around this body; pass it as a capture",
                node,
            )
        if value.node in self._graph.nodes:
            self._fail(2, f"{what} is defined only later in the order, or in a cycle", node)
        self._fail(2, f"{what} is defined by no input and no node of the graph", node)

    def _check_returned(self) -> None:
        if not self._graph.returned:
            self._fail(11, "a graph must have an output or an update")
        for index, value in enumerate(self._graph.outputs):
            if value not in self._defined:
                self._fail_undefined(value, f"output {index}", None)

    # --- V3, V4, V7: nodes ----------------------------------------------------------------------

    def _facts(self, node: Node) -> _Facts:
        """Check what concerns a node alone, and its bodies; nodes are immutable: once is enough."""
        self._check_bodies(node)
        for index, value in enumerate(node.results):
            if value.node is not node or value.index != index:
                self._fail(1, f"result {index} does not lead back to its node", node)
            self._check_type(value.type, node)
        self._check_schema(node)
        schema = find_schema(node.op)
        known = _facts_of(schema, node.results, tuple(body for _, body in node.bodies))
        node.found(schema, known)
        return known

    def _check_schema(self, node: Node) -> None:
        self._guard(3, find_schema, node, node.op)
        for name, value in node.attributes.items():
            if not is_attribute(value):
                self._fail(7, f"the attribute {name!r} has the type {type(value).__name__}", node)
        self._guard(4, check_node, node, node)

    # --- V5, V6: types --------------------------------------------------------------------------

    def _check_type(self, type_: TensorType, node: Node | None) -> None:
        for size in type_.shape:
            if not (isinstance(size, Dim) or (type(size) is int and 0 <= size <= MAX_NUMEL)):
                self._fail(5, f"{size!r} is not a size", node)
        try:
            numel(type_.shape)
            check_layout(type_)
        except InvalidArgumentError as error:
            self._fail(5, str(error), node)

    def _check_facts(self, facts: _Facts, node: Node | None) -> None:
        if facts.devices == self._devices and self._symbols.issuperset(facts.symbols):
            return
        for symbol in facts.symbols:
            if symbol not in self._symbols:
                self._fail(5, f"no input shape binds the symbol {symbol!r}", node)
        for device in facts.devices:
            self._devices = self._devices or (device,)
            if device != self._devices[0]:
                self._fail(6, f"expected the device {self._devices[0]}, received {device}", node)

    # --- V8, V9: updates and names --------------------------------------------------------------

    def _check_updates(self) -> None:
        if self._graph.updates and self._depth:
            self._fail(8, "only the top graph has updates, not a body")
        seen: set[int] = set()
        for update in self._graph.updates:
            index = update.input_index
            if not 0 <= index < len(self._graph.inputs) or index in seen:
                self._fail(8, f"an update must name an input, each at most once, received {index}")
            seen.add(index)
            entry = self._graph.inputs[index]
            if update.value not in self._defined:
                self._fail_undefined(update.value, f"the update of {entry.name!r}", None)
            if update.value.type != entry.value.type:
                self._fail(
                    8,
                    f"the update of {entry.name!r} must have its type {entry.value.type}, "
                    f"received {update.value.type}",
                )

    def _check_names(self) -> None:
        names = [entry.name for entry in self._graph.inputs]
        repeated = _first_repeated(names)
        if repeated is not None:
            self._fail(9, f"expected a unique name for each input, received {repeated!r} twice")
        if not all(names):
            self._fail(9, f"input {names.index('')} has no name")
        count = len(self._graph.output_names)
        if count not in (0, len(self._graph.outputs)):
            self._fail(9, f"there are {len(self._graph.outputs)} outputs and {count} names of them")

    # --- bodies ---------------------------------------------------------------------------------

    def _check_bodies(self, node: Node) -> None:
        for _, body in node.bodies:
            if id(body) in self._done:
                continue
            if self._depth >= _MAX_DEPTH:
                self._fail(10, f"bodies are nested more than {_MAX_DEPTH} deep", node)
            self._done.add(id(body))
            around = _Around(self._defined, self._around)
            symbols = self._symbols.union(body.symbols)
            device = self._devices[0] if self._devices else None
            _Verifier(body, symbols, around, self._done, self._depth + 1, device).run()


class _Around:
    """The values of the enclosing graphs, without copying their sets for each body."""

    def __init__(self, inner: set[Value], outer: Container[Value]) -> None:
        self._inner = inner
        self._outer = outer

    def __contains__(self, value: object) -> bool:
        return value in self._inner or value in self._outer


def _first_repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def is_attribute(value: Any) -> bool:
    """Tell whether a value belongs to the closed set of attribute types."""
    if isinstance(value, tuple):
        return all(_is_scalar(item) for item in value)
    return _is_scalar(value) or isinstance(value, (Constant, Graph))


def _is_scalar(value: Any) -> bool:
    # numpy scalars are subclasses of float and must not slip in: they print and hash differently.
    if type(value) is int:
        return -(2**63) <= value < 2**64
    return type(value) in (bool, float) or isinstance(value, (str, DType, Dim))
