"""The digits through `DeepLearningTask` with a random shift by a pixel: one JSON line a run.

    python benchmarks/digits_task.py [--seeds N] [--network mlp|cnn]

The networks are those of `frame demo`. Rows whose index is a multiple of 5 are test rows; they are
measured once, after the training, and had no say in the recipe. The last line of a network has the
median accuracy over the seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics

from frame.cli.demo import LABEL_SMOOTHING, RECIPES, Recipe
from frame.data import Digits, digits
from frame.train import (
    AdamW,
    CosineAnnealingLR,
    CrossEntropyLoss,
    DeepLearningTask,
    ImageAugmentation,
    evaluate,
)


def task(recipe: Recipe, data: Digits, seed: int) -> DeepLearningTask:
    """Return the task of a recipe."""
    return (
        DeepLearningTask()
        .model(recipe.make())
        .data((data.train_images, data.train_labels), batch_size=recipe.batch, drop_last=True)
        .augment(ImageAugmentation(shift=1))
        .loss(CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING))
        .optimizer(AdamW(weight_decay=recipe.weight_decay))
        .scheduler(CosineAnnealingLR(base_lr=recipe.learning_rate, warmup=2))
        .total_epochs(recipe.epochs)
        .manual_seed(seed)
    )


def run(recipe: Recipe, data: Digits, seed: int) -> dict[str, object]:
    """Train with a seed and return the facts."""
    history = task(recipe, data, seed).run()
    test = [(data.test_images, data.test_labels)]
    return {
        "network": recipe.name,
        "seed": seed,
        "test_accuracy": evaluate(history.model, test, ("top1",))["top1"],
        "training_loss": history.epochs[-1].loss,
        "seconds": history.seconds,
        "step_us": history.seconds / history.steps * 1e6,
    }


def main() -> None:
    """Print one JSON line a run and one for the median of a network."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds (default: 5)")
    parser.add_argument("--network", choices=[recipe.name for recipe in RECIPES])
    arguments = parser.parse_args()
    data = digits()
    for recipe in RECIPES:
        if arguments.network in (None, recipe.name):
            rows = [run(recipe, data, seed) for seed in range(arguments.seeds)]
            for row in rows:
                print(json.dumps(row))
            middle = statistics.median(float(str(row["test_accuracy"])) for row in rows)
            print(json.dumps({"network": recipe.name, "median_test_accuracy": middle}), flush=True)


if __name__ == "__main__":
    main()
