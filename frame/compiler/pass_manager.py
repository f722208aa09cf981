"""The pass manager: runs passes over a graph, verifies what they return and lets others watch.

A pass is a frozen dataclass: its fields are its options, `name` is a class variable, and
`run(graph, context)` returns the new graph, or the very same object when it changed nothing. A
pass holds no state; what it hands over besides the graph goes into `context.produced`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, fields, is_dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

from frame.core.dataclass import dataclass
from frame.core.errors import FrameError, InvalidArgumentError
from frame.core.targets import TargetDescription
from frame.hal.interfaces import Capabilities, GroupInfo
from frame.ir.graph import Graph, Node, TensorType
from frame.ir.printer import print_graph
from frame.ir.verify import verify

GroupInfoFunction = Callable[[Node, TargetDescription], GroupInfo]

MAX_ROUNDS = 50
"""How often rewrites go over a graph until nothing changes, before they are called endless."""


@runtime_checkable
class Pass(Protocol):
    """A pass: a frozen dataclass whose fields are its options."""

    name: ClassVar[str]

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return the new graph, or `graph` itself when nothing changes."""


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One run of one pass, as instruments see it.

    `seconds` is the time of the pass itself, `verify_seconds` that of the verifier after it;
    `rewrites` counts what the pass did, by rule.
    """

    name: str
    before: Graph
    after: Graph
    seconds: float
    verify_seconds: float
    rewrites: Mapping[str, int]

    @property
    def changed(self) -> bool:
        """Whether the pass returned another graph."""
        return self.after is not self.before

    @property
    def text_before(self) -> str:
        """The canonical text of the graph before the pass; printed when asked for."""
        return print_graph(self.before)

    @property
    def text_after(self) -> str:
        """The canonical text of the graph after the pass; printed when asked for."""
        return print_graph(self.after)


class Instrument(Protocol):
    """Something that watches passes."""

    def after_pass(self, record: PassRecord) -> None:
        """Look at a pass that has run and been verified."""


class Recorder:
    """An instrument that keeps every record."""

    def __init__(self) -> None:
        self.records: list[PassRecord] = []

    def after_pass(self, record: PassRecord) -> None:
        """Keep the record."""
        self.records.append(record)

    def seconds(self) -> dict[str, float]:
        """Return the time of each pass with its verification, summed over its runs."""
        total: dict[str, float] = {}
        for record in self.records:
            spent = record.seconds + record.verify_seconds
            total[record.name] = total.get(record.name, 0.0) + spent
        return total

    def rewrites(self) -> dict[str, int]:
        """Return how often each rule was applied, over all passes."""
        total: dict[str, int] = {}
        for record in self.records:
            for rule, number in record.rewrites.items():
                total[rule] = total.get(rule, 0) + number
        return total


def _no_group_info(node: Node, target: TargetDescription) -> GroupInfo:
    return GroupInfo()


@dataclass(frozen=True)
class PassContext:
    """What passes know beside the graph.

    `group_info` answers for a group or control-flow node on the target. `produced` is where passes
    leave what is no graph (the plan, the piece, the split), by name; `settled` holds the nodes that
    no rule of canonicalize changes: a rule looks at a node and at what it is made from, and neither
    ever changes. One context serves one run of a pipeline over one graph.
    """

    target: TargetDescription
    capabilities: Capabilities
    group_info: GroupInfoFunction = _no_group_info
    instruments: tuple[Instrument, ...] = ()
    produced: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    settled: set[Node] = field(default_factory=set)

    def count(self, rule: str, number: int = 1) -> None:
        """Note that a rule was applied."""
        self.counts[rule] = self.counts.get(rule, 0) + number


def run_pass(pass_: Pass, graph: Graph, context: PassContext) -> Graph:
    """Run one pass, verify its result if it changed something, and tell the instruments.

    Raises:
        FrameError: whatever the pass raised, its message after the name of the pass; or
            InvalidArgumentError when the graph that it returned breaks an invariant.
    """
    if isinstance(pass_, Repeat):
        return pass_.run(graph, context)
    context.counts.clear()
    with _named(pass_.name):
        start = time.perf_counter()
        result = pass_.run(graph, context)
        middle = time.perf_counter()
        if result is not graph:
            _check_result(pass_, graph, result)
        end = time.perf_counter()
    counts = MappingProxyType(dict(context.counts))
    record = PassRecord(pass_.name, graph, result, middle - start, end - middle, counts)
    for instrument in context.instruments:
        instrument.after_pass(record)
    return result


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Put the name of the pass before the message of an error, whose class and facts stay."""
    try:
        yield
    except FrameError as error:
        error.args = (f"{name}: {error.message}", *error.args[1:])
        raise
    except Exception as error:
        error.add_note(f"in the pass {name}")
        raise


def _check_result(pass_: Pass, before: Graph, after: Graph) -> None:
    if not isinstance(after, Graph):
        raise InvalidArgumentError(f"expected a Graph, received {type(after).__name__}")
    if not getattr(pass_, "changes_inputs", False) and _interface(before) != _interface(after):
        raise InvalidArgumentError(
            f"expected a graph with the inputs, outputs and updates of the one before, "
            f"({_interface_text(before)}), received ({_interface_text(after)})"
        )
    verify(after)


def _interface(graph: Graph) -> tuple[Any, ...]:
    inputs = tuple((e.name, e.role, _logical(e.value.type)) for e in graph.inputs)
    outputs = tuple(_logical(value.type) for value in graph.outputs)
    return inputs, outputs, tuple(update.input_index for update in graph.updates)


def _logical(type_: TensorType) -> tuple[Any, ...]:
    return type_.dtype, type_.shape, type_.device


def _interface_text(graph: Graph) -> str:
    inputs = ", ".join(f"{e.name}: {e.value.type}" for e in graph.inputs)
    return f"{inputs} -> {', '.join(str(value.type) for value in graph.outputs)}"


@dataclass(frozen=True)
class Repeat:
    """Runs passes over and over until none of them changes anything."""

    name: ClassVar[str] = "repeat"
    passes: tuple[Pass, ...]

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return the graph that all passes leave alone.

        Raises:
            InvalidArgumentError: the passes go on changing the graph, such as two that undo each
                other.
        """
        unchanged = 0
        for step in range(MAX_ROUNDS * len(self.passes)):
            before = graph
            graph = run_pass(self.passes[step % len(self.passes)], graph, context)
            unchanged = unchanged + 1 if graph is before else 0
            if unchanged >= len(self.passes):
                return graph
        raise endless("the passes " + ", ".join(each.name for each in self.passes))


def endless(rewrites: str) -> InvalidArgumentError:
    """Return the error of rewrites, named by the text, that are not done after MAX_ROUNDS."""
    return InvalidArgumentError(
        f"{rewrites} still changed the graph after {MAX_ROUNDS} rounds: one of them undoes what "
        "another does, or returns a new graph where nothing changes"
    )


class PassManager:
    """Runs a list of passes over a graph."""

    def __init__(self, passes: Sequence[Pass]) -> None:
        self.passes = tuple(passes)

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Verify `graph`, run the passes in order, and return the last graph.

        Raises:
            FrameError: what a pass raised, with the name of the pass before the message.
        """
        verify(graph)
        for pass_ in self.passes:
            graph = run_pass(pass_, graph, context)
        return graph


def pass_text(pass_: Pass) -> str:
    """Return the text of a pass with all its options, for cache keys: `name{option=value}`."""
    if isinstance(pass_, Repeat):
        return f"repeat({', '.join(pass_text(each) for each in pass_.passes)})"
    if not is_dataclass(pass_):
        return pass_.name
    options = ", ".join(f"{f.name}={_option_text(getattr(pass_, f.name))}" for f in fields(pass_))
    return f"{pass_.name}{{{options}}}" if options else pass_.name


def _option_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, frozenset):
        return f"[{' '.join(sorted(map(str, value)))}]"
    return str(value) if isinstance(value, (int, str)) else repr(value)
