"""Parameters, and running modules with the reference interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np

from frame import nn
from frame.core.dtypes import float32
from frame.ir.graph import TensorType
from frame.nn import Module
from frame.ops.interpreter import interpret


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def parameters(module: Module, seed: int = 0) -> dict[str, np.ndarray]:
    """Return initial values, with vectors (scales, shifts, statistics) that are not all alike."""
    rng = np.random.default_rng(seed)
    return {
        spec.name: rng.uniform(0.5, 1.5, spec.shape).astype(np.float32)
        if len(spec.shape) == 1
        else nn.materialize(spec, seed)
        for spec in module.parameters()
    }


def run(
    module: Module,
    x: np.ndarray,
    mode: str = "infer",
    values: dict[str, np.ndarray] | None = None,
    **options: Any,
) -> np.ndarray:
    """Return the result of a module by the interpreter, in float64 unless precision="native"."""
    given = parameters(module) if values is None else values
    graph = nn.build_graph(module, [TensorType(float32, x.shape)], mode)
    assert [entry.name for entry in graph.inputs[1:]] == [s.name for s in module.parameters()]
    arrays = [given[spec.name] for spec in module.parameters()]
    return interpret(graph, [x, *arrays], **options)[0]
