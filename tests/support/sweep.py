"""The sweep: all cases of one op in one dtype as one graph, compiled and compared in float64.

The cases are the samples of the record, and the boundaries of the schedule that the op selects:
its operands at the edges of vectors, tiles, blocks and grains, whole, strided, offset, transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from frame import ops
from frame.backends.cpu.pool import set_num_threads
from frame.backends.cpu.target import host_target
from frame.codegen.schedules.registry import schedules
from frame.core import config
from frame.core.dtypes import DType, bfloat16, float16, float32, float64
from frame.core.dtypes import dtype as dtype_of
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Shape
from frame.core.tolerances import compare
from frame.ir.builder import GraphBuilder
from frame.ir.graph import ROW_MAJOR, Graph, Value
from frame.ops.anchors import ANCHORS
from frame.ops.interpreter import interpret
from frame.ops.record import OpDef, Sample, Trait
from frame.ops.registry import create_node
from frame.ops.vjp import inline
from frame.runtime.cache import Cache
from frame.runtime.loading import Declared, load
from tests.ops.support import is_float, operands_of, types_of
from tests.support.boundaries import data_of, graphs
from tests.support.uses import USES

FLOATS: tuple[DType, ...] = (float32, float64, float16, bfloat16)


@dataclass(frozen=True)
class Case:
    """One graph of samples: its inputs, its outputs in float64, and the scale of their errors."""

    graph: Graph
    inputs: list[np.ndarray]
    expected: list[np.ndarray]
    scales: list[np.ndarray | None]
    names: list[str]


def _absolute(arrays: Iterable[np.ndarray]) -> list[np.ndarray]:
    return [np.abs(a) if a.dtype.kind == "f" or not a.dtype.isbuiltin else a for a in arrays]


def _magnitude_of_terms(graph: Graph, inputs: list[np.ndarray]) -> list[np.ndarray | None]:
    """The op applied to absolute values: what the terms of each result add up to."""
    return _absolute(interpret(graph, _absolute(inputs)))


def _largest(graph: Graph, inputs: list[np.ndarray]) -> list[np.ndarray | None]:
    """The largest finite magnitude of each result: for ops that mix a whole row."""
    results = interpret(graph, inputs)
    return [
        np.max(np.abs(np.where(np.isfinite(r), r, 0.0)), initial=1.0)
        if r.dtype.kind == "f"
        else None
        for r in results
    ]


def _first_operand(graph: Graph, inputs: list[np.ndarray]) -> list[np.ndarray | None]:
    """The magnitude of the first operand of the node that makes each result."""
    with GraphBuilder("operands") as builder:
        values = inline(graph, [builder.input(value.type) for value in graph.input_values])
        for output in graph.outputs:
            builder.output(values[output.node.operands[0]])
    return list(np.abs(array) for array in interpret(builder.finish(), inputs))


def _none(graph: Graph, inputs: list[np.ndarray]) -> list[np.ndarray | None]:
    return [None] * len(graph.outputs)


Scale = Callable[[Graph, list[np.ndarray]], list[np.ndarray | None]]

# op -> how large the terms are whose rounding errors add up in a result; the rest: the result
SCALES: Mapping[str, Scale] = {
    **dict.fromkeys(
        (
            "sum", "mean", "matmul", "conv2d", "conv2d_filter_grad", "scatter_add", "avg_pool2d",
            "mse_loss", "conv1d",
            "conv_transpose2d", "cumsum", "linear_scan", "selective_scan", "cosine_similarity",
            "kl_div",
        ),
        _magnitude_of_terms,
    ),
    "gelu": _first_operand,  # x * (1 + erf) / 2 cancels for negative x
    **dict.fromkeys(
        (
            "softmax", "log_softmax", "layer_norm", "batch_norm_train", "batch_norm_infer",
            "softmax_cross_entropy", "scan", "normal", "group_norm", "rms_norm",
            "scaled_dot_product_attention", "binary_cross_entropy_with_logits",
            "rfft", "irfft", "fourier_rows", "affine_sample",
        ),
        _largest,
    ),
}  # fmt: skip


def samples_by_dtype(record: OpDef) -> dict[DType, list[Sample]]:
    """Return the samples in each float dtype; those without floats come once, with float32."""
    samples = list(record.samples())
    table: dict[DType, list[Sample]] = {}
    for floats in FLOATS:
        chosen = [s for s in samples if floats == float32 or _has_floats(s)]
        chosen = [s for s in chosen if _accepts(record, s, floats)]
        if chosen:
            table[floats] = chosen
    return table


def _has_floats(sample: Sample) -> bool:
    return any(
        a is not None and is_float(a) and k not in sample.fixed
        for k, a in enumerate(sample.operands)
    )


def _accepts(record: OpDef, sample: Sample, floats: DType) -> bool:
    try:
        record.check(types_of(operands_of(sample, floats)), sample.attributes)
    except InvalidArgumentError:
        return False
    return True


@dataclass(frozen=True)
class Part:
    """A graph of some cases, the data it is run on, and how large the terms of its results are."""

    graph: Graph
    inputs: list[np.ndarray]
    names: list[str]
    scale: Scale


def make_case(record: OpDef, samples: Iterable[Sample], floats: DType) -> Case:
    """Build one graph of all samples, and compute what it must give."""
    return join(f"{record.name}_{floats}", [sample_part(record, samples, floats)])


def sample_part(record: OpDef, samples: Iterable[Sample], floats: DType) -> Part:
    """Build a graph of all samples."""
    entries = [
        Entry(sample.name, operands_of(sample, floats), sample.attributes) for sample in samples
    ]
    return entry_part(record, entries)


@dataclass(frozen=True)
class Entry:
    """One use of an op: its operands, and how each lies in memory (a name of VIEWS)."""

    name: str
    arrays: list[np.ndarray]
    attributes: Mapping[str, Any]
    view: str = "whole"


def entry_part(record: OpDef, entries: Iterable[Entry]) -> Part:
    """Build a graph of uses of one op."""
    inputs: list[np.ndarray] = []
    names: list[str] = []
    with GraphBuilder(record.name) as builder:
        for entry in entries:
            stored, seen = VIEWS[entry.view]
            arrays = [np.array(stored(array), order="C") for array in entry.arrays]
            inputs.extend(arrays)
            operands = tuple(seen(builder.input(type_)) for type_ in types_of(arrays))
            for result in create_node(record.name, operands, entry.attributes):
                builder.output(result)
                names.append(f"{entry.name} {entry.view}".removesuffix(" whole"))
    return Part(builder.finish(), inputs, names, SCALES.get(record.name, _none))


def join(name: str, parts: Iterable[Part]) -> Case:
    """Build one graph of all parts, and compute what each must give by itself."""
    case = Case(Graph((), (), ()), [], [], [], [])
    with GraphBuilder(name) as builder:
        for part in parts:
            values = inline(part.graph, [builder.input(v.type) for v in part.graph.input_values])
            for output in part.graph.outputs:
                builder.output(_row_major(values[output]))
            case.inputs.extend(part.inputs)
            case.names.extend(part.names)
            case.expected.extend(interpret(part.graph, part.inputs))
            case.scales.extend(part.scale(part.graph, part.inputs))
    return replace(case, graph=builder.finish())


# --- boundaries -----------------------------------------------------------------------------------


def _doubled(array: np.ndarray) -> np.ndarray:
    return np.repeat(array, 2, axis=-1)


def _sliced(start: int, step: int) -> Callable[[Value], Value]:
    def seen(value: Value) -> Value:
        lead = (0,) * (value.rank - 1)
        starts, steps = (*lead, start), (*(1 for _ in lead), step)
        return ops.slice(value, starts, value.shape, steps)

    return seen


def _turned(value: Value) -> Value:
    return ops.transpose(value, tuple(reversed(range(value.rank))))


# name -> how the memory of an operand is made, and how the operand is taken from it
VIEWS: Mapping[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[Value], Value]]] = {
    "whole": (lambda array: array, lambda value: value),
    "strided": (_doubled, _sliced(0, 2)),
    "strided and offset": (_doubled, _sliced(1, 2)),
    "offset": (lambda a: np.concatenate([a[..., :1], a], axis=-1), _sliced(1, 1)),
    "transposed": (np.transpose, _turned),
}

# ops whose schedule many share -> the anchor that publishes shapes for them
SHARED: Mapping[Trait, str] = {Trait.ELEMENTWISE: "elementwise", Trait.REDUCTION: "reduction"}

# the graphs of an anchor that ANCHORS doesn't name, or in which several ops meet, are joined to one
JOINED: Mapping[str, str] = {
    "add": "elementwise",
    "sum": "reduction",
    "relayout": "relayout",
    "cumsum": "cumsum",
    "fourier_rows": "fourier_rows",
    "scaled_dot_product_attention": "attention",
}


def boundary_parts(record: OpDef, floats: DType) -> list[Part]:
    """Return the cases at the boundaries of the schedule that an op selects, in a float dtype."""
    parts = [_graph_part(graph) for graph in _boundary_graphs(record, floats)]
    entries = list(boundary_entries(record, floats))
    return [*parts, entry_part(record, entries)] if entries else parts


def _boundary_graphs(record: OpDef, floats: DType) -> Iterator[Graph]:
    anchor = JOINED.get(record.name) or ANCHORS.get(record.name)
    for graph in graphs(anchor, small=False).values() if anchor else ():
        first = graph.input_values[0].dtype
        if (first if first in FLOATS else float32) == floats:
            yield graph


def _graph_part(graph: Graph) -> Part:
    data = data_of(graph)
    names = [f"{graph.name} {k}" for k in range(len(graph.outputs))]
    return Part(graph, data.inputs, names, lambda graph, inputs: data.scales)


def boundary_entries(record: OpDef, floats: DType) -> Iterator[Entry]:
    """Yield uses of an op that shares its schedule with others, at the edges of that schedule."""
    if record.name in USES:
        anchor, uses = USES[record.name]
        for shape in schedules("cpu")[anchor].boundary_shapes(host_target(), floats):
            for arrays, attributes in uses(shape, floats):
                yield Entry(f"{shape} {attributes}", arrays, attributes)
        return
    anchor = next((SHARED[trait] for trait in SHARED if trait in record.traits), None)
    samples = samples_by_dtype(record).get(floats)
    if anchor is None or not samples:
        return
    sample = max(samples, key=lambda s: (_has_floats(s), max(a.size for a in operands_of(s))))
    arrays = operands_of(sample, floats)
    dtype = dtype_of(arrays[-1].dtype)
    shapes = list(schedules("cpu")[anchor].boundary_shapes(host_target(), dtype))
    choices = [(shape, "whole") for shape in shapes] + [(shapes[-1], view) for view in VIEWS][1:]
    for shape, view in choices:
        filled = [_filled(record, array, shape) for array in arrays]
        for axes in _reduced(len(shape)) if anchor == "reduction" else (None,):
            attributes = sample.attributes if axes is None else {"axes": axes}
            yield Entry(f"{shape} {axes or ''}".strip(), filled, attributes, view)


def _filled(record: OpDef, array: np.ndarray, shape: Shape) -> np.ndarray:
    """Return an operand of a shape with the elements of a sample, again and again.

    A product takes powers of two, which it must multiply without an error.
    """
    if record.name == "prod" and is_float(array):
        array = np.array([1.0, -1.0, 2.0, 0.5, -0.5, 1.0, -2.0], array.dtype)
    return np.resize(array, shape)


def _reduced(rank: int) -> Iterator[tuple[int, ...]]:
    yield (rank - 1,)
    yield (0,)
    if rank > 2:
        yield (0, rank - 1)


def _row_major(value: Value) -> Value:
    """A result in another layout is stored back in row-major order, to be compared."""
    return value if value.type.layout == ROW_MAJOR else create_node("relayout", (value,), {})[0]


def compile_cpu(graph: Graph) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """Compile for the cpu, without a cache on disk; nothing may run in numpy."""
    loaded = load(Declared(graph), Cache(None, remembered=0))
    for program in filter(None, (loaded.run, loaded.load)):
        if program.host_steps:
            raise AssertionError(f"ops ran in numpy: {program.host_steps}")
    made = [] if loaded.load is None else loaded.load.run([])
    derived = [np.asarray(made[index]) for index in loaded.manifest.derived]
    return lambda inputs: [np.array(r) for r in loaded.run.run([*inputs, *derived])]


def check_case(case: Case, op: str) -> None:
    """Compare with the reference; then 1 and 2 threads, with the usual grain and a grain of 1."""
    first = compile_cpu(case.graph)(case.inputs)
    values = zip(first, case.expected, case.scales, case.graph.outputs, case.names, strict=True)
    for k, (got, want, scale, value, name) in enumerate(values):
        where = f"{op}[{name}] {value.type} output {k}"
        compare(got, want, value.dtype, scale, where, zero_signs=False)
    with config.override(FRAME_GRAIN="1"):
        run = compile_cpu(case.graph)
    try:
        results = [_with_threads(run, case.inputs, threads) for threads in (1, 2)]
    finally:
        set_num_threads(None)
    for k, (one, two) in enumerate(zip(*results, strict=True)):
        same = one.tobytes() == two.tobytes()
        assert same, f"{op} output {k} depends on the number of threads"
    for k, (got, want, scale, value, name) in enumerate(
        zip(results[0], case.expected, case.scales, case.graph.outputs, case.names, strict=True)
    ):
        where = f"{op}[{name}] {value.type} output {k}, grain 1"
        compare(got, want, value.dtype, scale, where, zero_signs=False)


def _with_threads(
    run: Callable[[Sequence[np.ndarray]], list[np.ndarray]],
    inputs: Sequence[np.ndarray],
    threads: int,
) -> list[np.ndarray]:
    set_num_threads(threads)
    return run(inputs)
