"""Blueprints through `frame.compile`: inference, training, and variants with one set of weights."""

from __future__ import annotations

import numpy as np
import pytest

import frame
from frame import blueprint as b
from frame import nn
from frame.core.dtypes import float32
from frame.core.errors import InvalidArgumentError
from frame.core.tolerances import compare
from frame.runtime.statistics import compile_stats
from frame.train import SGD
from tests.blueprint import networks
from tests.blueprint.support import numbers, parameters, run
from tests.blueprint.test_module import flat_twins, for_twin

BATCH = "batch"


def small(channels: int = 4) -> b.BluePrint:
    """A residual network that compiles quickly."""
    stem = b.seq(b.conv_dw(3, 1, 1), b.bn())
    return b.seq(b.cbr(channels, 3, 1, 1), b.add2(b.identity(), stem), b.gap_fc(3, True))


def trainer(net, image=(8, 8, 3), batch=BATCH, **options):
    return frame.compile(
        net,
        [frame.spec((batch, *image))],
        loss=nn.CrossEntropyLoss(),
        targets=[frame.spec((batch,), "int64")],
        optimizer=SGD(momentum=0.9),
        **options,
    )


def labels(rows: int) -> np.ndarray:
    return np.arange(rows) % 3


# --- inference ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fuse", [False, True])
def test_a_compiled_blueprint_agrees_with_the_reference(fuse: bool) -> None:
    net, x = b.seq(small(), b.bn(), b.fc(2, True)), numbers(3, 8, 8, 3)
    plan = net.plan((8, 8, 3), fuse=fuse)
    values = parameters(plan.module())
    model = frame.compile(plan, [frame.spec((BATCH, 8, 8, 3))], params=values)
    exact = run(plan.module(), x, values=values)
    compare(model(x), exact, float32, np.full_like(exact, 8 * np.abs(exact).max()))
    assert model.host_steps == () and set(model.params) == set(values)


@pytest.mark.slow
def test_every_block_compiled_agrees_with_the_reference() -> None:
    for make in (networks.small_mobile, networks.small_residual):
        module, x = make().module((12, 12, 3)), numbers(3, 12, 12, 3)
        values = parameters(module)
        exact = run(module, x, values=values)
        result = frame.compile(make(), [frame.spec((BATCH, 12, 12, 3))], params=values)(x)
        compare(result, exact, float32, np.full_like(exact, 30 * np.abs(exact).max()))


def test_a_blueprint_compiles_like_any_module() -> None:
    x = numbers(2, 8, 8, 3)
    model = frame.compile(small(), [frame.spec((BATCH, 8, 8, 3))], seed=3)
    same = frame.compile(small().module((8, 8, 3)), [frame.spec((BATCH, 8, 8, 3))], seed=3)
    np.testing.assert_array_equal(model(x), same(x))
    assert "1.stem.1" in model.summary()


def test_saved_and_loaded(tmp_path) -> None:
    model = frame.compile(small(), [frame.spec((BATCH, 8, 8, 3))])
    model.save(tmp_path / "net.frame")
    x = numbers(2, 8, 8, 3)
    np.testing.assert_array_equal(frame.load(tmp_path / "net.frame")(x), model(x))


def test_errors_name_the_place_in_the_blueprint() -> None:
    with pytest.raises(InvalidArgumentError, match=r"at 1.0 \(Conv\): expected an input that"):
        frame.compile(b.seq(b.relu(), b.repeat(b.conv(4, 9), 2)), [frame.spec((BATCH, 8, 8, 3))])
    with pytest.raises(InvalidArgumentError, match="Other resolutions are variants"):
        frame.compile(small(), [frame.spec((BATCH, "h", "w", 3))])


# --- training -------------------------------------------------------------------------------------


def test_training_lowers_the_loss_and_moves_the_statistics() -> None:
    model = trainer(small())
    x, y = numbers(6, 8, 8, 3), labels(6)
    before = dict(model.params)
    losses = [float(model.train_step(x, y, learning_rate=0.05)[0]) for _ in range(40)]
    assert losses[-1] < losses[0] / 2
    assert all(not np.array_equal(before[name], model.params[name]) for name in before)
    assert model(x).shape == (6, 3)


def test_fused_and_unfused_plans_train_alike() -> None:
    """Folding is for inference alone: the training steps are the same program."""
    x, y = numbers(4, 8, 8, 3), labels(4)
    models = [trainer(small().plan((8, 8, 3), fuse=fuse)) for fuse in (False, True)]
    for _ in range(3):
        first, second = (m.train_step(x, y, learning_rate=0.05)[0] for m in models)
        assert first == second
    assert all(np.array_equal(models[0].params[n], models[1].params[n]) for n in models[0].params)
    plain, fused = (model(x) for model in models)
    compare(fused, np.float64(plain), float32, np.full_like(plain, 8 * np.abs(plain).max()))


def test_the_same_weights_train_to_the_same_numbers_through_nn() -> None:
    """Flatten has the order H, W, C in the DSL: the fc's rows are those of nn, permuted."""
    module, twin = flat_twins()
    values = parameters(module)
    model = trainer(networks.small_flat(), (6, 8, 3), params=values)
    other = frame.compile(
        twin,
        [frame.spec((BATCH, 3, 6, 8))],
        loss=nn.CrossEntropyLoss(),
        targets=[frame.spec((BATCH,), "int64")],
        optimizer=SGD(momentum=0.9),
        params=for_twin(values),
    )
    for step in range(5):
        x, y = numbers(4, 6, 8, 3, seed=step), labels(4)
        images = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
        first = model.train_step(x, y, learning_rate=0.05)[0]
        second = other.train_step(images, y, learning_rate=0.05)[0]
        np.testing.assert_allclose(first, second, rtol=1e-5)
    expected = for_twin(dict(model.params))
    for name in expected:
        np.testing.assert_allclose(other.params[name], expected[name], rtol=1e-4, atol=1e-6)


# --- variants -------------------------------------------------------------------------------------


def compiled(action) -> int:
    """Return how many pieces of machine code an action made."""
    before = compile_stats()
    action()
    return (compile_stats() - before).compiled


def test_variants_share_weights_statistics_and_optimizer_state() -> None:
    model = trainer(small())
    low = model.variant([frame.spec((BATCH, 6, 6, 3))])
    state = {name: model.store[name] for name in model.store}
    low.train_step(numbers(4, 6, 6, 3), labels(4), learning_rate=0.1)
    changed = [name for name in state if not np.array_equal(state[name], model.store[name])]
    assert "0.conv.weight" in changed and "0.bn.running_mean" in changed
    assert any(name.startswith("optimizer.") for name in changed)
    assert low.store is model.store and low.params is model.params


def test_a_variant_computes_what_a_model_of_its_own_does() -> None:
    model = trainer(small())
    low = model.variant([frame.spec((BATCH, 6, 6, 3))])
    alone = frame.compile(small(), [frame.spec((BATCH, 6, 6, 3))], params=dict(model.params))
    x = numbers(2, 6, 6, 3)
    np.testing.assert_array_equal(low(x), alone(x))
    model.train_step(numbers(4, 8, 8, 3), labels(4), learning_rate=0.1)
    alone.load_params(dict(model.params))
    np.testing.assert_array_equal(low(x), alone(x))


def test_each_variant_is_compiled_once() -> None:
    model = trainer(small(5), batch=4)  # no other test compiles this one
    x, y = numbers(4, 8, 8, 3), labels(4)
    model.train_step(x, y, learning_rate=0.1), model(x)
    variants = {
        "low": ([frame.spec((4, 6, 6, 3))], None, numbers(4, 6, 6, 3), labels(4)),
        "last": (
            [frame.spec((2, 8, 8, 3))],
            [frame.spec((2,), "int64")],
            numbers(2, 8, 8, 3),
            labels(2),
        ),
    }

    def use(inputs, targets, images, wanted) -> None:
        model.variant(inputs, targets).train_step(images, wanted, learning_rate=0.1)
        model.variant(inputs, targets)(images)

    for arguments in variants.values():
        assert compiled(lambda row=arguments: use(*row)) > 0
    for arguments in variants.values():
        assert compiled(lambda row=arguments: use(*row)) == 0
        assert model.variant(*arguments[:2]) is model.variant(*arguments[:2])
    assert compiled(lambda: (model.train_step(x, y, learning_rate=0.1), model(x))) == 0
    assert model.variant([frame.spec((4, 8, 8, 3))]) is model


def test_a_variant_for_validation_compiles_no_training_step() -> None:
    model = trainer(small())
    valid = model.variant([frame.spec((1, 10, 10, 3))])
    valid(numbers(1, 10, 10, 3))
    assert set(valid.entries) == {"infer"}
    assert valid.train().variant([frame.spec((BATCH, 8, 8, 3))]) is model


def test_variants_of_an_nn_module() -> None:
    model = frame.compile(nn.Linear(4, 2), [frame.spec((3, 4))])
    x = numbers(2, 5, 4)
    np.testing.assert_array_equal(model.variant([frame.spec((2, 5, 4))])(x)[0, :3], model(x[0, :3]))


def test_a_variant_with_other_parameters_is_refused() -> None:
    model = frame.compile(networks.small_flat(), [frame.spec((BATCH, 6, 8, 3))])
    with pytest.raises(InvalidArgumentError, match=r"'4.weight' as float32\[36, 7\].*global aver"):
        model.variant([frame.spec((BATCH, 8, 8, 3))])


def test_functions_and_files_have_no_variants(tmp_path) -> None:
    model = frame.compile(lambda x: x + 1.0, [frame.spec((2,))])
    with pytest.raises(InvalidArgumentError, match="has no variants"):
        model.variant([frame.spec((3,))])


# --- memory ---------------------------------------------------------------------------------------


def test_the_memory_of_a_training_step_by_region() -> None:
    model = trainer(small())
    parameters_ = sum(s.size for s in small().module((8, 8, 3)).parameters() if s.trainable)
    found = model.memory("train_step", {"batch": 16})
    assert found["weights"].nbytes == found["optimizer state"].nbytes == 4 * parameters_
    assert found["running statistics"].nbytes == 4 * 2 * (4 + 4)
    assert found["inputs"].nbytes == 16 * (8 * 8 * 3 * 4 + 8) + 4  # images, labels, the rate
    assert found["outputs"].nbytes == 16 * 3 * 4 + 4
    assert found["activations"].at_peak > 0 and found["gradients"].nbytes > 0
    double = model.memory("train_step", {"batch": 32})
    assert double["weights"] == found["weights"]
    assert 1.7 < double["activations"].nbytes / found["activations"].nbytes < 2.1


def test_the_memory_of_inference_holds_no_gradients() -> None:
    model = frame.compile(small(), [frame.spec((4, 8, 8, 3))])
    found = model.memory()
    assert found["gradients"].buffers == found["optimizer state"].buffers == 0
    assert found["activations"].nbytes > 0 and found["prepared weights"].nbytes > 0
    with pytest.raises(InvalidArgumentError, match=r"symbols batch.*sizes=\{'batch': 64\}"):
        frame.compile(small(), [frame.spec((BATCH, 8, 8, 3))]).memory()
