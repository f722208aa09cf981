"""Handwritten digits through `DeepLearningTask`, with augmentation: how many are told apart."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.digits_task import run
from frame.cli.demo import RECIPES
from frame.data import digits

NETWORKS = {recipe.name: recipe for recipe in RECIPES}


def test_a_perceptron_tells_digits_apart() -> None:
    """One seed, and a share that no seed so far has missed; the medians are those below."""
    assert run(NETWORKS["mlp"], digits(), seed=1)["test_accuracy"] >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("mlp", 0.98), ("cnn", 0.989)])
def test_the_median_of_five_seeds(name: str, least: float) -> None:
    data = digits()
    found = [float(str(run(NETWORKS[name], data, seed)["test_accuracy"])) for seed in range(5)]
    assert statistics.median(found) >= least
