"""The main job over several seeds, beside PyTorch where it is installed: one JSON line a case.

    python benchmarks/digits.py [--seeds N] [--quick]

Each network of `frame demo` is trained on the handwritten digits by frame and by PyTorch (extra
`bench`): the same layers, initialisation rule, optimizer, schedule, loss, epochs and batches. The
two take turns epoch by epoch, so that both meet the same other load on the machine. Networks this
small suffer from threads that wait for each other, so PyTorch runs its epochs with as many threads
as frame and with a single one in turn. `ratio` and `ratio_1_thread` are the medians over the epochs
of PyTorch's time / frame's time, so above 1 frame is ahead. A step includes the making of its
batch. The last line of a network has the medians over the seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from frame.backends.cpu.pool import get_pool
from frame.cli.demo import LABEL_SMOOTHING, QUICK_EPOCHS, RECIPES, WARMUP_STEPS, Recipe, compiled
from frame.data import DataLoader, Digits, TensorDataset, digits
from frame.train import EpochRecord, cosine, evaluate, fit

try:
    import torch
except ImportError:
    torch = None


def batches(recipe: Recipe, data: Digits, seed: int) -> DataLoader:
    """The batches that both peers get, in the same order."""
    rows = TensorDataset([data.train_images, data.train_labels])
    return DataLoader(rows, recipe.batch, shuffle=True, seed=seed, drop_last=True)


def torch_network(name: str) -> Any:
    """The network of a recipe in PyTorch."""
    layers = torch.nn
    if name == "mlp":
        return layers.Sequential(
            layers.Flatten(),
            *(layers.Linear(64, 256), layers.ReLU(), layers.Dropout(0.3)),
            *(layers.Linear(256, 128), layers.ReLU(), layers.Dropout(0.3)),
            layers.Linear(128, 10),
        )
    return layers.Sequential(
        *(layers.Conv2d(1, 16, 3, padding=1), layers.ReLU()),
        *(layers.Conv2d(16, 32, 3, padding=1), layers.ReLU()),
        *(layers.MaxPool2d(2), layers.Flatten(), layers.Dropout(0.25)),
        *(layers.Linear(512, 128), layers.ReLU(), layers.Dropout(0.5), layers.Linear(128, 10)),
    )


class TorchPeer:
    """PyTorch eager on the same job."""

    def __init__(self, recipe: Recipe, data: Digits, seed: int, steps: int) -> None:
        torch.manual_seed(seed)
        self.network = torch_network(recipe.name)
        self.loss = torch.nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING)
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        self.loader = batches(recipe, data, seed)
        self.rate = cosine(recipe.learning_rate, WARMUP_STEPS)
        self.step, self.steps = 0, steps

    def epoch(self, threads: int) -> float:
        """Train for an epoch and return its time in seconds."""
        torch.set_num_threads(threads)
        self.network.train()
        start = time.perf_counter()
        for images, labels in self.loader:
            self.optimizer.param_groups[0]["lr"] = self.rate(self.step, self.steps)
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.loss(self.network(torch.from_numpy(images)), torch.from_numpy(labels))
            loss.backward()
            self.optimizer.step()
            loss.item()  # frame looks at each loss, too
            self.step += 1
        return time.perf_counter() - start

    def accuracy(self, data: Digits) -> float:
        """Return the share of test images that it gets right."""
        self.network.eval()
        with torch.no_grad():
            found = self.network(torch.from_numpy(data.test_images)).argmax(1).numpy()
        return float(np.mean(found == data.test_labels))


@dataclass
class Turns:
    """The times of the epochs of frame, and those of the peer by its number of threads."""

    peer: TorchPeer | None
    frame: list[float] = field(default_factory=list)
    pairs: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def after_epoch(self, record: EpochRecord) -> None:
        """Note frame's epoch, and let the peer run one."""
        self.frame.append(record.seconds)
        if self.peer is not None:
            threads = 1 if record.epoch % 2 else get_pool().threads
            pair = (self.peer.epoch(threads), record.seconds)
            self.pairs.setdefault(threads, []).append(pair)

    def facts(self, steps: int) -> dict[str, float]:
        """Return the peer's step times and how many times as long as frame's they are."""
        found = {}
        for threads, pairs in self.pairs.items():
            name = "_1_thread" if threads == 1 else ""
            found[f"torch_step_us{name}"] = _step_microseconds([t for t, _ in pairs], steps)
            ratio = statistics.median(theirs / ours for theirs, ours in pairs)
            found[f"ratio{name}"] = round(ratio, 3)
        return found


def run(recipe: Recipe, data: Digits, seed: int, epochs: int) -> dict[str, Any]:
    """Train a network once with each peer and return the facts."""
    start = time.perf_counter()
    model = compiled(recipe, seed)
    compile_seconds = time.perf_counter() - start
    loader = batches(recipe, data, seed)
    steps = epochs * len(loader)
    turns = Turns(TorchPeer(recipe, data, seed, steps) if torch is not None else None)
    history = fit(
        model,
        loader,
        epochs=epochs,
        learning_rate=cosine(recipe.learning_rate, WARMUP_STEPS),
        progress=False,
        on_epoch=turns.after_epoch,
    )
    test = [(data.test_images, data.test_labels)]
    facts: dict[str, Any] = {
        "case": f"digits {recipe.name}",
        "seed": seed,
        "epochs": epochs,
        "steps": history.steps,
        "batch": recipe.batch,
        "threads": get_pool().threads,
        "frame_compile_s": round(compile_seconds, 3),
        "frame_accuracy": evaluate(model, test, ("accuracy",))["accuracy"],
        "frame_step_us": _step_microseconds(turns.frame, len(loader)),
    }
    if turns.peer is not None:
        facts["torch_accuracy"] = turns.peer.accuracy(data)
        facts |= turns.facts(len(loader))
    return facts


def _step_microseconds(epochs: list[float], steps: int) -> float:
    """Return the median time of a step; `steps` are those of an epoch."""
    return round(statistics.median(epochs) / steps * 1e6, 1)


def medians(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of the measured values over the seeds."""
    measured = ("accuracy", "step_us", "ratio", "compile_s", "1_thread")
    names = [name for name in rows[0] if name.endswith(measured)]
    found = {name: round(statistics.median(row[name] for row in rows), 4) for name in names}
    return {"case": f"{rows[0]['case']}, medians", "seeds": len(rows), **found}


def lines(seeds: int, quick: bool) -> Iterator[dict[str, Any]]:
    """Run every network and seed, and yield the rows."""
    data = digits()
    for recipe in RECIPES:
        epochs = QUICK_EPOCHS if quick else recipe.epochs
        rows = []
        for seed in range(seeds):
            rows.append(run(recipe, data, seed, epochs))
            yield rows[-1]
        yield medians(rows)


def main() -> None:
    """Print one JSON line a run, and one for the medians of a network."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds (default: 5)")
    parser.add_argument("--quick", action="store_true", help="a few epochs only")
    arguments = parser.parse_args()
    for row in lines(arguments.seeds, arguments.quick):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
