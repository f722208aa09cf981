"""The standard pipeline, how it is edited, and `compile_graph`, which the runtime calls."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from frame.compiler.pass_manager import (
    GroupInfoFunction,
    Instrument,
    Pass,
    PassContext,
    PassManager,
    Repeat,
    pass_text,
)
from frame.compiler.passes import load_split
from frame.compiler.passes.backend_lowering import CONSTRAINTS, BackendLowering
from frame.compiler.passes.backend_lowering import PRODUCED as PIECE
from frame.compiler.passes.batch_blocks import BatchBlocks
from frame.compiler.passes.canonicalize import Canonicalize
from frame.compiler.passes.common_subexpressions import CommonSubexpressionElimination
from frame.compiler.passes.constant_folding import ConstantFolding
from frame.compiler.passes.dead_nodes import DeadNodeElimination
from frame.compiler.passes.fusion import OperatorFusion
from frame.compiler.passes.layout_assignment import LayoutAssignment
from frame.compiler.passes.load_split import LoadSplit, Source, Split
from frame.compiler.passes.memory_planning import MemoryPlanning
from frame.compiler.passes.rematerialisation import Rematerialisation
from frame.compiler.passes.schedule_tuning import Choose, ScheduleTuning
from frame.compiler.passes.shape_inference import ShapeInference
from frame.core import plugins
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.core.targets import TargetDescription
from frame.hal.interfaces import Capabilities, Piece
from frame.ir.constraints import Constraint
from frame.ir.graph import Graph, GraphInput, Node, Value
from frame.ops.binding import constraints

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_SIMPLIFY: tuple[type[Any], ...] = (
    Canonicalize,
    ShapeInference,
    ConstantFolding,
    CommonSubexpressionElimination,
    DeadNodeElimination,
)
_LAYOUTS: tuple[type[Any], ...] = (BatchBlocks, LayoutAssignment, LoadSplit)
_LOWER: tuple[type[Any], ...] = (
    OperatorFusion,
    Rematerialisation,
    MemoryPlanning,
    BackendLowering,
)
_BUILT_IN: dict[str, type[Any]] = {cls.name: cls for cls in (*_SIMPLIFY, *_LAYOUTS, *_LOWER)}


def standard_passes() -> tuple[Pass, ...]:
    """Return the standard passes in their fixed order; the first five run to a fixed point."""
    simplify = Repeat(tuple(cls() for cls in _SIMPLIFY))
    return (simplify, *(cls() for cls in (*_LAYOUTS, *_LOWER)))


# --- the list of passes ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Pipeline:
    """An immutable list of passes. Edits return a new one and reach into `Repeat`."""

    passes: tuple[Pass, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the passes, in order, those that are repeated included."""
        return tuple(each.name for each in _flat(self.passes))

    def each(self) -> Iterator[Pass]:
        """Iterate over the passes, those that are repeated included."""
        return _flat(self.passes)

    def text(self) -> str:
        """Return the list with every option, for cache keys."""
        return ", ".join(pass_text(each) for each in self.passes)

    def insert_first(self, new: Pass) -> Pipeline:
        """Put a pass before all others: it sees the graph as it was declared."""
        return Pipeline((new, *self.passes))

    def insert_before(self, name: str, new: Pass) -> Pipeline:
        """Put a pass before the one called `name`."""
        return self._edit(name, lambda old: (new, old))

    def insert_after(self, name: str, new: Pass) -> Pipeline:
        """Put a pass after the one called `name`."""
        return self._edit(name, lambda old: (old, new))

    def replace(self, name: str, new: Pass) -> Pipeline:
        """Put a pass in the place of the one called `name`."""
        return self._edit(name, lambda old: (new,))

    def without(self, name: str) -> Pipeline:
        """Leave out the pass called `name`."""
        return self._edit(name, lambda old: ())

    def after(self, name: str) -> Pipeline:
        """Return the passes that follow the outermost one called `name`."""
        names = [each.name for each in self.passes]
        return Pipeline(self.passes[names.index(name) + 1 :])

    def split_at_layout(self) -> tuple[Pipeline, Pipeline]:
        """Return the passes before batch_blocks, or what follows it, and the others."""
        late = tuple(cls.name for cls in (*_LAYOUTS, *_LOWER))
        names = [each.name for each in self.passes]
        end = next((i for i, name in enumerate(names) if name in late), len(names))
        return Pipeline(self.passes[:end]), Pipeline(self.passes[end:])

    def _edit(self, name: str, change: Callable[[Pass], tuple[Pass, ...]]) -> Pipeline:
        if name not in self.names:
            raise NotFoundError(
                f"there is no pass named {name!r} in the list: {', '.join(self.names)}"
            )
        return Pipeline(_mapped(self.passes, name, change))


def _flat(passes: Sequence[Pass]) -> Iterator[Pass]:
    for each in passes:
        if isinstance(each, Repeat):
            yield from _flat(each.passes)
        else:
            yield each


def _mapped(
    passes: Sequence[Pass], name: str, change: Callable[[Pass], tuple[Pass, ...]]
) -> tuple[Pass, ...]:
    found: list[Pass] = []
    for each in passes:
        if isinstance(each, Repeat):
            found.append(replace(each, passes=_mapped(each.passes, name, change)))
        else:
            found.extend(change(each) if each.name == name else (each,))
    return tuple(found)


# --- texts ----------------------------------------------------------------------------------------

_EDIT = re.compile(
    r"\s*(?:(?P<verb>before|after|replace)\s+(?P<name>\w+)\s*:\s*)?(?P<pass>\w+)\s*"
    r"(?:\{(?P<options>[^{}]*)\})?\s*",
    re.ASCII,
)
_WITHOUT = re.compile(r"\s*without\s+(?P<name>\w+)\s*", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)

Passes = Pipeline | Sequence[Pass | str] | None


def make_pipeline(passes: Passes = None) -> Pipeline:
    """Return the standard pipeline with edits.

    Args:
        passes: None for the standard list; a `Pipeline` to be used as it is; or edits in order:
            a pass or the text `name{option=value, ...}` takes the place of the pass of that name,
            or goes before all others if there is none; `before NAME: PASS`, `after NAME: PASS` and
            `replace NAME: PASS` say where it goes; `without NAME` leaves a pass out.

    Raises:
        InvalidArgumentError: a text can't be read, an option is unknown or of a wrong type.
        NotFoundError: there is no pass of a name.
    """
    if isinstance(passes, Pipeline):
        return passes
    pipeline = Pipeline(standard_passes())
    if isinstance(passes, str):
        passes = (passes,)
    if not isinstance(passes, (list, tuple, type(None))):
        raise InvalidArgumentError(
            f"expected passes as a list of edits or a Pipeline, received {passes!r:.80}"
        )
    for edit in passes or ():
        pipeline = _applied(pipeline, edit)
    return pipeline


def _applied(pipeline: Pipeline, edit: Pass | str) -> Pipeline:
    if isinstance(edit, str):
        return _applied_text(pipeline, edit)
    if not isinstance(edit, Pass) or not isinstance(getattr(edit, "name", None), str):
        raise InvalidArgumentError(
            "passes must be frozen dataclasses with a `name` and run(graph, context), texts, or a "
            f"Pipeline; received {edit!r:.80}"
        )
    if edit.name in pipeline.names:
        return pipeline.replace(edit.name, edit)
    return pipeline.insert_first(edit)


def _applied_text(pipeline: Pipeline, text: str) -> Pipeline:
    if without := _WITHOUT.fullmatch(text):
        return pipeline.without(without["name"])
    found = _EDIT.fullmatch(text)
    if found is None:
        raise InvalidArgumentError(
            "expected a pass as 'name{option=value}', optionally after 'before NAME:', "
            f"'after NAME:' or 'replace NAME:', or 'without NAME'; received {text!r}"
        )
    new = make_pass(found["pass"], found["options"] or "")
    verbs = {
        "before": pipeline.insert_before,
        "after": pipeline.insert_after,
        "replace": pipeline.replace,
    }
    if found["verb"] is None:
        return _applied(pipeline, new)
    return verbs[found["verb"]](found["name"], new)


def make_pass(name: str, options: str = "") -> Pass:
    """Return the pass called `name` with options given as `option=value, ...`.

    Raises:
        NotFoundError: there is no such pass, neither built in nor as an entry point.
        InvalidArgumentError: an option is unknown, or its value does not fit.
    """
    cls = find_pass(name)
    default = cls()
    values = {}
    for item in filter(None, (part.strip() for part in options.split(","))):
        option, equals, text = (part.strip() for part in item.partition("="))
        known = [field.name for field in fields(cls)]
        if not equals or option not in known:
            raise InvalidArgumentError(
                f"the pass {name} has the options {', '.join(known) or '(none)'}, received {item!r}"
            )
        values[option] = _option(name, option, text, getattr(default, option))
    made: Pass = replace(default, **values)
    return made


def _option(name: str, option: str, text: str, default: Any) -> Any:
    """Return the value of an option, of the type of its default."""
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text]
        if isinstance(default, int):
            return int(text) if _INTEGER.fullmatch(text) else int("")
        return float(text) if isinstance(default, float) else text
    except (KeyError, ValueError):
        raise InvalidArgumentError(
            f"the option {option} of the pass {name} must be of type {type(default).__name__}, "
            f"received {text!r}"
        ) from None


def find_pass(name: str) -> type:
    """Return the class of a pass: a built-in one, else the entry point of that name.

    Raises:
        NotFoundError: there is none; the message lists the known names.
        DeviceError: its plug-in does not load.
        InvalidArgumentError: its plug-in gives something else than a pass class.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    points = plugins.entry_points(plugins.PASSES)
    for point in points:
        if point.name == name:
            return _pass_class(point)
    known = [*_BUILT_IN, *(point.name for point in points)]
    raise NotFoundError(f"there is no pass named {name!r}; known are: {', '.join(known)}")


def _pass_class(point: EntryPoint) -> type:
    found = plugins.load(point)
    if not isinstance(found, type) or not is_dataclass(found) or not hasattr(found, "run"):
        raise InvalidArgumentError(
            f"{plugins.described(point)}: expected a frozen dataclass with run(graph, context), "
            f"received {found!r:.80}"
        )
    return found


# --- compile_graph --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the passes make of one graph.

    `load` is the piece of the load program, None where there is none; its inputs are those of the
    whole graph at the positions `load_inputs`. `run_sources` says where each input of `run` comes
    from: an input of the whole graph, or an output of the load program. `passes` is the text of
    the pipeline.
    """

    run: Piece
    load: Piece | None
    run_sources: tuple[Source, ...]
    load_inputs: tuple[int, ...]
    passes: str


def compile_graph(
    graph: Graph,
    target: TargetDescription,
    capabilities: Capabilities,
    group_info: GroupInfoFunction,
    passes: Passes = None,
    instruments: Sequence[Instrument] = (),
    declared: Graph | None = None,
) -> Compiled:
    """Run the passes over a graph and freeze the pieces that a backend compiles.

    Args:
        graph: the whole graph of one target: forward, or forward, backward and update.
        target: what to generate code for.
        capabilities: what the backend can do on that target.
        group_info: the backend's answer for a group or control-flow node on a target.
        passes: see `make_pipeline`.
        instruments: what to tell of every pass that has run.
        declared: given when `graph` is what `simplify_graph` has made of this graph with the same
            passes: only the passes after those then run.

    Raises:
        InvalidArgumentError: the graph or the list of passes is not valid.
        UnimplementedError: the target can't run a node; `nodes` of the error holds it.
    """
    pipeline = make_pipeline(passes)
    require_lowering(pipeline)
    context = PassContext(target, capabilities, group_info, tuple(instruments))
    # Passes may remove the nodes that ask something of the symbols, so ask the declared graph.
    context.produced[CONSTRAINTS] = _constraints(graph, declared)
    todo = pipeline if declared is None else pipeline.split_at_layout()[1]
    with _collector_paused():
        run = _run(todo, graph, context)
        split: Split | None = context.produced.get(load_split.PRODUCED)
        if split is None or split.load is None:
            sources = tuple(Source(i) for i in range(len(graph.inputs)))
            return Compiled(run, None, sources, (), pipeline.text())
        rest = pipeline.after(LoadSplit.name)
        if ScheduleTuning.name in rest.names:  # what runs once is not worth it
            rest = rest.without(ScheduleTuning.name)
        load = _run(rest, split.load, replace(context, produced={}, counts={}))
    return Compiled(run, load, split.run_sources, split.load_inputs, pipeline.text())


def _constraints(graph: Graph, declared: Graph | None) -> tuple[Constraint, ...]:
    found = [*constraints(graph), *(constraints(declared) if declared is not None else ())]
    return tuple({constraint.size: constraint for constraint in reversed(found)}.values())[::-1]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the cyclic garbage collector from running: a compile makes many objects that stay.

    Each full collection would go through all of them, a quarter of the time of a large graph.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _run(pipeline: Pipeline, graph: Graph, context: PassContext) -> Piece:
    PassManager(pipeline.passes).run(graph, context)
    piece: Piece = context.produced[PIECE]
    return piece


def with_tuning(pipeline: Pipeline, choose: Choose) -> Pipeline:
    """Return a list of passes in which `choose` gives groups variants before memory is planned."""
    names = [name for name in (MemoryPlanning.name, BackendLowering.name) if name in pipeline.names]
    tuning = ScheduleTuning(choose)
    return pipeline.insert_before(names[0], tuning) if names else pipeline


def group_piece(
    group: Node,
    target: TargetDescription,
    capabilities: Capabilities,
    group_info: GroupInfoFunction,
) -> Piece:
    """Return the piece of one group alone, whose operands are its inputs."""
    inputs = tuple(
        GraphInput(Value(value.type), name=f"x{k}") for k, value in enumerate(group.operands)
    )
    types = tuple(result.type for result in group.results)
    node = Node("group", tuple(entry.value for entry in inputs), group.attributes, types)
    graph = Graph(inputs, (node,), node.results, (), "group")
    passes = Pipeline((MemoryPlanning(), BackendLowering()))
    return compile_graph(graph, target, capabilities, group_info, passes).run


def require_lowering(pipeline: Pipeline) -> None:
    """Check that a list of passes makes what a backend compiles.

    Raises:
        InvalidArgumentError: it does not end with backend_lowering.
    """
    if pipeline.names[-1:] != (BackendLowering.name,):
        raise InvalidArgumentError(
            "the list of passes must end with backend_lowering, which makes what a backend "
            f"compiles; received {', '.join(pipeline.names) or 'an empty list'}"
        )


def simplify_graph(
    graph: Graph,
    target: TargetDescription,
    capabilities: Capabilities,
    passes: Passes = None,
    instruments: Sequence[Instrument] = (),
) -> Graph:
    """Run the passes before layout_assignment: a backend is asked about this form what it refuses.

    `compile_graph(..., declared=graph)` runs the others over the result.
    """
    context = PassContext(target, capabilities, instruments=tuple(instruments))
    first, _ = make_pipeline(passes).split_at_layout()
    with _collector_paused():
        return PassManager(first.passes).run(graph, context)
