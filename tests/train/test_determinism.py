"""The same seed gives the same weights, bit for bit, whatever the number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from frame.backends.cpu.pool import set_num_threads
from frame.cli.demo import RECIPES, compiled
from frame.core import config
from frame.data import DataLoader, TensorDataset, digits
from frame.train import cosine, fit
from tests.train.support import classifier, loader, weights


@pytest.fixture
def threads():
    yield set_num_threads
    set_num_threads(None)


def _trained(seed: int, data_seed: int = 0) -> dict[str, bytes]:
    model = classifier(seed)
    fit(model, loader(seed=data_seed), epochs=3, learning_rate=0.02)
    return weights(model)


def test_the_seeds_decide() -> None:
    first = _trained(1)
    assert _trained(1) == first
    assert _trained(2) != first and _trained(1, data_seed=1) != first


def test_training_on_is_the_same_as_training_in_one_go() -> None:
    one, two = classifier(), classifier()
    fit(one, loader(), epochs=4, learning_rate=0.02)
    batches = loader()
    for _ in range(2):
        fit(two, batches, epochs=2, learning_rate=0.02)
    assert weights(one) == weights(two)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_demo_networks_do_not_depend_on_the_threads(recipe, threads) -> None:
    data = digits()
    rows = TensorDataset([data.train_images[:200], data.train_labels[:200]])
    found = []
    for count in (1, 2, 3):
        threads(count)
        model = compiled(recipe, seed=5)
        batches = DataLoader(rows, recipe.batch, shuffle=True, drop_last=True)
        fit(model, batches, epochs=2, learning_rate=cosine(2e-3, 2))
        found.append(weights(model) | {"scores": model(data.test_images).tobytes()})
    assert found[0] == found[1] == found[2]
    assert np.isfinite(np.frombuffer(found[0]["scores"], np.float32)).all()


def test_code_from_the_cache_trains_alike(tmp_path) -> None:
    found = []
    for mode in ("0", "1", "1"):
        with config.override(FRAME_CACHE_DIR=str(tmp_path), FRAME_CACHE=mode):
            found.append(_trained(3))
    assert found[0] == found[1] == found[2]
