"""Declaring a training step: forward in train mode, loss, backward and update as one graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frame.compiler.optimizers import Optimizer, build_training_graph
from frame.core.errors import InvalidArgumentError
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, Role, TensorType
from frame.nn.module import BuildContext, Module
from frame.nn.parameters import add_parameter_inputs
from frame.runtime.stages import Transform


def declare_training(
    model: Module,
    loss: Module,
    inputs: Mapping[str, TensorType],
    targets: Sequence[TensorType],
    optimizer: Optimizer,
) -> tuple[Graph, Transform]:
    """Return the forward graph with its loss, and the transform that adds backward and update.

    The inputs of the graph are those of the model, the targets, then the parameters; its outputs
    the loss, then those of the model.

    Raises:
        InvalidArgumentError: the loss has parameters, or does not take these targets.
    """
    if loss.parameters():
        raise InvalidArgumentError(
            f"a loss can't have parameters, {loss.kind} has {len(loss.parameters())}: make it a "
            "part of the model"
        )
    trainable = {spec.name for spec in model.parameters() if spec.trainable}
    with GraphBuilder(f"{model.name or model.kind}_train") as builder, BuildContext("train"):
        values = [builder.input(type_, Role.INPUT, name) for name, type_ in inputs.items()]
        wanted = [
            builder.input(type_, Role.INPUT, "target" if len(targets) == 1 else f"target{k}")
            for k, type_ in enumerate(targets)
        ]
        parameters = add_parameter_inputs(builder, model.parameters())
        outputs = model.build(values, parameters)
        (value,) = loss.build([*outputs, *wanted], ())
        builder.output(value, "loss")
        for position, output in enumerate(outputs):
            builder.output(output, "output" if len(outputs) == 1 else f"output{position}")
    graph = builder.finish()
    text = f"train loss=0 wrt={sorted(trainable)} optimizer={optimizer!r}"
    names = tuple(sorted(trainable))
    return graph, Transform(text, lambda g: build_training_graph(g, optimizer, wrt=names))
