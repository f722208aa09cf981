"""The sweep: all samples of one op in one dtype as one graph, compiled and compared in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from frame.backends.cpu.pool import set_num_threads
from frame.core import config
from frame.core.dtypes import DType, bfloat16, float16, float32, float64
from frame.core.errors import InvalidArgumentError
from frame.core.tolerances import compare
from frame.ir.builder import GraphBuilder
from frame.ir.graph import ROW_MAJOR, Graph, Value
from frame.ops.interpreter import interpret
from frame.ops.record import OpDef, Sample
from frame.ops.registry import create_node
from frame.runtime.cache import Cache
from frame.runtime.loading import Declared, load
from frame.runtime.program import Program
from tests.ops.support import is_float, operands_of, types_of

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
    return list(interpret(graph, _absolute(inputs)))


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
    """The magnitude of the operand, for a graph of one-operand nodes."""
    return [np.abs(array).astype(np.float64) for array in inputs]


def _none(graph: Graph, inputs: list[np.ndarray]) -> list[np.ndarray | None]:
    return [None] * len(graph.outputs)


Scale = Callable[[Graph, list[np.ndarray]], list[np.ndarray | None]]

# op -> how large the terms are whose rounding errors add up in a result; the rest: the result
SCALES: Mapping[str, Scale] = {
    **dict.fromkeys(
        ("sum", "mean", "matmul", "conv2d", "scatter_add", "avg_pool2d", "mse_loss"),
        _magnitude_of_terms,
    ),
    "gelu": _first_operand,  # x * (1 + erf) / 2 cancels for negative x
    **dict.fromkeys(
        (
            "softmax", "log_softmax", "layer_norm", "batch_norm_train", "batch_norm_infer",
            "softmax_cross_entropy", "scan", "normal",
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


def make_case(record: OpDef, samples: Iterable[Sample], floats: DType) -> Case:
    """Build one graph of all samples, and compute what it must give."""
    inputs: list[np.ndarray] = []
    names: list[str] = []
    with GraphBuilder(f"{record.name}_{floats}") as builder:
        for sample in samples:
            arrays = operands_of(sample, floats)
            operands = tuple(builder.input(type_) for type_ in types_of(arrays))
            for result in create_node(record.name, operands, sample.attributes):
                builder.output(_row_major(result))
                names.append(sample.name)
            inputs.extend(arrays)
    graph = builder.finish()
    expected = interpret(graph, inputs)
    scales = SCALES.get(record.name, _none)(graph, inputs)
    return Case(graph, inputs, expected, scales, names)


def _row_major(value: Value) -> Value:
    """A result in another layout is stored back in row-major order, to be compared."""
    return value if value.type.layout == ROW_MAJOR else create_node("relayout", (value,), {})[0]


def compile_cpu(graph: Graph) -> Program:
    """Compile for the cpu, without a cache on disk; nothing may run in numpy."""
    program = load(Declared(graph), Cache(None, remembered=0)).run
    if program.host_steps:
        raise AssertionError(f"ops ran in numpy: {program.host_steps}")
    return program


def check_case(case: Case, op: str) -> None:
    """Compare with the reference; then 1 and 2 threads, with the usual grain and a grain of 1."""
    first = [np.array(r) for r in compile_cpu(case.graph).run(case.inputs)]
    values = zip(first, case.expected, case.scales, case.graph.outputs, case.names, strict=True)
    for k, (got, want, scale, value, name) in enumerate(values):
        where = f"{op}[{name}] {value.type} output {k}"
        compare(got, want, value.dtype, scale, where, zero_signs=False)
    with config.override(FRAME_GRAIN="1"):
        program = compile_cpu(case.graph)
    try:
        results = [_with_threads(program, case.inputs, threads) for threads in (1, 2)]
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


def _with_threads(program: Program, inputs: list[np.ndarray], threads: int) -> list[np.ndarray]:
    set_num_threads(threads)
    return [np.array(r) for r in program.run(inputs)]
