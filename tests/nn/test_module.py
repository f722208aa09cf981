from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest

from frame import nn, ops
from frame.core.dtypes import float32
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Dim
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Role, TensorType
from frame.nn.module import Module
from frame.ops.interpreter import interpret

BATCH = Dim.symbol("batch")


def mlp():
    return nn.Sequential("mlp", [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)])


def arrays(module, seed=0):
    return [nn.materialize(spec, seed) for spec in module.parameters()]


def forward(module, *inputs, mode="infer", extra=()):
    types = [TensorType(float32, x.shape) for x in inputs]
    graph = nn.build_graph(module, types, mode)
    return interpret(graph, [*inputs, *arrays(module), *extra])


def test_parameters_are_in_pre_order_with_dotted_paths():
    names = [spec.name for spec in mlp().parameters()]
    assert names == ["mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias"]
    assert mlp().parameters() == mlp().parameters()
    assert [s.name for s in nn.Linear(2, 3).parameters()] == ["weight", "bias"]
    nested = nn.Sequential("net", [mlp(), nn.LayerNorm(3, name="norm")])
    assert [s.name for s in nested.parameters()][-3:] == [
        "net.mlp.2.bias",
        "net.norm.gamma",
        "net.norm.beta",
    ]


@nn.module(
    scale=nn.param(3), first=nn.Linear(4, 3), shift=nn.param(3), second=nn.Linear(4, 3, bias=False)
)
def both(self, x):
    return self.first(x) * self.scale + self.second(x) + self.shift


def test_each_module_gets_its_slice_of_the_parameters():
    """Own parameters, then each child's, in pre-order, whatever the order of declaration."""
    names = [spec.name for spec in both.parameters()]
    assert names == ["scale", "shift", "first.weight", "first.bias", "second.weight"]
    wrapped = nn.Sequential("s", [nn.Linear(4, 4), both, nn.Linear(3, 2)])
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    (y,) = forward(wrapped, x)
    w = {s.name: np.float64(v) for s, v in zip(wrapped.parameters(), arrays(wrapped), strict=True)}
    h = x @ w["s.0.weight"] + w["s.0.bias"]
    first = h @ w["s.1.first.weight"] + w["s.1.first.bias"]
    z = first * w["s.1.scale"] + h @ w["s.1.second.weight"] + w["s.1.shift"]
    np.testing.assert_allclose(y, z @ w["s.2.weight"] + w["s.2.bias"], rtol=1e-12)


def test_two_placements_are_two_sets_of_parameters():
    layer = nn.Linear(4, 4)
    model = nn.Sequential("m", [layer, layer])
    assert [s.name for s in model.parameters()] == [
        "m.0.weight",
        "m.0.bias",
        "m.1.weight",
        "m.1.bias",
    ]
    first, _, second, _ = arrays(model)
    assert not np.array_equal(first, second)
    x = np.ones((1, 4), np.float32)
    (y,) = forward(model, x)
    w = [np.float64(a) for a in arrays(model)]
    np.testing.assert_allclose(y, (x @ w[0] + w[1]) @ w[2] + w[3], rtol=1e-12)


def test_shared_parameters_take_one_slot_in_the_ancestor():
    tied = nn.share(nn.param((4, 4)))
    inner = nn.Sequential([nn.Linear(4, 4, weight=tied), nn.Tanh()])
    model = nn.Sequential(
        "m", [inner, nn.Linear(4, 4, bias=False, weight=tied)], shared={"tied": tied}
    )
    assert [s.name for s in model.parameters()] == ["m.tied", "m.0.0.bias"]
    x = np.ones((2, 4), np.float32)
    (y,) = forward(model, x)
    w, b = (np.float64(a) for a in arrays(model))
    np.testing.assert_allclose(y, np.tanh(x @ w + b) @ w, rtol=1e-12)


def test_shared_parameters_in_a_users_module():
    tied = nn.share(nn.param((3, 3)))

    @nn.module(table=tied, inner=nn.Linear(3, 3, bias=False, weight=tied))
    def model(self, x):
        return self.inner(x) @ self.table

    assert [s.name for s in model.parameters()] == ["table"]
    (y,) = forward(model, np.eye(3, dtype=np.float32))
    w = np.float64(arrays(model)[0])
    np.testing.assert_allclose(y, w @ w, rtol=1e-12)


def test_a_shared_parameter_without_an_owner_is_an_error():
    model = nn.Sequential("m", [nn.Linear(4, 4, weight=nn.share(nn.param((4, 4))))])
    with pytest.raises(InvalidArgumentError, match="declare it in the common ancestor"):
        nn.build_graph(model, [TensorType(float32, (1, 4))])
    with pytest.raises(InvalidArgumentError, match="must have the shape"):
        nn.Linear(4, 5, weight=nn.share(nn.param((4, 4))))


def test_a_module_is_applied_to_values_where_a_graph_is_built():
    model = mlp()
    with GraphBuilder() as builder:
        x = builder.input(TensorType(float32, (BATCH, 4)))
        once, again = model(x), model(ops.relu(x))
    assert once.shape == again.shape == (BATCH, 3)
    assert [e.name for e in builder.inputs][1:] == [s.name for s in model.parameters()]
    with GraphBuilder() as builder:
        model(builder.input(TensorType(float32, (1, 4))))
        with pytest.raises(InvalidArgumentError, match="already has an input"):
            mlp()(builder.inputs[0].value)


def test_outside_a_graph_a_module_can_not_be_applied():
    with pytest.raises(InvalidArgumentError, match="graph"):
        mlp()(np.zeros((1, 4), np.float32))


def test_raw_modules_in_a_builder_must_be_declared_or_stateless():
    stray = nn.Linear(4, 4)

    @nn.module
    def wrong(self, x):
        return stray(nn.ReLU()(x))

    with pytest.raises(InvalidArgumentError, match="declare it as a child"):
        nn.build_graph(wrong, [TensorType(float32, (1, 4))])
    with pytest.raises(AttributeError, match="declares nothing"):

        @nn.module
        def typo(self, x):
            return self.weight

        nn.build_graph(typo, [TensorType(float32, (1, 4))])


def test_errors_name_the_module():
    model = nn.Sequential("net", [nn.Linear(4, 8), nn.Linear(9, 2, name="head")])
    with pytest.raises(InvalidArgumentError, match=r"in module net\.head \(Linear\)"):
        nn.build_graph(model, [TensorType(float32, (2, 4))])


def test_nodes_know_their_module():
    graph = nn.build_graph(mlp(), [TensorType(float32, (2, 4))])
    assert [graph.location(node).module for node in graph.nodes][:3] == ["mlp.0", "mlp.0", "mlp.1"]


def test_nodes_in_bodies_know_their_module():
    @nn.module(inner=nn.Linear(3, 3))
    def loop(self, x):
        return ops.scan(lambda c, _: (self.inner(c), None), x, length=3)[0]

    graph = nn.build_graph(loop.named("net"), [TensorType(float32, (2, 3))])
    (body,) = (body for node in graph.nodes for _, body in node.bodies)
    assert {body.location(node).module for node in body.nodes} == {"net.inner"}


def test_names():
    for name in ("a.b", "", "ü", "x" * 65, "a b"):
        if name:
            with pytest.raises(InvalidArgumentError, match="letters, digits and underscores"):
                nn.Linear(2, 2, name=name)
    with pytest.raises(InvalidArgumentError, match="named 'a'"):
        nn.Sequential("s", [nn.ReLU(name="a"), nn.Tanh(name="a")])
    with pytest.raises(InvalidArgumentError, match="named '1'"):
        nn.Sequential("s", [nn.ReLU(name="1"), nn.Tanh()])
    with pytest.raises(InvalidArgumentError, match="reserved|can't be named"):
        nn.module(training=nn.param(2))(lambda self, x: x)
    with pytest.raises(InvalidArgumentError, match="must be a Module"):
        nn.module(weight=np.zeros(3))(lambda self, x: x)


def test_the_number_and_types_of_parameter_values_are_checked():
    model = nn.Linear(2, 3)
    with GraphBuilder() as builder:
        x = builder.input(TensorType(float32, (1, 2)))
        weight = builder.input(TensorType(float32, (2, 3)))
        with pytest.raises(InvalidArgumentError, match="has 2 parameters, received 1"):
            model.build([x], [weight])
        with pytest.raises(InvalidArgumentError, match=r"parameter 'bias'.*float32\[3\]"):
            model.build([x], [weight, weight])


def test_modules_are_immutable_values():
    model = mlp()
    with pytest.raises(AttributeError):
        model.name = "other"
    assert model.named("other").name == "other" and model.name == "mlp"
    again = pickle.loads(pickle.dumps(model))
    assert again.parameters() == model.parameters()
    assert copy.deepcopy(model).parameters() == model.parameters()
    assert isinstance(again, Module)


def test_building_allocates_no_tensor(monkeypatch):
    """A model with a terabyte of parameters builds: only their declarations exist."""
    huge = nn.Sequential("huge", [nn.Linear(500_000, 500_000) for _ in range(2)])
    gc.collect()
    made = []
    for name in ("zeros", "empty", "full", "ones"):
        original = getattr(np, name)

        def counting(shape, *rest, original=original, **named):
            made.append(shape)
            return original(shape, *rest, **named)

        monkeypatch.setattr(np, name, counting)
    graph = nn.build_graph(huge, [TensorType(float32, (BATCH, 500_000))], "train")
    assert huge.count_parameters() == 2 * (500_000**2 + 500_000)
    assert made == []
    constants = [n.attributes["value"].array.nbytes for n in graph.nodes if n.op == "constant"]
    assert sum(constants) < 100


def test_counts_and_summary():
    model = nn.Sequential("m", [nn.Linear(4, 8), nn.BatchNorm2d(8)])
    assert model.count_parameters() == 40 + 32
    assert model.count_parameters(trainable=False) == 16
    rows = model.summary_rows()
    assert [row[0] for row in rows] == ["m", "m.0", "m.1"]
    assert [row[3] for row in rows] == [0, 40, 32]
    assert rows[1][2] == "weight(4, 8), bias(8,)"


def test_text_and_html():
    assert repr(mlp()) == (
        "Sequential('mlp', [Linear(in_features=4, out_features=8), ReLU(), "
        "Linear(in_features=8, out_features=3)])"
    )
    assert repr(nn.Conv2d(1, 8, 3, padding=1)) == (
        "Conv2d(in_channels=1, out_channels=8, kernel_size=3, stride=1, padding=1)"
    )
    assert "kernel_size=(3, 1), stride=2, padding=(1, 1, 0, 0)" in repr(
        nn.Conv2d(1, 8, (3, 1), stride=2, padding=(1, 0))
    )
    html = mlp()._repr_html_()
    assert "mlp: 67 parameters" in html and html.count("<tr") == 5
    hostile = nn.module(lambda self, x: x)
    object.__setattr__(hostile, "kind", "<script>")
    assert "<script>" not in hostile._repr_html_()


def test_roles_and_order_of_inputs():
    model = nn.Sequential("m", [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5)])
    graph = nn.build_graph(model, {"image": TensorType(float32, (BATCH, 1, 6, 6))}, "train")
    roles = [entry.role for entry in graph.inputs]
    assert roles == [Role.INPUT, *[Role.PARAMETER] * 4, *[Role.BUFFER] * 2, Role.COUNTER]
    assert graph.inputs[0].name == "image"
    infer = nn.build_graph(model, {"image": TensorType(float32, (BATCH, 1, 6, 6))})
    assert Role.COUNTER not in [entry.role for entry in infer.inputs]
    assert infer.updates == () and len(graph.updates) == 2


def test_the_mode_is_checked():
    with pytest.raises(InvalidArgumentError, match="infer, train"):
        nn.build_graph(mlp(), [TensorType(float32, (1, 4))], "eval")


def test_buffers_are_updated_in_training_only_and_at_the_top_only():
    @nn.module(seen=nn.buffer(()))
    def counting(self, x):
        self.update("seen", self.seen + 1.0)
        return x + self.seen

    graph = nn.build_graph(counting, [TensorType(float32, (1,))], "train")
    assert len(graph.updates) == 1
    out, seen = interpret(graph, [np.zeros(1, np.float32), np.float32(4)])
    # A read after the update sees what the buffer will hold.
    assert (out.tolist(), float(seen)) == ([5.0], 5.0)
    with pytest.raises(InvalidArgumentError, match="train only"):
        nn.build_graph(counting, [TensorType(float32, (1,))])

    @nn.module(inner=counting)
    def looping(self, x):
        return ops.scan(lambda c, _: (self.inner(c), None), x, length=2)[0]

    with pytest.raises(InvalidArgumentError, match="body of a scan"):
        nn.build_graph(looping, [TensorType(float32, (1,))], "train")


def test_a_module_applied_twice_in_training_updates_its_buffer_twice():
    @nn.module(seen=nn.buffer(()))
    def counting(self, x):
        self.update("seen", self.seen + 1.0)
        return x

    @nn.module(inner=counting)
    def twice(self, x):
        return self.inner(self.inner(x))

    graph = nn.build_graph(twice, [TensorType(float32, (1,))], "train")
    assert len(graph.updates) == 1
    assert float(interpret(graph, [np.zeros(1, np.float32), np.float32(4)])[1]) == 6.0


def test_a_failed_build_leaves_no_module_behind():
    model = nn.Sequential("net", [nn.Linear(9, 2)])
    with GraphBuilder() as builder:
        x = builder.input(TensorType(float32, (2, 4)))
        with pytest.raises(InvalidArgumentError, match="in module"):
            model(x)
        ops.relu(x)
    graph = builder.finish()
    assert graph.location(graph.nodes[-1]).module == ""
