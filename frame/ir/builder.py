"""Building graphs: the builder that ops append to, and the rewriter that passes use."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

from frame.core.devices import HOST
from frame.core.errors import InternalError, InvalidArgumentError, UnimplementedError
from frame.ir.graph import (
    MAX_DEPTH,
    Attribute,
    Graph,
    GraphInput,
    Location,
    Node,
    Role,
    StateUpdate,
    TensorType,
    Value,
    op_table,
)
from frame.ir.printer import MAX_STRING, quote

_active: contextvars.ContextVar[GraphBuilder | None] = contextvars.ContextVar(
    "frame_graph_builder", default=None
)

_in_rule: contextvars.ContextVar[bool] = contextvars.ContextVar("frame_in_rule", default=False)

_MISTAKES = (InvalidArgumentError, UnimplementedError)


@contextlib.contextmanager
def rule_of_op() -> Iterator[None]:
    """While a rule of an op builds nodes, in whatever pass, `==` of values compares elements."""
    token = _in_rule.set(True)
    try:
        yield
    finally:
        _in_rule.reset(token)


class GraphBuilder:
    """Collects the nodes of one graph. Ops that are called inside its `with` block append to it.

    A builder that is entered inside another one builds a body: a value of an outer builder that is
    used in it becomes a capture, an extra input of role CAPTURE. `captures` maps the values of the
    enclosing builder to these inputs, in order: its keys are the operands that a node which holds
    the body must take.

    A mistake that is found inside the block is told with the user's own line.
    """

    _is_pass = False

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.inputs: list[GraphInput] = []
        self.nodes: list[Node] = []
        self.outputs: list[Value] = []
        self.output_names: list[str] = []
        self.updates: list[StateUpdate] = []
        self.locations: list[Location] = []
        self.captures: dict[Value, Value] = {}
        self.origin: int | None = None
        self.parent: GraphBuilder | None = None
        self._module: list[str] = []
        self._owned: set[Value] = set()
        self._input_names: set[str] = set()
        self._streams = 0
        self._depth = 0
        self._token: contextvars.Token[GraphBuilder | None] | None = None

    def __enter__(self) -> Self:
        self.parent = _active.get()
        self._depth = 1 if self.parent is None else self.parent._depth + 1
        if self._depth > MAX_DEPTH:
            raise InvalidArgumentError(
                f"the body {self.name} is nested more than {MAX_DEPTH} graphs deep: use one scan "
                "or while over a longer axis, or ops outside of it"
            )
        if self.parent is not None and not self._module:
            self._module = [*self.parent._module]
        self._token = _active.set(self)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._token is not None:
            _active.reset(self._token)
            self._token = None
        error = exception[1]
        if self.of_user and self.parent is None and isinstance(error, _MISTAKES):
            from frame.ir.locations import add_source

            add_source(error)

    def input(self, type_: TensorType, role: Role = Role.INPUT, name: str = "") -> Value:
        """Declare a graph input; an empty name becomes `arg<position>`."""
        _check_name(name, "an input")
        if not isinstance(type_, TensorType):
            raise InvalidArgumentError(
                f"expected the type of an input, as frame.spec((2, 3)) gives it, received "
                f"{type_!r:.80}"
            )
        name = name or f"arg{len(self.inputs)}"
        if name in self._input_names:
            raise InvalidArgumentError(
                f"the graph {self.name} already has an input named {name!r}: give each input and "
                "each parameter a name of its own"
            )
        value = Value(type_)
        self.adopt(GraphInput(value, role, name))
        return value

    def add(
        self,
        op: str,
        operands: tuple[Value, ...],
        attributes: Mapping[str, Attribute],
        types: tuple[TensorType, ...],
    ) -> tuple[Value, ...]:
        """Append a node whose types have been inferred; `ops.create_node` is the caller."""
        resolved = tuple(self.resolve(operand) for operand in operands)
        node = Node(op, resolved, attributes, on_device(types, resolved), self._next_origin(op))
        return self.append(node)

    def append(self, node: Node) -> tuple[Value, ...]:
        """Append an existing node, whose operands must be values of this graph."""
        self.nodes.append(node)
        self._owned.update(node.results)
        return node.results

    def adopt(self, entry: GraphInput) -> None:
        """Take over an input of another graph as it is."""
        self.inputs.append(entry)
        self._input_names.add(entry.name)
        self._owned.add(entry.value)

    def resolve(self, value: Value) -> Value:
        """Return `value` as seen in this graph, capturing it from an outer builder if need be."""
        if value in self._owned:
            return value
        if self.parent is None or not self.parent.can_see(value):
            raise InvalidArgumentError(
                f"{value!r} belongs to another graph than {self.name}: a value may be used only "
                "in the graph that it was made in, and in bodies nested in that graph"
            )
        outer = self.parent.resolve(value)
        if outer not in self.captures:
            self.captures[outer] = self.input(value.type, Role.CAPTURE, self._capture_name())
        return self.captures[outer]

    def _capture_name(self) -> str:
        numbers = itertools.count(len(self.captures))
        return next(name for n in numbers if (name := f"capture{n}") not in self._input_names)

    def owns(self, value: Value) -> bool:
        """Tell whether `value` is an input or a result of this very builder."""
        return value in self._owned

    def can_see(self, value: Value) -> bool:
        """Tell whether `value` belongs to this builder or to one around it."""
        seen: GraphBuilder | None = self
        while seen is not None:
            if value in seen._owned:
                return True
            seen = seen.parent
        return False

    def output(self, value: Value, name: str = "") -> None:
        """Add an output."""
        self.outputs.append(self.resolve(value))
        self.output_names.append(name or f"output{len(self.output_names)}")

    def update(self, state: Value, value: Value) -> None:
        """Declare that the input `state` holds `value` after the run; types must be equal."""
        for index, entry in enumerate(self.inputs):
            if entry.value is state:
                self._check_update(entry, value)
                self.updates.append(StateUpdate(index, self.resolve(value)))
                return
        raise InvalidArgumentError(f"{state!r} is not an input of the graph {self.name}")

    def _check_update(self, entry: GraphInput, value: Value) -> None:
        if value.type != entry.value.type:
            raise InvalidArgumentError(
                f"the update of {entry.name!r} must have the type {entry.value.type} of the "
                f"state, received {value.type}"
            )

    @property
    def of_user(self) -> bool:
        """Whether this graph is being declared, and not one of a pass; also in a `rule_of_op`."""
        if _in_rule.get():
            return True
        return not self._is_pass and (self.parent is None or self.parent.of_user)

    def next_stream(self) -> int:
        """Return a fresh random stream number, unique over the whole nest of builders."""
        root: GraphBuilder = self
        while root.parent is not None:
            root = root.parent
        root._streams += 1
        return root._streams

    def push_module(self, name: str) -> None:
        """Enter a module: nodes declared from here on carry its path."""
        self._module.append(name)

    def pop_module(self) -> None:
        """Leave the innermost module."""
        self._module.pop()

    def _next_origin(self, op: str) -> int | None:
        if self.origin is not None:
            return self.origin
        from frame.ir.locations import user_source

        own = self._inherited() or Location(".".join(self._module), user_source(), op)
        self.locations.append(own)
        return len(self.locations) - 1

    def _inherited(self) -> Location | None:
        """Return the place that a pass which builds this body works for, if one does."""
        outer = self.parent
        while outer is not None and outer.origin is None:
            outer = outer.parent
        if outer is None or outer.origin is None or not 0 <= outer.origin < len(outer.locations):
            return None
        return outer.locations[outer.origin]

    def finish(self) -> Graph:
        """Return the finished graph. Nodes that nothing reads are left to the passes."""
        return Graph(
            tuple(self.inputs),
            tuple(self.nodes),
            tuple(self.outputs),
            tuple(self.updates),
            self.name,
            tuple(self.output_names),
            tuple(self.locations),
        )


def on_device(types: tuple[TensorType, ...], operands: tuple[Value, ...]) -> tuple[TensorType, ...]:
    """Return result types on the device of the operands; type rules don't look at devices."""
    device = operands[0].type.device if operands else HOST
    if device == HOST:
        return types
    return tuple(replace(type_, device=device) for type_ in types)


def _last_stream(graph: Graph) -> int:
    """Return the highest number of a random stream in a graph and its bodies."""
    last = 0
    for node in graph.nodes:
        stream = node.attributes.get("stream", 0)
        last = max(last, stream if isinstance(stream, int) else 0)
        for _, body in node.bodies:
            last = max(last, _last_stream(body))
    return last


def current_builder() -> GraphBuilder:
    """Return the builder that ops append to; raise InvalidArgumentError outside any builder."""
    builder = _active.get()
    if builder is None:
        raise InvalidArgumentError(
            "frame.ops functions build graphs and need one to build: call them inside "
            "frame.trace, @frame.jit, an nn module or a GraphBuilder block"
        )
    return builder


def active_builder() -> GraphBuilder | None:
    """Return the builder that ops append to, or None."""
    return _active.get()


class Rewriter(GraphBuilder):
    """Builds the successor of a graph, node by node, and knows what became of each old value.

    Use inside `with Rewriter(graph) as rewriter:`. Walk `graph.nodes`; per node call `copy(node)`
    or build new values with `frame.ops` from `rewriter[old]` and then `replace(old, new)`. Nodes
    built in between inherit the origin of the node given to `at`. `finish` returns the old graph
    itself when nothing was changed. `is_pass` is false where rules of the user extend a graph that
    he declares: a pass handles what it tries, and asks which values are one.
    """

    def __init__(self, graph: Graph, inputs: bool = True, is_pass: bool = True) -> None:
        super().__init__(graph.name)
        self._is_pass = is_pass
        self.graph = graph
        self.locations = list(graph.locations)
        self.output_names = list(graph.output_names)
        self._values: dict[Value, Value] = {}
        self._streams = _last_stream(graph)
        if inputs:
            for entry in graph.inputs:
                self.adopt(entry)
                self._values[entry.value] = entry.value

    def __getitem__(self, value: Value) -> Value:
        try:
            return self._values[value]
        except KeyError:
            raise InternalError(
                f"the rewriter of {self.name} has not met {value!r} yet: copy or replace its node "
                "before its readers"
            ) from None

    def __contains__(self, value: Value) -> bool:
        return value in self._values

    def at(self, node: Node) -> None:
        """Give nodes that are built from here on the origin of `node`."""
        self.origin = node.origin

    def copy(self, node: Node) -> tuple[Value, ...]:
        """Take `node` over: the same object if its operands are unchanged."""
        operands = tuple([self[operand] for operand in node.operands])
        results = self.append(node.on(operands))
        self._values.update(zip(node.results, results, strict=True))
        return results

    def retype(self, node: Node, **attributes: Any) -> tuple[Value, ...]:
        """Take `node` over with its operands mapped, attributes changed and types inferred."""
        operands = tuple(self[operand] for operand in node.operands)
        schema = op_table().lookup(node.op)
        merged, types = schema.check(
            tuple(operand.type for operand in operands), {**node.attributes, **attributes}
        )
        placed = on_device(types, operands)
        results = self.append(Node(node.op, operands, merged, placed, node.origin))
        self._values.update(zip(node.results, results, strict=True))
        return results

    def replace(self, old: Value, new: Value) -> None:
        """Let every later reader of `old` read `new`."""
        self._values[old] = new

    def finish(self) -> Graph:
        """Return the new graph, or the old one itself when nothing was changed."""
        old = self.graph
        outputs = tuple(self[value] for value in old.outputs)
        updates = tuple(StateUpdate(u.input_index, self[u.value]) for u in old.updates)
        same = (
            tuple(self.nodes) == old.nodes
            and outputs == old.outputs
            and updates == old.updates
            and tuple(self.inputs) == old.inputs
        )
        if same:
            return old
        return Graph(
            tuple(self.inputs),
            tuple(self.nodes),
            outputs,
            updates,
            old.name,
            old.output_names,
            tuple(self.locations),
        )


def _check_name(name: Any, what: str) -> None:
    """Raise InvalidArgumentError for a name that a text can't hold."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"expected the name of {what} as text, received {name!r:.80}")
    if len(name) > MAX_STRING // 10 and len(quote(name)) > MAX_STRING:
        raise InvalidArgumentError(
            f"expected a name of {what} of at most {MAX_STRING} characters, received {len(name)} "
            f"that begin with {name[:40]!r}"
        )
