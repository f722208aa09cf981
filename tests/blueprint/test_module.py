"""Lowering: what the modules compute, against float64, against nn, and fused against unfused."""

from __future__ import annotations

import numpy as np
import pytest

from frame import blueprint as b
from frame import nn
from frame.core.dtypes import float32
from frame.core.errors import InvalidArgumentError
from frame.core.tolerances import VALUES, compare
from frame.ir.graph import TensorType
from tests.blueprint import networks
from tests.blueprint.support import numbers, parameters, run

SMALL = [networks.small_residual, networks.small_mobile, networks.small_flat]


def test_paths_of_parameters_follow_the_blueprint() -> None:
    net = b.seq(b.cbr(4, 3, 1, 1), b.repeat(b.block(4, b.BlockStyle.RESNET_3_3), 2), b.fc(2, True))
    names = [spec.name for spec in net.module((8, 8, 3)).parameters() if spec.trainable]
    assert names[:3] == ["0.conv.weight", "0.bn.gamma", "0.bn.beta"]
    assert "1.0.conv1.weight" in names and "1.1.bn2.gamma" in names
    assert names[-2:] == ["2.weight", "2.bias"]
    hand = b.add2(b.conv(3, 1), b.seq(b.conv(3, 1), b.relu()))
    names = [spec.name for spec in hand.module((8, 8, 3)).parameters()]
    assert names == ["0.shortcut.weight", "0.stem.0.weight"]
    assert [s.name for s in b.fc(2, True).module((3,)).parameters()] == ["0.weight", "0.bias"]


def test_images_are_nhwc() -> None:
    x = numbers(2, 5, 6, 3)
    net = b.conv(4, 3, 2, 1)
    weight = parameters(net.module((5, 6, 3)))["0.weight"]
    padded = np.pad(np.float64(x), ((0, 0), (1, 1), (1, 1), (0, 0)))
    expected = np.zeros((2, 3, 3, 4))
    for n, i, j, o in np.ndindex(expected.shape):
        window = padded[n, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
        expected[n, i, j, o] = np.sum(window * weight[o].transpose(1, 2, 0))
    np.testing.assert_allclose(run(net.module((5, 6, 3)), x), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_grouped_and_depthwise_convolution(groups: int) -> None:
    x = numbers(2, 4, 4, 6)
    net = b.conv_dw(3, 1, 1) if groups == 6 else b.group_conv(6, groups, 3, 1, 1)
    weight = parameters(net.module((4, 4, 6)))["0.weight"]
    assert weight.shape == (6, 6 // groups, 3, 3)
    padded = np.pad(np.float64(x), ((0, 0), (1, 1), (1, 1), (0, 0)))
    size, expected = 6 // groups, np.zeros((2, 4, 4, 6))
    for n, i, j, o in np.ndindex(expected.shape):
        start = o // size * size
        window = padded[n, i : i + 3, j : j + 3, start : start + size]
        expected[n, i, j, o] = np.sum(window * weight[o].transpose(1, 2, 0))
    np.testing.assert_allclose(run(net.module((4, 4, 6)), x), expected, rtol=1e-12, atol=1e-13)


def test_pools_padding_and_the_mean() -> None:
    x = numbers(2, 4, 6, 3)
    largest = run(b.maxpool(2, 2, 0).module((4, 6, 3)), x)
    np.testing.assert_array_equal(largest, x.reshape(2, 2, 2, 3, 2, 3).max((2, 4)))
    mean = run(b.avgpool(2, 2, 0).module((4, 6, 3)), x)
    np.testing.assert_allclose(mean, np.float64(x).reshape(2, 2, 2, 3, 2, 3).mean((2, 4)))
    np.testing.assert_allclose(run(b.gap().module((4, 6, 3)), x), np.float64(x).mean((1, 2)))
    padded = run(b.channel_padding().module((4, 6, 3)), x)
    np.testing.assert_array_equal(padded[..., :3], x)
    assert padded.shape == (2, 4, 6, 8) and not padded[..., 3:].any()
    assert run(b.channel_padding().module((4, 6, 8)), numbers(1, 4, 6, 8)).shape == (1, 4, 6, 8)


def test_activations() -> None:
    x = np.float32([[-7.0, -2.0, -0.5, 0.0, 0.5, 2.0, 7.0]])
    y, gate = np.float64(x), 1 / (1 + np.exp(-np.float64(x)))
    expected = {
        b.relu: np.maximum(y, 0),
        b.tanh_act: np.tanh(y),
        b.silu: y * gate,
        b.relu6: np.clip(y, 0, 6),
        b.sigmoid: gate,
        b.leaky_relu: np.where(y > 0, y, 0.01 * y),
        b.elu: np.where(y > 0, y, np.expm1(y)),
        b.hardswish: y * np.clip(y + 3, 0, 6) / 6,
    }
    for make, values in expected.items():
        np.testing.assert_allclose(run(make().module((7,)), x), values, rtol=1e-12)


def test_a_residual_adds_its_branches() -> None:
    x = numbers(2, 4, 4, 3)
    stem = b.seq(b.conv(3, 3, 1, 1), b.relu())
    values = parameters(b.add2(b.identity(), stem).module((4, 4, 3)))
    inner = run(stem.module((4, 4, 3)), x, values={"0.weight": values["0.stem.0.weight"]})
    both = run(b.add2(b.identity(), stem).module((4, 4, 3)), x, values=values)
    np.testing.assert_allclose(both, x + inner, rtol=1e-12)
    nested = b.add2(b.identity(), b.add2(b.identity(), b.tanh_act()))
    np.testing.assert_allclose(run(nested.module((4, 4, 3)), x), 2.0 * x + np.tanh(np.float64(x)))


def test_features_and_an_image_of_one_pixel_are_added() -> None:
    x = numbers(2, 4, 4, 3)
    for shortcut, stem in ((b.gap(), b.conv(3, 4)), (b.conv(3, 4), b.gap())):
        net = b.seq(b.add2(shortcut, stem), b.bn(), b.fc(2, True))
        assert run(net.module((4, 4, 3)), x).shape == (2, 2)


# --- flatten has the order H, W, C ----------------------------------------------------------------


def flat_twins() -> tuple[nn.Module, nn.Module]:
    """Return `small_flat` for images of 6 x 8, and the same network in nn, which is NCHW."""
    twin = nn.Sequential(
        [
            nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 7), nn.ReLU(), nn.Linear(7, 4),
        ]
    )  # fmt: skip
    return networks.small_flat().module((6, 8, 3)), twin


RENAMED = {"4.weight": "5.weight", "4.bias": "5.bias", "6.weight": "7.weight", "6.bias": "7.bias"}


def for_twin(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rename the DSL's parameters, and bring the rows of the fc from H, W, C to C, H, W."""
    renamed = {RENAMED.get(name, name): value for name, value in values.items()}
    rows = renamed["5.weight"].reshape(3, 4, 3, 7)
    renamed["5.weight"] = np.ascontiguousarray(rows.transpose(2, 0, 1, 3)).reshape(36, 7)
    return renamed


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_the_same_weights_give_the_same_numbers_through_nn(mode: str) -> None:
    module, twin = flat_twins()
    x, values = numbers(4, 6, 8, 3), parameters(module)
    expected = run(twin, np.ascontiguousarray(x.transpose(0, 3, 1, 2)), mode, for_twin(values))
    np.testing.assert_allclose(run(module, x, mode, values), expected, rtol=1e-12, atol=1e-13)
    wrong = {**for_twin(values), "5.weight": values["4.weight"]}  # in the order of the DSL
    other = run(twin, np.ascontiguousarray(x.transpose(0, 3, 1, 2)), mode, wrong)
    assert np.abs(other - expected).max() > 1e-3


# --- fused and unfused ----------------------------------------------------------------------------


@pytest.mark.parametrize("make", SMALL)
def test_fused_and_unfused_plans_are_equal_in_float32(make) -> None:
    """Folding reorders one product a channel; the results agree within the table of tolerances."""
    x, net = numbers(3, 12, 12, 3), make()
    plain, fused = (net.plan((12, 12, 3), fuse=fuse).module() for fuse in (False, True))
    values = parameters(plain)
    exact = run(plain, x, values=values)
    np.testing.assert_allclose(run(fused, x, values=values), exact, rtol=1e-11, atol=1e-12)
    # A sum of terms is rounded relative to the terms: the largest results stand for them.
    depth = len(plain.parameters())
    scale = np.full_like(exact, np.abs(exact).max() * depth)
    for module in (plain, fused):
        compare(run(module, x, values=values, precision="native"), exact, float32, scale)
    assert VALUES[float32] == 1e-6


def nodes(module: nn.Module, mode: str) -> list[str]:
    graph = nn.build_graph(module, [TensorType(float32, (2, 12, 12, 3))], mode)
    return [node.op for node in graph.nodes]


@pytest.mark.parametrize("make", SMALL)
def test_a_fused_plan_folds_every_normalisation_of_images(make) -> None:
    plain, fused = (make().plan((12, 12, 3), fuse=fuse).module() for fuse in (False, True))
    after_features = sum(part.kind == "BatchNorm1d" for _, part in fused.modules())
    assert nodes(fused, "infer").count("batch_norm_infer") == after_features
    assert nodes(plain, "infer").count("batch_norm_infer") > after_features
    assert nodes(fused, "train") == nodes(plain, "train")


def test_dropout_is_in_training_only() -> None:
    module = b.seq(b.fc(8, True), b.dropout(0.5)).module((4,))
    ops_of = {
        mode: [n.op for n in nn.build_graph(module, [TensorType(float32, (2, 4))], mode).nodes]
        for mode in ("infer", "train")
    }
    assert "dropout" in ops_of["train"] and "dropout" not in ops_of["infer"]


def test_a_chain_of_convolutions_is_transposed_at_its_ends_only() -> None:
    net = b.seq(*[part for _ in range(4) for part in (b.conv(4, 3, 1, 1), b.bn(), b.relu())])
    found = nodes(net.module((12, 12, 3)), "infer")
    assert found.count("transpose") == 2 and (found[0], found[-1]) == ("transpose", "transpose")


# --- inputs ---------------------------------------------------------------------------------------


def test_one_module_serves_other_resolutions() -> None:
    module = networks.small_residual().module((12, 12, 3))
    assert run(module, numbers(2, 20, 16, 3)).shape == (2, 5)


@pytest.mark.parametrize("shape", [(2, 3, 12, 12), (2, 12, 12), (12, 12, 3, 1, 1), (2, 5)])
def test_other_layouts_are_refused(shape) -> None:
    module = networks.small_residual().module((12, 12, 3))
    with pytest.raises(InvalidArgumentError, match="expected .batch, height, width, 3.*NHWC"):
        nn.build_graph(module, [TensorType(float32, shape)])


@pytest.mark.parametrize(
    "types",
    [
        [],
        [TensorType(float32, (2, 3, 4))],
        [TensorType(float32, (2, 3))] * 2,
    ],
)
def test_a_blueprint_takes_one_image_or_vector(types) -> None:
    with pytest.raises(InvalidArgumentError, match="takes one float input"):
        b.fc(2, True).module_for(types)
    with pytest.raises(InvalidArgumentError, match="this plan takes one float input"):
        b.fc(2, True).plan((3, 3, 3)).module_for(types)


def test_parameters_take_the_dtype_of_the_input() -> None:
    from frame.core.dtypes import float64

    module = networks.small_flat().module_for([TensorType(float64, (2, 6, 8, 3))])
    assert {spec.dtype for spec in module.parameters()} == {float64}
