"""Every row of the opset table, in every dtype that it takes, against the float64 reference."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from frame.backends.intel_npu import create_backend
from frame.backends.intel_npu.opset_table import ROWS, known_ops, refusal
from frame.compiler.passes.backend_lowering import signature_of
from frame.core.dtypes import DType, bfloat16, float16, float32, float64, int64
from frame.core.tolerances import compare
from frame.hal.interfaces import Piece
from frame.ir.graph import Graph
from frame.ops import records
from frame.ops.holes import BACKENDS
from frame.ops.record import OpDef
from frame.ops.registry import lookup
from tests.ops.support import graph_of, operands_of, sample_graph, types_of
from tests.support.compile import NoStore
from tests.support.sweep import make_case, samples_by_dtype

needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="the openvino wheel is not installed"
)
TAKEN = (float32, float16, bfloat16)
CASES = [
    pytest.param(
        lookup(name),
        floats,
        id=f"{name}-{floats}",
        marks=[pytest.mark.slow] if floats == float16 else [],
    )
    for name in known_ops()
    for floats in samples_by_dtype(lookup(name))
    if floats in TAKEN
]

# Rows that take no float32: why.
NOT_IN_FLOAT32 = {
    "erf": "not accurate near 0",
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"), "integers only"),
}


def taken(record: OpDef, floats: DType) -> list:
    """The samples whose nodes the table takes."""
    samples = samples_by_dtype(record).get(floats, ())
    return [s for s in samples if not _refused(sample_graph(record, s, floats))]


def _refused(graph: Graph) -> dict:
    backend = create_backend()
    return dict(backend.refused(graph, backend.target("openvino-cpu")))


def run(graph: Graph, inputs: list[np.ndarray]) -> list[np.ndarray]:
    backend = create_backend()
    piece = Piece(graph, None, signature_of(graph))
    return backend.compile(piece, backend.target("openvino-cpu"), {}, NoStore()).run(inputs)


@needs_openvino
@pytest.mark.parametrize(("record", "floats"), CASES)
def test_row(record: OpDef, floats: DType) -> None:
    samples = taken(record, floats)
    if not samples:
        assert record.name == "erf" and floats == float32, f"{record.name} takes no sample"
        return
    case = make_case(record, samples, floats)
    results = run(case.graph, case.inputs)
    rows = zip(results, case.expected, case.scales, case.graph.outputs, case.names, strict=True)
    for got, want, scale, value, name in rows:
        where = f"{record.name}[{name}] {value.type}"
        compare(got, want, value.dtype, scale, where, zero_signs=False)


@pytest.mark.parametrize("name", known_ops())
def test_only_a_few_samples_of_a_row_are_refused(name: str) -> None:
    """A limit that refused all that matters would make the sweep pass without testing anything."""
    record = lookup(name)
    floats = float16 if name == "erf" else float32
    count = len(taken(record, floats))
    assert count >= (1 if name in NOT_IN_FLOAT32 or name == "iota" else 2)


def test_float64_is_refused_everywhere() -> None:
    for name in known_ops():
        record = lookup(name)
        for sample in record.samples():
            graph = sample_graph(record, sample, float64)
            kinds = [v.dtype for n in graph.nodes for v in (*n.operands, *n.results)]
            if float64 in kinds:
                assert _refused(graph), f"{name}[{sample.name}]"


def test_every_op_has_a_row_or_is_refused_with_a_reason() -> None:
    for record in records():
        if record.name in ROWS:
            continue
        for sample in list(record.samples())[:1]:
            node = graph_of_sample(record, sample).nodes[-1]
            reason = refusal(node)
            assert reason and reason == BACKENDS["intel_npu"].get(record.name, reason)


def graph_of_sample(record: OpDef, sample) -> Graph:
    return graph_of(record.name, types_of(operands_of(sample)), sample.attributes)


@pytest.mark.parametrize(
    ("op", "arrays", "attributes", "words"),
    [
        ("add", [np.zeros(3, np.int64), np.zeros(3, np.int64)], {}, "int64"),
        ("add", [np.zeros(3, np.uint8), np.zeros(3, np.uint8)], {}, "uint8"),
        ("less", [np.zeros(3, np.int32), np.zeros(3, np.int32)], {}, "int32"),
        ("cast", [np.zeros(3, np.float32)], {"dtype": int64}, "cast"),
        ("add", [np.zeros((0, 3), np.float32), np.zeros(3, np.float32)], {}, "without elements"),
        ("cast", [np.zeros(3, np.int64)], {"dtype": float32}, "32 bits"),
    ],
)
def test_refusals_give_their_reason(op, arrays, attributes, words) -> None:
    (reason,) = _refused(graph_of(op, types_of(arrays), attributes)).values()
    assert words in reason


@needs_openvino
def test_known_average_pooling_without_dilations_does_not_end_the_process() -> None:
    """OpenVINO 2026.4 ends the process for opset16.avg_pool without `dilations`."""
    image = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    graph = graph_of("avg_pool2d", types_of([image]), {"kernel": (2, 2), "strides": (2, 2)})
    (result,) = run(graph, [image])
    assert result.reshape(-1).tolist() == [2.5, 4.5, 10.5, 12.5]


def test_known_loops_are_refused_for_wrong_results_of_tensor_iterator() -> None:
    record = lookup("scan")
    sample = next(iter(record.samples()))
    graph = sample_graph(record, sample, float32)
    node = next(n for n in graph.nodes if n.op == "scan")
    assert "TensorIterator" in _refused(graph)[node]


def test_known_padding_beyond_the_window_is_refused() -> None:
    arrays = [np.ones((1, 1, 3, 3), np.float32), np.ones((1, 1, 2, 2), np.float32)]
    graph = graph_of("conv2d", types_of(arrays), {"padding": (2, 1, 1, 1)})
    (reason,) = _refused(graph).values()
    assert "beyond the image" in reason


@needs_openvino
def test_known_exact_integer_comparison() -> None:
    """OpenVINO compares int32 as float32, in which these numbers are equal."""
    a, b = np.array([2**24, 7], np.int32), np.array([2**24 + 1, 7], np.int32)
    (result,) = run(graph_of("equal", types_of([a, b])), [a, b])
    assert result.tolist() == [False, True]
