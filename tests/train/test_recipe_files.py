"""A model with a training step of every option goes through a file and trains on the same."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import frame
from frame.compiler.optimizers.recipe import Recipe, recipe_from_data, recipe_to_data
from frame.core.errors import InvalidArgumentError
from frame.train import SGD, AdamW, Ema, Freeze, LossScale, ParameterGroup, Swa
from tests.train.support import classes, classifier, weights
from tests.train.tasks import task

EVERYTHING = Recipe(
    AdamW(),
    (ParameterGroup(("*.bias",), 2.0, {"weight_decay": 0.1}),),
    decay_all=True,
    clip_value=0.5,
    clip_norm=1.0,
    accumulate=2,
    average=Ema(0.9),
    freezes=(Freeze(("net.0.bias",), 3), Freeze(("net.3.bias",))),
    precision="bfloat16",
    scaling=LossScale(16.0, 2),
)


@pytest.mark.parametrize(
    "recipe", [EVERYTHING, replace(EVERYTHING, average=Swa(2, 3)), Recipe(SGD())]
)
def test_a_recipe_is_what_its_data_says(recipe: Recipe) -> None:
    assert recipe_from_data(recipe.optimizer, recipe_to_data(recipe)) == recipe
    added = ("precision", "scaling")  # what files of the first version lack
    older = {k: v for k, v in recipe_to_data(Recipe(recipe.optimizer)).items() if k not in added}
    assert recipe_from_data(recipe.optimizer, older) == Recipe(recipe.optimizer)


def test_every_option_differs_from_its_default() -> None:
    plain = Recipe(AdamW())
    same = [f.name for f in fields(Recipe) if getattr(EVERYTHING, f.name) == getattr(plain, f.name)]
    assert same == ["optimizer"], "the test of files would not see that such an option is lost"


def test_training_goes_on_from_a_file(tmp_path: Path) -> None:
    """Weights, states and the random counter are those of a model that was never saved."""
    model = classifier(optimizer=EVERYTHING)
    start = model.params["net.3.bias"]
    x, y = classes(16)
    for _ in range(3):  # the fourth step completes an accumulation that the file has begun
        model.train_step(x, y, learning_rate=0.02)
    model.save(tmp_path / "model.frame")
    loaded = frame.load(tmp_path / "model.frame")
    assert weights(loaded) == weights(model)
    for each in (model, loaded):
        for _ in range(5):
            each.train_step(x, y, learning_rate=0.02)
    assert weights(loaded) == weights(model)
    store = loaded.store
    assert store["optimizer.step"] == 4 and store["optimizer.loss_scale"] == 64.0
    assert any(name.startswith("average.") for name in store)
    np.testing.assert_array_equal(store["net.3.bias"], start)


def test_a_task_scales_the_loss_for_float16() -> None:
    plain = task()
    assert plain.amp().recipe().precision == "bfloat16" and plain.amp().scaling is None
    assert plain.amp("float16").recipe().scaling == LossScale()
    assert plain.amp("float16", LossScale(2.0)).scaling == LossScale(2.0)
    with pytest.raises(InvalidArgumentError, match="one of bfloat16, float16, received 'int8'"):
        plain.amp("int8")
