"""The rules that put a plan into the form of the peers, and that the peers' tables cover it."""

import ast
import pathlib

import numpy as np
import pytest

import frame
from benchmarks.suite import peers
from benchmarks.suite.case import Case, Declaration, normal
from benchmarks.suite.cases import CASES, relative_error
from benchmarks.suite.peers import frame_peer, numpy_peer
from benchmarks.suite.plan import (
    COMMON,
    affine_scan,
    fold_batch_norm,
    read_plan,
    rewrite,
    running_statistics,
    spectral,
)
from frame import nn, ops

DISTINCT = {(case.declare.__name__, str(case.tiny)): case for case in CASES}.values()
FOLDER = pathlib.Path(peers.__file__).parent


def plan_of(module, *shapes, mode="infer"):
    values = {spec.name: nn.materialize(spec) for spec in module.parameters()}
    return read_plan(module, [frame.spec(shape) for shape in shapes], values, mode)


def names(plan):
    return [step.op for step in plan.steps]


def test_a_product_with_bias_is_linear():
    plan = rewrite(plan_of(nn.Linear(3, 4), (2, 3)), COMMON)
    assert names(plan) == ["linear"]


def test_a_product_that_is_read_twice_stays():
    @nn.module(weight=nn.param((3, 4), nn.ones()), bias=nn.param((4,), nn.ones()))
    def twice(self, x):
        y = x @ self.weight
        return y + self.bias, y

    assert names(rewrite(plan_of(twice, (2, 3)), COMMON)) == ["matmul", "add"]


def test_a_convolution_takes_its_bias():
    plan = rewrite(plan_of(nn.Conv2d(2, 3, 3), (1, 2, 5, 5)), COMMON)
    assert names(plan) == ["conv2d"]
    assert len(plan.steps[0].operands) == 3


def test_batch_norm_is_folded_into_the_weights():
    module = nn.Sequential([nn.Conv2d(2, 3, 1, bias=False), nn.BatchNorm2d(3)])
    plan = plan_of(module, (1, 2, 4, 4))
    for value in plan.parameters.values():
        if value.ndim == 1:
            value[:] = np.linspace(0.5, 2.0, value.size)
    folded = rewrite(plan, [fold_batch_norm])
    assert names(folded) == ["conv2d"]
    assert folded.notes == ("batch_norm folded into the weights",)
    gamma, beta, mean, variance = (plan.parameters[slot] for slot in plan.steps[1].operands[1:])
    weight, bias = (folded.parameters[slot] for slot in folded.steps[0].operands[1:])
    scale = gamma / np.sqrt(variance + 1e-5)
    original = plan.parameters[plan.steps[0].operands[1]]
    np.testing.assert_allclose(weight, original * scale[:, None, None, None], rtol=1e-6)
    np.testing.assert_allclose(bias, beta - mean * scale, rtol=1e-6)


def test_attention_is_one_step_with_its_scale():
    @nn.module
    def mix(self, q, k, v):
        near = ops.scaled_dot_product_attention(q, k, v)
        return near + ops.scaled_dot_product_attention(q, k, v, scale=0.25)

    plan = plan_of(mix, *[(2, 3, 5, 4)] * 3)
    assert names(plan) == ["attention", "attention", "add"]
    assert [step.attributes["scale"] for step in plan.steps[:2]] == [0.5, 0.25]


def test_a_cast_to_the_same_dtype_is_no_step():
    @nn.module
    def same(self, x):
        return ops.exp(ops.cast(x, "float32"))

    plan = plan_of(same, (3,))
    assert names(plan) == ["exp"]
    assert plan.steps[0].operands == plan.inputs


def test_a_sequence_convolution_takes_its_bias():
    plan = rewrite(plan_of(nn.Conv1d(2, 3, 3, padding=(2, 0)), (1, 2, 5)), COMMON)
    assert names(plan) == ["conv1d"]
    assert len(plan.steps[0].operands) == 3


def test_running_statistics_join_the_training_step():
    plan = plan_of(nn.BatchNorm2d(3, momentum=0.25), (2, 3, 4, 4), mode="train")
    assert len(plan.updates) == 2
    joined = rewrite(plan, [running_statistics])
    assert names(joined) == ["batch_norm_step"]
    assert joined.updates == ()
    assert joined.steps[0].attributes["momentum"] == pytest.approx(0.25)
    assert joined.steps[0].operands[3:] == tuple(buffer for buffer, _ in plan.updates)


def test_a_dilated_input_is_a_transposed_convolution():
    (case,) = [case for case in CASES if case.name.startswith("convtransposed")]
    plan = case.instance().plan
    turned = rewrite(plan, COMMON)
    (step,) = turned.steps
    assert step.op == "conv_transpose2d"
    assert step.attributes == {"strides": (2, 2), "low": (1, 1), "high": (1, 1)}
    weight = plan.parameters[plan.steps[0].operands[1]]
    np.testing.assert_array_equal(
        turned.parameters[step.operands[1]][5, 7, 0, 3], weight[7, 5, 3, 0]
    )


def test_a_spectral_convolution_is_one_step_with_complex_weights():
    module = nn.Fno1dBlock(3, 2, 4, activation="tanh")
    case = Case("fno", "inference", lambda: Declaration(module, normal((2, 3, 13))), (), ())
    instance = case.instance()
    plan = rewrite(instance.plan, (*COMMON, spectral))
    assert sorted(names(plan)) == ["add", "conv1d", "spectral_conv1d", "tanh"]
    step = plan.steps[names(plan).index("spectral_conv1d")]
    assert step.attributes == {"count": 4, "n": 13}
    assert plan.parameters[step.operands[1]].dtype == np.complex64
    (result,) = numpy_peer.prepare(instance, 1).outputs()
    (own,) = frame_peer.prepare(instance, 1).outputs()
    assert relative_error(result, own) < 1e-5
    (whole,) = [p for n, p in instance.values.items() if n == "spectral.weight_im"]
    assert np.array_equal(plan.parameters[step.operands[1]].imag, whole)


@pytest.mark.parametrize(
    ("following", "is_affine"),
    [
        (lambda h, x: h * ops.exp(x) + ops.sin(x), True),
        (lambda h, x: ops.sin(x) + ops.exp(x) * h, True),
        (lambda h, x: h * ops.exp(h) + x, False),
        (lambda h, x: h * ops.exp(x) + h, False),
        (lambda h, x: ops.tanh(h * ops.exp(x) + x), False),
        (lambda h, x: h * h + x, False),
    ],
)
def test_a_recurrence_is_affine_where_keep_and_fresh_leave_the_carry_alone(following, is_affine):
    def step(h, x):
        h = following(h, x)
        return h, ops.cos(h)

    @nn.module(start=nn.param((3,), nn.ones()))
    def scanned(self, x):
        return ops.scan(step, self.start, x)[1]

    plan = plan_of(scanned, (5, 3))
    assert names(plan) == ["scan"]
    (found,) = rewrite(plan, (affine_scan,)).steps
    assert found.op == ("affine_scan" if is_affine else "scan")
    if is_affine:
        makers = {slot: made.op for made in found.attributes["body"].steps for slot in made.results}
        assert [makers[slot] for slot in found.attributes["parts"]] == ["exp", "sin"]


# --- the tables of the peers ----------------------------------------------------------------------


def table_of(peer, name="TABLE"):
    """The keys of a table in the source of an adapter, which need not be installed."""
    tree = ast.parse((FOLDER / f"{peer}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and node.target.id == name:
            return {key.value for key in node.value.keys}
    return set()


PLANS = {
    "torch_peer": ((fold_batch_norm, spectral, *COMMON), (running_statistics, *COMMON)),
    "jax_peer": ((fold_batch_norm, spectral, affine_scan), (affine_scan,)),
    "onnx_model": (COMMON, None),
    "numpy_peer": ((*COMMON, spectral), None),
    "tinygrad_peer": ((fold_batch_norm, *COMMON), COMMON),
}


@pytest.mark.parametrize("peer", PLANS)
def test_the_table_of_a_peer_covers_every_case(peer):
    covered = table_of(peer) | table_of(peer, "ABSENT")
    for case in DISTINCT:
        instance = case.instance(small=True)
        rules = PLANS[peer][instance.training]
        if rules is not None:
            missing = rewrite(instance.plan, rules).ops() - covered
            assert not missing, f"{case.name} needs {sorted(missing)}"


@pytest.mark.parametrize("peer", PLANS)
def test_nothing_is_both_in_the_table_and_absent(peer):
    assert not table_of(peer) & table_of(peer, "ABSENT")


def test_every_adapter_has_its_function():
    for module, function, _ in peers.ADAPTERS.values():
        tree = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert function in defined


def test_a_peer_that_is_missing_says_so(monkeypatch):
    found = dict(peers.ADAPTERS, nobody=("no_such_module", "prepare", "nobody"))
    monkeypatch.setattr(peers, "ADAPTERS", found)
    with pytest.raises(peers.NotSupportedError, match="nobody can't be imported"):
        peers.adapter("nobody")


NUMPY = ("matmul", "gelu_tanh", "softmax", "layer_norm", "sum0", "transpose_heads", "gather")
NUMPY += ("scatter", "mlp_b1", "lstm", "ssm", "gcn")


@pytest.mark.parametrize("name", NUMPY)
def test_the_numpy_adapter_agrees_with_frame(name):
    instance = next(case for case in DISTINCT if case.name.startswith(name)).instance(small=True)
    results = numpy_peer.prepare(instance, 1).outputs()
    for result, own in zip(results, frame_peer.prepare(instance, 1).outputs(), strict=True):
        assert relative_error(result, own) < 1e-4
