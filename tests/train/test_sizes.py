"""`frame.compile(..., sizes=)`: the training step alone is compiled for fixed sizes."""

from __future__ import annotations

import numpy as np
import pytest

import frame
from frame import nn
from frame.core.errors import InvalidArgumentError
from frame.train import SGD


def _model(**options):
    net = nn.Sequential("net", [nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4)])
    return frame.compile(
        net,
        [frame.spec(("batch", 3))],
        loss=nn.CrossEntropyLoss(),
        targets=[frame.spec(("batch",), "int64")],
        optimizer=SGD(),
        seed=3,
        **options,
    )


def test_the_training_step_has_numbers_and_inference_keeps_the_symbol() -> None:
    model = _model(sizes={"batch": 6})
    assert model.entry("train_step").signature.symbols == ()
    assert model.entry("infer").signature.symbols == ("batch",)
    for rows in (1, 6, 9):
        assert model(np.ones((rows, 3), np.float32)).shape == (rows, 4)


def test_a_step_is_the_same_with_numbers_as_with_symbols() -> None:
    x = np.linspace(-1, 1, 18, dtype=np.float32).reshape(6, 3)
    y = np.array([0, 1, 2, 3, 0, 1])
    fixed, symbolic = _model(sizes={"batch": 6}), _model()
    for _ in range(3):
        losses = [m.train_step(x, y, learning_rate=0.1)[0] for m in (fixed, symbolic)]
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    for name in fixed.params:
        np.testing.assert_allclose(fixed.params[name], symbolic.params[name], rtol=1e-5, atol=1e-7)


def test_another_size_in_a_step_names_the_input_and_changes_nothing() -> None:
    model = _model(sizes={"batch": 6})
    before = {name: model.params[name] for name in model.params}
    with pytest.raises(InvalidArgumentError, match="x.*6"):
        model.train_step(np.ones((5, 3), np.float32), np.zeros(5, np.int64), learning_rate=0.1)
    for name, value in before.items():
        np.testing.assert_array_equal(model.params[name], value)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"bath": 6}, "names 'bath'.*batch"),
        ({"batch": -1}, "-1"),
        ({"batch": "many"}, "many"),
        ({"batch": 2.5}, "2.5"),
    ],
)
def test_wrong_sizes(sizes: dict, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        _model(sizes=sizes)


def test_sizes_without_a_training_step_are_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="training step"):
        frame.compile(nn.Linear(3, 4), [frame.spec(("batch", 3))], sizes={"batch": 3})
