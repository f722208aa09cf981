"""One graph for a whole training step: forward, backward and update."""

from __future__ import annotations

from collections.abc import Sequence

from frame import ops
from frame.compiler.autodiff import build_backward_graph, trainable_inputs
from frame.compiler.optimizers.record import Optimizer, RunTime, StateSpec
from frame.core.dtypes import float32, int64
from frame.core.errors import InvalidArgumentError
from frame.ir.builder import GraphBuilder, Rewriter
from frame.ir.graph import Graph, GraphInput, Role, TensorType, Value

LEARNING_RATE = "learning_rate"
"""The name of the input for the learning rate, a float32 scalar."""

OPTIMIZER = "optimizer"
"""The module path of the parts of an update that are of no module of the model."""

STEP = f"{OPTIMIZER}.step"
"""The name of the state that counts the steps done so far, an int64 scalar."""


def training_states(
    forward: Graph, optimizer: Optimizer, wrt: Sequence[int | str] | None = None
) -> tuple[StateSpec, ...]:
    """Return the states that the training graph has as inputs, in their order.

    Arguments as for `build_training_graph`.
    """
    specs = [StateSpec(STEP, TensorType(int64, ()))] if optimizer.counts else []
    for entry in _trained(forward, wrt):
        for name, type_ in optimizer.states(entry.value.type).items():
            specs.append(StateSpec(f"optimizer.{name}.{entry.name}", type_, entry.name))
    return tuple(specs)


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
    trained = _trained(forward, wrt)
    backward = build_backward_graph(forward, loss, [entry.name for entry in trained])
    gradients = backward.outputs[len(forward.outputs) :]
    specs = training_states(forward, optimizer, wrt)
    with Rewriter(backward) as builder:
        for node in backward.nodes:
            builder.copy(node)
        builder.updates.extend(backward.updates)
        rate = builder.input(TensorType(float32, ()), Role.HYPERPARAMETER, LEARNING_RATE)
        states = {
            spec.name: builder.input(spec.type, Role.OPTIMIZER_STATE, spec.name) for spec in specs
        }
        step = _count(builder, states.get(STEP))
        for entry, gradient in zip(trained, gradients, strict=True):
            _update(builder, optimizer, entry, gradient, rate, step, states)
        builder.outputs.extend(forward.outputs)
        builder.output_names = list(backward.output_names[: len(forward.outputs)])
        # A rewriter finishes with the outputs and updates of the old graph; these are new ones.
        return GraphBuilder.finish(builder)


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


def _count(builder: GraphBuilder, done: Value | None) -> Value | None:
    if done is None:
        return None
    builder.push_module(OPTIMIZER)
    step = ops.add(done, 1)
    builder.pop_module()
    builder.update(done, step)
    return step


def _update(
    builder: GraphBuilder,
    optimizer: Optimizer,
    entry: GraphInput,
    gradient: Value,
    rate: Value,
    step: Value | None,
    states: dict[str, Value],
) -> None:
    """Add the update of a parameter, as a part of the module that the parameter is of."""
    parameter = entry.value
    builder.push_module(entry.name.rpartition(".")[0] or OPTIMIZER)
    names = optimizer.states(parameter.type)
    own = {name: states[f"optimizer.{name}.{entry.name}"] for name in names}
    run = RunTime(ops.cast(rate, parameter.dtype), step)
    new, changed = optimizer.update(parameter, gradient, own, run)
    builder.pop_module()
    builder.update(parameter, new)
    for name in names:
        builder.update(own[name], changed[name])
