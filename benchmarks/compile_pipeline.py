"""Time of the whole pipeline of passes over training graphs of several sizes.

Prints one JSON line a case: the nodes of the declared training graph, the seconds of all passes
with their verification (the median of some rounds), of the clock and of the processor, and those
of each pass.
Run it with `python -m benchmarks.compile_pipeline [--rounds N]`.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time

from frame import ops
from frame.backends.cpu.backend import CpuBackend
from frame.compiler.optimizers import Adam, build_training_graph
from frame.compiler.pass_manager import Recorder
from frame.compiler.pipeline import compile_graph
from frame.core.dtypes import float32, int64
from frame.core.shapes import Dim
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, Role, TensorType, Value

WIDTH = 64
SIZES = {"mlp_1250": (7, 0), "mlp_5000": (27, 0), "transformer_5000": (0, 8)}


def training_graph(layers: int, blocks: int) -> Graph:
    """Return the training step of a stack of layers and of transformer blocks with one head."""
    with GraphBuilder("network") as builder:
        batch = Dim.symbol("batch")
        x = builder.input(TensorType(float32, (batch, WIDTH)), name="x")
        labels = builder.input(TensorType(int64, (batch,)), name="labels")
        for index in range(layers):
            x = ops.gelu(_linear(builder, x, f"layer{index}"))
            x = ops.layer_norm(x, *_norm(builder, f"norm{index}"))
        for index in range(blocks):
            x = _block(builder, x, f"block{index}")
        loss = ops.mean(ops.softmax_cross_entropy(x, labels))
        builder.output(loss, "loss")
    return build_training_graph(builder.finish(), Adam(weight_decay=0.01))


def _weight(builder: GraphBuilder, name: str, *shape: int) -> Value:
    return builder.input(TensorType(float32, shape), Role.PARAMETER, name)


def _linear(builder: GraphBuilder, x: Value, name: str) -> Value:
    weight = _weight(builder, f"{name}.weight", WIDTH, WIDTH)
    return x @ weight + _weight(builder, f"{name}.bias", WIDTH)


def _norm(builder: GraphBuilder, name: str) -> tuple[Value, Value]:
    return _weight(builder, f"{name}.gamma", WIDTH), _weight(builder, f"{name}.beta", WIDTH)


def _block(builder: GraphBuilder, x: Value, name: str) -> Value:
    query, key, value = (_linear(builder, x, f"{name}.{part}") for part in ("q", "k", "v"))
    scores = ops.softmax(ops.matmul(query, key, transpose_b=True) * WIDTH**-0.5)
    x = ops.layer_norm(x + scores @ value, *_norm(builder, f"{name}.norm0"))
    hidden = ops.gelu(_linear(builder, x, f"{name}.up"))
    return ops.layer_norm(
        x + _linear(builder, hidden, f"{name}.down"), *_norm(builder, f"{name}.n1")
    )


def measure(name: str, rounds: int) -> dict[str, object]:
    """Return the figures of one case."""
    backend = CpuBackend()
    target = backend.target()
    capabilities = backend.capabilities(target)
    totals, processor, parts = [], [], []
    for _ in range(rounds):
        graph = training_graph(*SIZES[name])
        recorder = Recorder()
        gc.collect()
        start, busy = time.perf_counter(), time.process_time()
        compiled = compile_graph(
            graph, target, capabilities, backend.group_info, instruments=[recorder]
        )
        totals.append(time.perf_counter() - start)
        processor.append(time.process_time() - busy)
        parts.append(recorder.seconds())
    return {
        "benchmark": "compile_pipeline",
        "case": name,
        "nodes": len(graph.nodes),
        "groups": len(compiled.run.graph.nodes),
        "seconds": round(statistics.median(totals), 4),
        "processor_seconds": round(statistics.median(processor), 4),
        "passes": {
            each: round(statistics.median(part[each] for part in parts), 4) for each in parts[0]
        },
    }


def main() -> None:
    """Print one JSON line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    for name in SIZES:
        print(json.dumps(measure(name, rounds)))


if __name__ == "__main__":
    main()
