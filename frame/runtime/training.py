"""Declaring a training step: forward in train mode, loss, backward and update as one graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from frame.compiler.optimizers import (
    LARS,
    SGD,
    Adam,
    AdamW,
    Lion,
    Optimizer,
    Recipe,
    build_training_graph,
    training_states,
)
from frame.compiler.optimizers.recipe import as_recipe, recipe_from_data, recipe_to_data
from frame.core.errors import InvalidArgumentError
from frame.core.fingerprint import Fingerprint
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, Role, TensorType
from frame.nn.module import BuildContext, Module
from frame.nn.parameters import add_parameter_inputs
from frame.runtime.loading import Transform

OPTIMIZERS: Mapping[str, type[Optimizer]] = MappingProxyType(
    {cls.name: cls for cls in (SGD, Adam, AdamW, LARS, Lion)}
)
"""The optimizers that a file may name: a closed table, so that a file can never name code."""


def declare_training(
    model: Module,
    loss: Module,
    inputs: Mapping[str, TensorType],
    targets: Sequence[TensorType],
    optimizer: Optimizer,
) -> tuple[Graph, Transform]:
    """Return the forward graph with its loss, and the transform that adds backward and update.

    Raises:
        InvalidArgumentError: as `graph_with_loss`.
    """
    graph = graph_with_loss(model, loss, inputs, targets, "train")
    names = sorted(spec.name for spec in model.parameters() if spec.trainable)
    recipe = as_recipe(optimizer)
    recipe.check_patterns(names)
    trained = tuple(name for name in names if recipe.frozen_after(name) != 0)
    if not trained:
        raise InvalidArgumentError(
            f"there is nothing to train: all of {', '.join(names[:8]) or 'no parameter'} are frozen"
        )
    return graph, training_transform(graph, optimizer, trained)


def graph_with_loss(
    model: Module,
    loss: Module,
    inputs: Mapping[str, TensorType],
    targets: Sequence[TensorType],
    mode: str,
) -> Graph:
    """Return the forward graph in a mode (`train` or `infer`) with its loss.

    The inputs of the graph are those of the model, the targets, then the parameters; its outputs
    the loss, then those of the model.

    Raises:
        InvalidArgumentError: the loss has parameters, does not take these targets, or is not one
            number.
    """
    if loss.parameters():
        raise InvalidArgumentError(
            f"a loss can't have parameters, {loss.kind} has {len(loss.parameters())}: make it a "
            "part of the model"
        )
    name = f"{model.name or model.kind}_{'train' if mode == 'train' else 'evaluate'}"
    with GraphBuilder(name) as builder, BuildContext(mode):
        values = [builder.input(type_, Role.INPUT, name) for name, type_ in inputs.items()]
        wanted = [
            builder.input(type_, Role.INPUT, "target" if len(targets) == 1 else f"target{k}")
            for k, type_ in enumerate(targets)
        ]
        parameters = add_parameter_inputs(builder, model.parameters())
        outputs = model.build(values, parameters)
        placed = loss if loss.name else loss.named("loss")  # a path for profiles and errors
        (value,) = placed.build([*outputs, *wanted], ())
        if value.shape != ():
            raise InvalidArgumentError(
                f"expected a loss of one number, {loss.kind} gives {value.type}: reduce it, for "
                "example with reduction='mean'"
            )
        builder.output(value, "loss")
        for position, output in enumerate(outputs):
            builder.output(output, "output" if len(outputs) == 1 else f"output{position}")
    return builder.finish()


def training_transform(graph: Graph, optimizer: Optimizer, wrt: Sequence[str]) -> Transform:
    """Return the transform that adds backward and update to a forward graph with its loss first."""
    names = tuple(wrt)
    inner = optimizer.optimizer if isinstance(optimizer, Recipe) else optimizer
    known = OPTIMIZERS.get(inner.name) is type(inner)
    data = {"optimizer": inner.name, "options": asdict(inner), "wrt": list(names)}
    if isinstance(optimizer, Recipe):
        data["recipe"] = recipe_to_data(optimizer)
    code = Fingerprint()
    if not known:
        code.add(type(inner))
    return Transform(
        f"train loss=0 wrt={list(names)} optimizer={optimizer.text()} {code.text()}",
        lambda forward: build_training_graph(forward, optimizer, wrt=names),
        data if known else None,
        {spec.name: spec.init for spec in training_states(graph, optimizer, names)},
        () if code.exact else (type(inner),),
    )


def transform_from_data(graph: Graph, data: Mapping[str, Any]) -> Transform:
    """Return the transform that `Transform.data` describes.

    Raises:
        InvalidArgumentError: the data names an unknown optimizer, option or input.
    """
    try:
        cls = OPTIMIZERS[data["optimizer"]]
        optimizer: Optimizer = cls(
            **{str(name): _option(value) for name, value in data["options"].items()}
        )
        if "recipe" in data:
            optimizer = recipe_from_data(optimizer, data["recipe"])
        wrt = [str(name) for name in data["wrt"]]
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise InvalidArgumentError(f"unknown training step in the file: {error}") from error
    known = {entry.name for entry in graph.inputs}
    if unknown := [name for name in wrt if name not in known]:
        raise InvalidArgumentError(f"the training step updates {unknown[0]!r}, which is no input")
    return training_transform(graph, optimizer, wrt)


def _option(value: Any) -> float | bool:
    if not isinstance(value, (int, float)):
        raise InvalidArgumentError(f"expected a number as an option, received {value!r:.60}")
    return value
