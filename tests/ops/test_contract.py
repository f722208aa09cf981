"""The contract of every op record: no silent hole."""

from __future__ import annotations

import numpy as np
import pytest

from frame import ops
from frame.backends.cpu.backend import CpuBackend
from frame.backends.intel_npu.opset_table import ROWS
from frame.core.devices import Device
from frame.core.dtypes import DTYPES, bfloat16, dtype, float16, float32, float64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim, bind_shape
from frame.ir.graph import TensorType
from frame.ops import holes
from frame.ops.interpreter import interpret
from frame.ops.record import NoGradient, OpDef, Trait
from tests.ops import support

RECORDS = {record.name: record for record in ops.records()}
EVERY_OP = pytest.mark.parametrize("name", RECORDS)


def _every_op(condition):
    """Parametrise a test with the ops whose record meets a condition."""
    return pytest.mark.parametrize("name", [n for n, r in RECORDS.items() if condition(r)])


def _plain(record):
    """Whether an op has operands, and shapes of its own rather than those of a body."""
    bodies = any(spec.kind == "graph" for spec in record.attributes)
    return bool(record.operands) and not bodies


def _takes_floats(record):
    return any("float" in operand.kinds for operand in record.operands)


def _has_general_shapes(record):
    shaped = {Trait.ELEMENTWISE, Trait.REDUCTION, Trait.VIEW}
    return _plain(record) and bool(shaped & record.traits)


# Ops that a tensor of rank 0 can't be given to.
NEEDS_AN_AXIS = {"concat", "split", "argmax", "argmin"}


@EVERY_OP
def test_record_is_documented(name):
    record = RECORDS[name]
    assert record.doc.strip().endswith("."), "the doc is made of sentences"
    assert record.doc[0].isupper()
    for spec in record.attributes:
        assert spec.doc, f"attribute {spec.name} has no doc"


@EVERY_OP
def test_gradient_or_reason(name):
    gradient = RECORDS[name].gradient
    if isinstance(gradient, NoGradient):
        assert len(gradient.reason) > 15
        assert not any(s.gradient for s in RECORDS[name].samples())
    else:
        assert callable(gradient)


def test_missing_gradients_stand_in_the_file_of_holes():
    """Where an op acts as a constant its gradient is zero, which is no hole."""
    gradients = {name: record.gradient for name, record in RECORDS.items()}
    missing = {
        n: g.reason for n, g in gradients.items() if isinstance(g, NoGradient) and not g.zero
    }
    assert missing == holes.GRADIENTS
    assert all(len(reason) > 15 for reason in holes.GRADIENTS.values())


def _cpu_ops():
    backend = CpuBackend()
    # Lowering runs these itself: loops and branches of the entry, and a group's schedule.
    control = {n for n, r in RECORDS.items() if Trait.CONTROL_FLOW in r.traits}
    return backend.capabilities(backend.target()).native | control | {"group"}


@pytest.mark.parametrize(("backend", "ops_of"), [("cpu", _cpu_ops), ("intel_npu", lambda: ROWS)])
def test_ops_that_a_backend_lacks_stand_in_the_file_of_holes(backend, ops_of):
    """Each op has a lowering, or a decomposition, or a row with its reason; the sweeps run them."""
    whole = {name for name, record in RECORDS.items() if record.decomposition is not None}
    assert set(RECORDS) - whole - set(ops_of()) == set(holes.BACKENDS[backend])
    assert all(len(reason) > 15 for reason in holes.BACKENDS[backend].values())


# Ops whose gradient is not that of their forward: tests/ops/test_deferred.py says what it is.
SURROGATES = {"heaviside_surrogate"}


@_every_op(
    lambda record: (
        support.differentiable(record) and _takes_floats(record) and record.name not in SURROGATES
    )
)
def test_a_differentiable_op_has_smooth_samples(name):
    record = RECORDS[name]
    smooth = [s for s in record.samples() if s.gradient]
    assert len(smooth) >= 3, "too few samples for the gradient check"
    assert any(sum(a.size for a in support.operands_of(s)) > 1 for s in smooth)


@EVERY_OP
def test_sample_names_are_unique(name):
    names = [sample.name for sample in RECORDS[name].samples()]
    assert names
    assert len(set(names)) == len(names)


@_every_op(_plain)
def test_samples_cover_the_kinds(name):
    """Each kind that an operand takes occurs; integers in each of their dtypes."""
    record = RECORDS[name]
    for position, operand in enumerate(record.operands):
        seen = {
            dtype(s.operands[position].dtype)
            for s in record.samples()
            if s.operands[position] is not None
        }
        expected = {
            row
            for row in DTYPES.values()
            if row.kind in operand.kinds and row.is_integer and not row.storage_only
        }
        if operand.name == "counter":
            expected = {DTYPES["uint64"]}
        if "bool" in operand.kinds:
            expected.add(DTYPES["bool"])
        if "float" in operand.kinds:
            expected.add(float64)
        assert expected <= seen | ({float64} if float32 in seen else set()), (
            f"operand {operand.name}: no sample of {sorted(map(str, expected - seen))}"
        )


@_every_op(_has_general_shapes)
def test_samples_cover_rank_0_and_empty(name):
    record = RECORDS[name]
    shapes = [a.shape for s in record.samples() for a in support.operands_of(s)]
    assert any(0 in shape for shape in shapes), "no empty operand"
    if name not in NEEDS_AN_AXIS:
        assert () in shapes, "no operand of rank 0"


def _axes_of(record, sample):
    """The axes that a sample gives, before they are normalised."""
    for spec in record.attributes:
        if spec.name in ("axis", "axes") and sample.attributes.get(spec.name) is not None:
            yield from np.atleast_1d(sample.attributes[spec.name])


@_every_op(lambda record: any(spec.name in ("axis", "axes") for spec in record.attributes))
def test_samples_cover_negative_axes(name):
    record = RECORDS[name]
    assert any(axis < 0 for sample in record.samples() for axis in _axes_of(record, sample))


@_every_op(lambda record: _plain(record) and Trait.RANDOM not in record.traits)
def test_samples_cover_odd_sizes_and_empty_operands(name):
    shapes = [a.shape for s in RECORDS[name].samples() for a in support.operands_of(s)]
    assert any(size % 2 and size > 1 for shape in shapes for size in shape), "no odd size"
    assert any(0 in shape for shape in shapes), "no empty operand"


@_every_op(lambda record: _plain(record) and _takes_floats(record))
def test_samples_cover_values_that_are_not_finite(name):
    arrays = [a for s in RECORDS[name].samples() for a in support.operands_of(s)]
    values = np.concatenate([a.ravel() for a in arrays if support.is_float(a)])
    assert np.isnan(values).any() and np.isposinf(values).any() and np.isneginf(values).any()


@_every_op(lambda record: Trait.ELEMENTWISE in record.traits and len(record.operands) > 1)
def test_samples_cover_broadcasting(name):
    ranks = [{a.ndim for a in support.operands_of(s)} for s in RECORDS[name].samples()]
    shapes = [{a.shape for a in support.operands_of(s)} for s in RECORDS[name].samples()]
    assert any(len(found) > 1 for found in ranks), "no operands of different ranks"
    assert any(1 in shape for found in shapes if len(found) > 1 for shape in found), "no size of 1"


@EVERY_OP
@pytest.mark.parametrize("floats", [float64, float32, float16, bfloat16], ids=str)
def test_reference_fits_the_type_rule(name, floats):
    """The interpreter raises when the shape of a result differs from what the rule infers."""
    record = RECORDS[name]
    for sample in record.samples():
        graph = support.sample_graph(record, sample, floats)
        arrays = support.operands_of(sample, floats)
        native = interpret(graph, arrays, precision="native")
        for value, array in zip(graph.outputs, native, strict=True):
            assert array.dtype == value.dtype.numpy, sample.name
        if floats is float64:
            continue
        for value, array in zip(graph.outputs, interpret(graph, arrays), strict=True):
            expected = np.float64 if value.dtype.is_float else value.dtype.numpy
            assert array.dtype == expected, sample.name


@EVERY_OP
def test_samples_are_the_same_each_time(name):
    for first, second in zip(RECORDS[name].samples(), RECORDS[name].samples(), strict=True):
        for a, b in zip(first.operands, second.operands, strict=True):
            assert a is b is None or np.array_equal(a, b, equal_nan=support.is_float(a))


@EVERY_OP
def test_reference_leaves_its_operands_alone(name):
    record = RECORDS[name]
    for sample in record.samples():
        arrays = support.operands_of(sample)
        before = [array.copy() for array in arrays]
        interpret(support.sample_graph(record, sample), arrays)
        for old, new in zip(before, arrays, strict=True):
            np.testing.assert_array_equal(old, new)


@_every_op(lambda record: record.decomposition is not None)
def test_decomposition_equals_reference(name):
    record = RECORDS[name]
    for sample in record.samples():
        arrays = support.operands_of(sample)
        graph = support.sample_graph(record, sample)
        built = support.decomposed(record, sample)
        assert tuple(v.type for v in built.outputs) == tuple(v.type for v in graph.outputs)
        pairs = zip(interpret(graph, arrays), interpret(built, arrays), strict=True)
        for expected, received in pairs:
            if expected.dtype.kind == "f":
                np.testing.assert_allclose(received, expected, 1e-12, 1e-13, err_msg=sample.name)
            else:
                np.testing.assert_array_equal(received, expected, err_msg=sample.name)


@EVERY_OP
def test_attributes_are_in_normal_form(name):
    """Checking normalised attributes again gives them back: nodes that mean the same are equal."""
    record = RECORDS[name]
    for sample in record.samples():
        types = support.types_of(support.operands_of(sample))
        once, inferred = record.check(types, sample.attributes)
        twice, again = record.check(types, once)
        assert dict(once) == dict(twice), sample.name
        assert inferred == again
        assert list(once) == sorted(once)
        assert None not in once.values(), f"{sample.name}: canonicalize left a None"


@_every_op(_plain)
def test_results_lie_on_the_device_of_the_operands(name):
    record = RECORDS[name]
    sample = next(iter(record.samples()))
    there = Device("cuda", 1)
    types = tuple(
        TensorType(t.dtype, t.shape, device=there)
        for t in support.types_of(support.operands_of(sample))
    )
    _, results = record.check(types, sample.attributes)
    assert {result.device for result in results} == {there}


def _symbolic(shape: tuple[int, ...], table: dict[str, int]) -> tuple[int | Dim, ...]:
    sizes: list[int | Dim] = []
    for size in shape:
        if size >= 2:
            table[f"d{size}"] = size
            sizes.append(Dim.symbol(f"d{size}"))
        else:
            sizes.append(size)
    return tuple(sizes)


MUST_TAKE_SYMBOLS = {
    "transpose",
    "flip",
    "concat",
    "stack",
    "squeeze",
    "unsqueeze",
    "flatten",
    "size",
    "gather",
}


# A window over a symbolic size fits, or divides by a stride, for some values only.
MAY_REFUSE_SYMBOLS = {"conv2d", "conv2d_filter_grad"}


@_every_op(_plain)
def test_type_rule_with_symbols_agrees_with_numbers(name):
    """Where each size becomes a symbol of its own, the rule gives the same shape, or refuses."""
    record = RECORDS[name]
    for sample in record.samples():
        types = support.types_of(support.operands_of(sample))
        _, expected = record.check(types, sample.attributes)
        table: dict[str, int] = {}
        symbolic = tuple(TensorType(t.dtype, _symbolic(t.shape, table)) for t in types)
        try:
            _, results = record.check(symbolic, sample.attributes)
        except InvalidArgumentError:
            free = {Trait.ELEMENTWISE, Trait.REDUCTION, Trait.CONTRACTION} & record.traits
            free = free and name not in MAY_REFUSE_SYMBOLS
            assert not free and name not in MUST_TAKE_SYMBOLS, sample.name
            continue
        shapes = [bind_shape(result.shape, table) for result in results]
        assert shapes == [result.shape for result in expected], sample.name


def test_integer_operands_get_no_gradient():
    """A gradient builder that is asked about integers answers None and builds nothing."""
    from frame.ir.builder import GraphBuilder
    from frame.ops.record import GradientContext
    from frame.ops.registry import create_node

    checked = 0
    for record, sample in support.cases():
        arrays = support.operands_of(sample)
        if not support.differentiable(record) or any(map(support.is_float, arrays)) or not arrays:
            continue
        if not _plain(record):
            continue
        with GraphBuilder() as builder:
            operands = tuple(builder.input(t) for t in support.types_of(arrays))
            results = create_node(record.name, operands, sample.attributes)
            if any(result.dtype.is_float for result in results):
                continue
            before = len(builder.nodes)
            node = results[0].node
            context = GradientContext(
                operands, results, results, node.attributes, (False,) * len(operands)
            )
            assert list(record.gradient(context)) == [None] * len(operands), record.name
            assert len(builder.nodes) == before
        checked += 1
    assert checked > 100


def _commutative() -> list[OpDef]:
    return [record for record in RECORDS.values() if Trait.COMMUTATIVE in record.traits]


@pytest.mark.parametrize("record", _commutative(), ids=lambda record: record.name)
def test_commutative_ops_commute(record):
    for sample in record.samples():
        graph = support.sample_graph(record, sample)
        a, b = support.operands_of(sample)
        swapped = support.graph_of(record.name, support.types_of([b, a]))
        (expected,), (received,) = interpret(graph, [a, b]), interpret(swapped, [b, a])
        np.testing.assert_array_equal(expected, received)
