"""A target of the imagination, and helpers that the tests of the compiler share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from frame.compiler.pass_manager import Pass, PassContext, PassManager, Recorder
from frame.compiler.pipeline import Compiled, compile_graph
from frame.core.dtypes import DTYPES, DType, float32
from frame.core.shapes import Dim, Size
from frame.core.targets import TargetDescription
from frame.hal.interfaces import Capabilities, GroupInfo
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, Layout, Node, Role, TensorType, Value
from frame.ops.anchors import ANCHORS
from frame.ops.interpreter import interpret
from frame.ops.registry import records

TARGET = TargetDescription("imaginary", "x86_64-unknown-linux-gnu", "imaginary")
NATIVE = frozenset(r.name for r in records() if r.decomposition is None or r.name == "clamp")
CAPABILITIES = Capabilities(
    native=NATIVE | {"uniform", "normal"},
    composites=frozenset({"uniform", "normal"}),
    anchors=frozenset({"elementwise", "reduction", "relayout", *ANCHORS.values()}),
    dtypes=frozenset(DTYPES),
)
WHOLE = Capabilities(native=NATIVE | {"argmax"})
"""What a target of whole graphs can do: no anchors, so no groups; argmax as it is."""


def packed_group_info(group: Node, target: TargetDescription) -> GroupInfo:
    """Ask for a packed second operand of every product of matrices."""
    if group.op != "group" or group.attributes["anchor"] != "contraction":
        return GroupInfo()
    body: Graph = group.attributes["body"]
    right = next(node for node in body.nodes if node.op == "matmul").operands[1]
    if right not in body.input_values or right.rank != 2:
        return GroupInfo()
    return GroupInfo(layouts={body.input_values.index(right): Layout((1, 0), ((1, 8),))})


def context(**changes) -> PassContext:
    given = {"target": TARGET, "capabilities": CAPABILITIES, **changes}
    return PassContext(**given)


def tensor(*shape: Size | str, dtype: DType = float32) -> TensorType:
    sizes = tuple(Dim.symbol(s) if isinstance(s, str) else s for s in shape)
    return TensorType(dtype, sizes)


def build(
    function: Callable[..., Value | Sequence[Value]],
    *types: TensorType | tuple[TensorType, Role],
    name: str = "g",
) -> Graph:
    """Build a graph from a function of values; a pair gives an input a role."""
    with GraphBuilder(name) as builder:
        pairs = [entry if isinstance(entry, tuple) else (entry, Role.INPUT) for entry in types]
        inputs = [builder.input(t, role, f"x{i}") for i, (t, role) in enumerate(pairs)]
        result = function(*inputs)
        for value in (result,) if isinstance(result, Value) else result:
            builder.output(value)
    return builder.finish()


def run_one(pass_: Pass, graph: Graph, **changes) -> Graph:
    """Run one pass, verified before and after."""
    return PassManager([pass_]).run(graph, context(**changes))


def compiled(graph: Graph, **changes) -> Compiled:
    given = {"group_info": lambda node, target: GroupInfo(), **changes}
    capabilities = given.pop("capabilities", CAPABILITIES)
    return compile_graph(graph, TARGET, capabilities, **given)


def recorded(graph: Graph, **changes) -> tuple[Compiled, Recorder]:
    recorder = Recorder()
    return compiled(graph, instruments=[recorder], **changes), recorder


def arrays_for(graph: Graph, seed: int = 0, batch: int = 3) -> list[np.ndarray]:
    """Return random inputs; every symbol is `batch`."""
    random = np.random.default_rng(seed)
    return [array_of(entry.value.type, random, batch) for entry in graph.inputs]


def array_of(type_: TensorType, random: np.random.Generator, batch: int = 3) -> np.ndarray:
    shape = tuple(
        s.evaluate(dict.fromkeys(s.symbols, batch)) if isinstance(s, Dim) else s
        for s in type_.shape
    )
    if type_.dtype.is_float:
        return random.uniform(0.2, 1.5, shape).astype(type_.dtype.numpy)
    high = 2 if type_.dtype.is_bool else 3
    return random.integers(0, high, shape).astype(type_.dtype.numpy)


def run_compiled(result: Compiled, arrays: Sequence[np.ndarray], **options) -> list[np.ndarray]:
    """Interpret the load program and the run program of a compiled graph."""
    derived: list[np.ndarray] = []
    if result.load is not None:
        derived = interpret(result.load.graph, [arrays[i] for i in result.load_inputs], **options)
    inputs = [derived[s.index] if s.derived else arrays[s.index] for s in result.run_sources]
    return interpret(result.run.graph, inputs, **options)


def assert_same(before: Sequence[np.ndarray], after: Sequence[np.ndarray], exact: bool = False):
    assert len(before) == len(after)
    for one, other in zip(before, after, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        if exact or one.dtype.kind not in "fV":
            np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)
