"""One graph for a whole training step: forward, backward and update."""

from __future__ import annotations

from collections.abc import Sequence

from frame import ops
from frame.compiler.autocast import autocast
from frame.compiler.autodiff import loss_position, output_names, trainable_inputs
from frame.compiler.optimizers.recipe import Recipe, as_recipe
from frame.compiler.optimizers.record import Optimizer, StateSpec
from frame.compiler.optimizers.step import (
    ACCUMULATED,
    AVERAGE,
    GOOD,
    MICRO_STEP,
    OPTIMIZER,
    SCALE,
    STEP,
    Step,
)
from frame.core.dtypes import dtype, float32, int64
from frame.core.errors import InvalidArgumentError
from frame.ir.builder import GraphBuilder, Rewriter
from frame.ir.graph import Graph, GraphInput, Role, TensorType, Value
from frame.ops.vjp import filled, pullback

LEARNING_RATE = "learning_rate"
"""The name of the input for the learning rate, a float32 scalar."""


def training_states(
    forward: Graph, optimizer: Optimizer, wrt: Sequence[int | str] | None = None
) -> tuple[StateSpec, ...]:
    """Return the states that the training graph has as inputs, in their order.

    Arguments as for `build_training_graph`.
    """
    recipe = as_recipe(optimizer)
    specs = [StateSpec(STEP, TensorType(int64, ()))] if recipe.counts else []
    specs += [StateSpec(MICRO_STEP, TensorType(int64, ()))] if recipe.accumulate > 1 else []
    if recipe.scaling is not None:
        specs += [StateSpec(SCALE, TensorType(float32, ()), init=recipe.scaling.start)]
        specs += [StateSpec(GOOD, TensorType(int64, ()))]
    for entry in _trained(forward, wrt):
        type_ = entry.value.type
        own, _ = recipe.for_parameter(entry.name, type_)
        states = dict(own.states(type_))
        if recipe.accumulate > 1:
            states[ACCUMULATED] = type_
        for name, state in states.items():
            specs.append(StateSpec(f"{OPTIMIZER}.{name}.{entry.name}", state, entry.name))
    for entry in _averaged(forward, recipe, wrt):
        specs.append(StateSpec(f"{AVERAGE}.{entry.name}", entry.value.type, entry.name))
    return tuple(specs)


def _averaged(forward: Graph, recipe: Recipe, wrt: Sequence[int | str] | None) -> list[GraphInput]:
    """Return the inputs whose average is kept: trained parameters and running statistics."""
    if recipe.average is None:
        return []
    updated = [forward.inputs[update.input_index] for update in forward.updates]
    return _trained(forward, wrt) + [e for e in updated if e.value.dtype.is_float]


def build_training_graph(
    forward: Graph,
    optimizer: Optimizer,
    loss: int | str = 0,
    wrt: Sequence[int | str] | None = None,
) -> Graph:
    """Return the graph of one training step.

    Its inputs are those of `forward`, then `learning_rate`, then the states of
    `training_states`. Its outputs are those of `forward`. It updates the trained parameters and
    the states, beside what `forward` updates itself (running statistics).

    Args:
        forward: the forward graph with the loss among its outputs.
        optimizer: the optimizer's record.
        loss: the output that holds the loss, by position or name.
        wrt: the inputs to train, by position or name; None means all float inputs of role
            parameter.

    Raises:
        InvalidArgumentError: there is nothing to train, the loss is not acceptable, or `forward`
            updates a trained parameter itself.
        UnimplementedError: an op between a parameter and the loss has no gradient.
    """
    recipe = as_recipe(optimizer)
    trained = _trained(forward, wrt)
    recipe.check_patterns([e.name for e in forward.inputs if e.role is Role.PARAMETER])
    position = loss_position(forward, loss)
    specs = training_states(forward, optimizer, wrt)
    if recipe.precision:
        forward = autocast(forward, dtype(recipe.precision))
    with Rewriter(forward, is_pass=False) as builder:
        for node in forward.nodes:
            builder.copy(node)
        builder.updates.extend(forward.updates)
        rate = builder.input(TensorType(float32, ()), Role.HYPERPARAMETER, LEARNING_RATE)
        states = {
            spec.name: builder.input(spec.type, Role.OPTIMIZER_STATE, spec.name) for spec in specs
        }
        value = forward.outputs[position]
        seeds = [(value, _seed(value, states.get(SCALE)))]
        gradients = pullback(forward.nodes, seeds, [entry.value for entry in trained])
        step = Step(builder, recipe, states, rate)
        step.update(gradients, trained)
        step.average(_averaged(forward, recipe, wrt))
        builder.outputs.extend(forward.outputs)
        builder.output_names = list(output_names(forward))
        # A rewriter finishes with the outputs and updates of the old graph; these are new ones.
        return GraphBuilder.finish(builder)


def _seed(loss: Value, scale: Value | None) -> Value:
    """Return the gradient of the loss itself: 1, or its scale."""
    if scale is None:
        return filled(loss.type, 1)
    return ops.reshape(ops.cast(scale, loss.dtype), loss.shape)


def _trained(forward: Graph, wrt: Sequence[int | str] | None) -> list[GraphInput]:
    names = [entry.name for entry in forward.inputs]
    if wrt is None:
        positions = trainable_inputs(forward)
    else:
        positions = [names.index(each) if isinstance(each, str) else each for each in wrt]
    if not positions:
        raise InvalidArgumentError(
            f"the graph {forward.name} has nothing to train: expected a float input of role "
            f"parameter, received {', '.join(names) or 'no input'}"
        )
    updated = {update.input_index for update in forward.updates}
    taken = next((p for p in positions if p in updated), None)
    if taken is not None:
        raise InvalidArgumentError(
            f"the graph {forward.name} updates {names[taken]!r} itself, so it can't be trained: "
            "leave it out of wrt, or give it the role buffer"
        )
    return [forward.inputs[position] for position in positions]
