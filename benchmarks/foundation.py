"""Frame beside numpy and PyTorch on the cases of the foundation: one JSON line a case.

    python benchmarks/foundation.py [--rounds N] [--only TEXT]

Every case is prepared once for each peer with the same inputs, the outputs are compared, and then
the peers run in turns: a round is one short window of each. `ratio` is the median over rounds of
peer time / frame time in the same round, so above 1 frame is ahead. Times are microseconds.
PyTorch (extra `bench`) and numpy use as many threads as frame; what is missing is left out.
"""

# ruff: noqa: E402 - the environment is set before numpy is loaded

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script

for _name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(_name, None)  # they cripple a current numpy

import itertools

import numpy as np

import frame
from benchmarks.measuring import Run, interleaved, ratio
from frame import nn, ops
from frame.backends.cpu.pool import get_pool

try:
    import torch
except ImportError:
    torch = None


@dataclass
class Case:
    """One case: a callable a peer; each returns an array, or a tuple whose first is compared."""

    name: str
    runs: dict[str, Run] = field(default_factory=dict)
    tolerance: float = 1e-3


def _inputs(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape).astype(np.float32) for shape in shapes]


def _function_case(
    name: str,
    function: Callable[..., Any],
    arrays: list[np.ndarray],
    numpy_form: Callable[..., Any] | None = None,
    torch_form: Callable[..., Any] | None = None,
) -> Case:
    """A case of one function of values, with the same function for the peers."""
    compiled = frame.compile(function, [frame.spec(array.shape) for array in arrays])
    case = Case(name, {"frame": lambda: compiled(*arrays)})
    if numpy_form is not None:
        case.runs["numpy"] = lambda: numpy_form(*arrays)
    if torch is not None and torch_form is not None:
        tensors = [torch.from_numpy(array) for array in arrays]
        case.runs["torch"] = lambda: torch_form(*tensors)
    return case


def call_case() -> Case:
    """The overhead of a call: sixteen numbers are added."""
    return _function_case(
        "call add16",
        lambda x, y: x + y,
        _inputs((16,), (16,)),
        np.add,
        lambda x, y: x + y,
    )


def matmul_case() -> Case:
    """A square matrix product."""
    return _function_case(
        "matmul 1024x1024x1024",
        lambda x, y: x @ y,
        _inputs((1024, 1024), (1024, 1024)),
        np.matmul,
        lambda x, y: x @ y,
    )


def linear_case() -> Case:
    """A matrix product with bias and GELU."""
    return _function_case(
        "linear 128x768x3072 bias gelu",
        lambda x, w, bias: ops.gelu(x @ w + bias),
        _inputs((128, 768), (768, 3072), (3072,)),
        None,
        lambda x, w, bias: torch.nn.functional.gelu(torch.addmm(bias, x, w)),
    )


def softmax_case() -> Case:
    """Softmax over rows."""
    return _function_case(
        "softmax 512x1024",
        lambda x: ops.softmax(x),
        _inputs((512, 1024)),
        None,
        lambda x: torch.softmax(x, -1),
    )


def layer_norm_case() -> Case:
    """Layer normalisation of rows."""
    return _function_case(
        "layer_norm 512x1024",
        lambda x, g, b: ops.layer_norm(x, g, b),
        _inputs((512, 1024), (1024,), (1024,)),
        None,
        lambda x, g, b: torch.nn.functional.layer_norm(x, (1024,), g, b),
    )


def gelu_case() -> Case:
    """An elementwise chain over a million elements."""
    return _function_case(
        "gelu(x*a+b)+r 1M",
        lambda x, a, b, r: ops.gelu(x * a + b) + r,
        _inputs(*[(1024, 1024)] * 4),
        None,
        lambda x, a, b, r: torch.nn.functional.gelu(x * a + b) + r,
    )


WIDTHS = (784, 1024, 512, 256, 10)


def _mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(WIDTHS):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential("mlp", layers[:-1])


def training_case() -> Case:
    """A training step of the MLP at batch 128: SGD with momentum, softmax cross entropy."""
    from frame.train import SGD

    x = _inputs((128, 784))[0]
    labels = np.random.default_rng(1).integers(0, 10, 128)
    model = frame.compile(
        _mlp(),
        [frame.spec((128, 784))],
        loss=nn.CrossEntropyLoss(),
        targets=[frame.spec((128,), "int64")],
        optimizer=SGD(momentum=0.9),
    )
    rate = np.float32(0.0)
    case = Case(
        "train MLP 784-1024-512-256-10 b128",
        {"frame": lambda: model.train_step(x, labels, learning_rate=rate)[0]},
    )
    if torch is not None:
        case.runs["torch"] = _torch_training(model, x, labels)
    return case


def _torch_training(model: Any, x: np.ndarray, labels: np.ndarray) -> Run:
    layers: list[Any] = []
    for before, after in itertools.pairwise(WIDTHS):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for position in range(0, len(layers), 2):
            net[position].weight.copy_(torch.from_numpy(model.params[f"mlp.{position}.weight"].T))
            net[position].bias.copy_(torch.from_numpy(model.params[f"mlp.{position}.bias"]))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9)
    data, target = torch.from_numpy(x), torch.from_numpy(labels)

    def step() -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(data), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


CASES: tuple[Callable[[], Case], ...] = (
    call_case,
    matmul_case,
    linear_case,
    softmax_case,
    layer_norm_case,
    gelu_case,
    training_case,
)


def _first(result: Any) -> np.ndarray:
    return np.asarray(result[0] if isinstance(result, tuple) else result)


def _check(case: Case) -> None:
    """Compare the outputs of all peers before anything is timed."""
    expected = _first(case.runs["frame"]())
    for peer, run in case.runs.items():
        error = float(np.max(np.abs(_first(run()) - expected)))
        scale = float(np.max(np.abs(expected))) or 1.0
        if error > case.tolerance * scale:
            raise SystemExit(f"{case.name}: {peer} differs from frame by {error}")


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Time a case in interleaved rounds."""
    _check(case)
    times = interleaved(case.runs, rounds)
    row: dict[str, Any] = {"case": case.name, "threads": get_pool().threads, "rounds": rounds}
    for peer, values in times.items():
        row[f"{peer}_us"] = round(statistics.median(values) * 1e6, 2)
    for peer in times:
        if peer != "frame":
            row[f"{peer}_ratio"] = round(ratio(times, peer), 3)
    return row


def rows(only: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Measure the cases whose name holds `only`."""
    for make in CASES:
        case = make()
        if only in case.name:
            yield measure(case, rounds)


def main() -> None:
    """Print one JSON line a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if torch is not None:
        torch.set_num_threads(get_pool().threads)
    for row in rows(options.only, options.rounds):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
