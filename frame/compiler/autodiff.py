"""Reverse-mode differentiation of graphs, and of functions while they are being traced.

The gradient of a graph is a graph: it holds the forward nodes, then the backward walk that
`frame.ops.vjp.pullback` builds from the gradients in the op records. It can be differentiated
again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from frame import ops
from frame.compiler.trees import Rebuild, flatten
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.core.shapes import numel, shape_text
from frame.ir.builder import GraphBuilder, Rewriter, current_builder
from frame.ir.graph import Graph, Role, TensorType, Value
from frame.ops.registry import create_node
from frame.ops.vjp import filled, pullback

__all__ = [
    "build_backward_graph",
    "custom_vjp",
    "grad",
    "stop_gradient",
    "value_and_grad",
]


# --- graphs ---------------------------------------------------------------------------------------


def build_backward_graph(
    graph: Graph, loss: int | str = 0, wrt: Sequence[int | str] | None = None
) -> Graph:
    """Return a graph that computes the outputs of `graph`, then the gradients of its loss.

    Inputs and state updates are those of `graph`. What several nodes read gets the sum of what
    comes back from each; an input that the loss does not depend on gets zeros.

    Args:
        graph: the forward graph.
        loss: the output to differentiate, by position or name; a float of one element.
        wrt: the inputs whose gradients are wanted, by position or name, each once; None means all
            float inputs of role parameter.

    Raises:
        InvalidArgumentError: the loss has more than one element or is no float, an input is no
            float or is named twice.
        NotFoundError: there is no such output or input.
        UnimplementedError: an op between an input and the loss has no gradient.
    """
    position = loss_position(graph, loss)
    positions = _wanted(graph, wrt)
    with Rewriter(graph, is_pass=False) as builder:
        for node in graph.nodes:
            builder.copy(node)
        builder.outputs.extend(graph.outputs)
        builder.output_names = list(output_names(graph))
        builder.updates.extend(graph.updates)
        value = graph.outputs[position]
        seeds = [(value, filled(value.type, 1))]
        inputs = [graph.inputs[i] for i in positions]
        gradients = pullback(graph.nodes, seeds, [entry.value for entry in inputs])
        for entry, gradient in zip(inputs, gradients, strict=True):
            builder.output(gradient, _gradient_name(entry.name, builder.output_names))
        # A rewriter finishes with the outputs of the old graph; this one has more.
        return GraphBuilder.finish(builder)


def _gradient_name(name: str, taken: list[str]) -> str:
    candidate = f"grad.{name}"
    while candidate in taken:
        candidate = f"grad.{candidate}"
    return candidate


def loss_position(graph: Graph, loss: int | str) -> int:
    """Return the position of the output that is differentiated; raises as build_backward_graph."""
    position = _find(loss, output_names(graph), "output", graph)
    _check_loss(graph.outputs[position], f"output {position}")
    return position


def output_names(graph: Graph) -> tuple[str, ...]:
    """Return the names of the outputs; their positions where they have none."""
    return graph.output_names or tuple(f"output{i}" for i in range(len(graph.outputs)))


def _find(wanted: int | str, names: Sequence[str], what: str, graph: Graph) -> int:
    if isinstance(wanted, str):
        if wanted in names:
            return names.index(wanted)
    elif -len(names) <= wanted < len(names):
        return wanted % len(names)
    raise NotFoundError(
        f"the graph {graph.name} has no {what} {wanted!r}; it has {len(names)}: {', '.join(names)}"
    )


def _wanted(graph: Graph, wrt: Sequence[int | str] | None) -> list[int]:
    if wrt is None:
        return trainable_inputs(graph)
    names = [entry.name for entry in graph.inputs]
    positions = [_find(each, names, "input", graph) for each in wrt]
    repeated = next((p for p in positions if positions.count(p) > 1), None)
    if repeated is not None:
        raise InvalidArgumentError(
            f"expected each input of wrt once, received {names[repeated]!r} twice"
        )
    return positions


def trainable_inputs(graph: Graph) -> list[int]:
    """Return the positions of the float inputs of role parameter."""
    return [
        position
        for position, entry in enumerate(graph.inputs)
        if entry.role is Role.PARAMETER and entry.value.dtype.is_float
    ]


def _check_loss(value: Value, what: str) -> None:
    if not value.dtype.is_float:
        raise InvalidArgumentError(f"the loss ({what}) must be a float, received {value.type}")
    if numel(value.shape) != 1:
        raise InvalidArgumentError(
            f"the loss ({what}) must be a scalar or have one element, received the shape "
            f"{shape_text(value.shape)}; frame.ops.sum or frame.ops.mean reduces it"
        )


# --- functions of values --------------------------------------------------------------------------

stop_gradient = ops.stop_gradient


def grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that computes the gradient of `function`, for use while tracing.

    The result takes the arguments of `function` and returns the gradient with respect to argument
    `argnums`, nested as that argument is (a tuple of gradients for several `argnums`). With
    `has_aux` the function returns (loss, extra), and the result (gradient, extra).

    Raises (when it is called):
        InvalidArgumentError: the loss has more than one element, or an argument is no float.
        UnimplementedError: an op on the way has no gradient.
    """
    both = value_and_grad(function, argnums, has_aux)

    def gradient(*arguments: Any, **keywords: Any) -> Any:
        value, found = both(*arguments, **keywords)
        return (found, value[1]) if has_aux else found

    return gradient


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """Return the function that computes the value and the gradient of `function`; see `grad`."""
    several = not isinstance(argnums, int)
    wanted: tuple[int, ...] = tuple(argnums) if not isinstance(argnums, int) else (argnums,)

    def both(*arguments: Any, **keywords: Any) -> tuple[Any, Any]:
        given, leaves, nests = _separate(arguments, wanted)
        builder = current_builder()
        start = len(builder.nodes)
        result = function(*given, **keywords)
        loss = _loss_of(result, has_aux)
        seeds = [(loss, filled(loss.type, 1))]
        flat = [leaf for part in leaves for leaf in part]
        found = iter(pullback(builder.nodes[start:], seeds, flat))
        gradients = tuple(
            nest([next(found) for _ in part]) for part, nest in zip(leaves, nests, strict=True)
        )
        return result, gradients if several else gradients[0]

    return both


def _separate(
    arguments: Sequence[Any], wanted: Sequence[int]
) -> tuple[list[Any], list[list[Value]], list[Rebuild]]:
    """Give the wanted arguments values of their own.

    What the function reaches from around it is a constant for the gradient, even where it is the
    same value as an argument; so each wanted leaf goes through a reshape that does nothing.
    """
    given = list(arguments)
    leaves, nests = [], []
    for position in wanted:
        if not -len(given) <= position < len(given):
            raise InvalidArgumentError(
                f"argnums names the argument {position}, the function got {len(given)}"
            )
        flat, nest = flatten(given[position])
        own = [_own(leaf, position) for leaf in flat]
        given[position] = nest(own)
        leaves.append(own)
        nests.append(nest)
    return given, leaves, nests


def _own(leaf: Any, position: int) -> Value:
    if not isinstance(leaf, Value):
        leaf = ops.constant(leaf)
    if not leaf.dtype.is_float:
        raise InvalidArgumentError(
            f"a gradient is defined for float values only; argument {position} holds {leaf.type}"
        )
    return create_node("reshape", (leaf,), {"shape": leaf.shape})[0]


def _loss_of(result: Any, has_aux: bool) -> Value:
    loss = result
    if has_aux:
        if not isinstance(result, tuple) or len(result) != 2:
            raise InvalidArgumentError(
                f"with has_aux the function must return (loss, extra), received {result!r:.80}"
            )
        loss = result[0]
    if not isinstance(loss, Value):
        raise InvalidArgumentError(
            f"a function to be differentiated must return a value, received {loss!r:.80}"
        )
    _check_loss(loss, "the result of the function")
    return loss


# --- custom_vjp -----------------------------------------------------------------------------------


def custom_vjp(
    forward: Callable[..., tuple[Any, Any]], backward: Callable[[Any, Any], Any]
) -> Callable[..., Any]:
    """Return a function with a gradient of its own, for use while tracing.

    Both functions are traced into the bodies of one `custom_vjp_call` node. An argument that is a
    Python number or text, and no value, reaches them as it is.

    Args:
        forward: `forward(*arguments) -> (result, residuals)`; each is a value, None, or nested
            tuples, lists and dicts of values.
        backward: `backward(residuals, cotangent) -> gradients`; the cotangent is nested as the
            result, None for integers; it returns one entry an argument, nested as that argument
            (an entry that is None means zeros).

    Raises (when it is called):
        InvalidArgumentError: the functions return something else, or read a float from around
            them, whose gradient would be lost.
    """

    def call(*arguments: Any) -> Any:
        operands, nest = _operands(arguments)
        made = _trace_forward(forward, [operand.type for operand in operands], nest)
        types = [operand.type for operand in operands]
        body = _trace_backward(backward, made, types, nest)
        attributes = {"forward": made.graph, "backward": body, "results": made.count}
        everything = (*operands, *made.captures)
        results = create_node("custom_vjp_call", everything, attributes)
        return made.nest_results(results[: made.count])

    return call


def _operands(arguments: tuple[Any, ...]) -> tuple[list[Value], Rebuild]:
    """Return the values among the leaves, and how others take their place between the rest."""
    leaves, nest = flatten(arguments)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, (Value, np.ndarray))]
    operands = [
        leaf if isinstance(leaf, Value) else ops.constant(leaf)
        for leaf in (leaves[i] for i in places)
    ]

    def rebuild(new: Sequence[Any]) -> Any:
        full = list(leaves)
        for place, leaf in zip(places, new, strict=True):
            full[place] = leaf
        return nest(full)

    return operands, rebuild


@dataclass(frozen=True, slots=True)
class _Forward:
    """The traced forward function: how its results and residuals nest, and what it captured."""

    graph: Graph
    count: int
    nest_results: Rebuild
    nest_residuals: Rebuild
    captures: tuple[Value, ...]

    @property
    def residuals(self) -> tuple[Value, ...]:
        """The residuals, as values of the forward body."""
        return self.graph.outputs[self.count :]

    @property
    def results(self) -> tuple[Value, ...]:
        """The results, as values of the forward body."""
        return self.graph.outputs[: self.count]


def _trace_forward(
    forward: Callable[..., tuple[Any, Any]], types: Sequence[TensorType], nest: Rebuild
) -> _Forward:
    with GraphBuilder("forward") as builder:
        inputs = [builder.input(t, Role.CAPTURE, f"argument{i}") for i, t in enumerate(types)]
        pair = forward(*nest(inputs))
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InvalidArgumentError(
                f"the forward function must return (result, residuals), received {pair!r:.80}"
            )
        results, nest_results = flatten(pair[0])
        residuals, nest_residuals = flatten(pair[1])
        for value in (*results, *residuals):
            builder.output(value if isinstance(value, Value) else ops.constant(value))
    for value in builder.captures:
        if value.dtype.is_float:
            _fail_capture("forward", value, "pass it as an argument")
    captures = tuple(builder.captures)
    return _Forward(builder.finish(), len(results), nest_results, nest_residuals, captures)


def _trace_backward(
    backward: Callable[[Any, Any], Any], made: _Forward, types: Sequence[TensorType], nest: Rebuild
) -> Graph:
    with GraphBuilder("backward") as builder:
        residuals = [builder.input(v.type, Role.CAPTURE) for v in made.residuals]
        cotangents = [
            builder.input(v.type, Role.CAPTURE) if v.dtype.is_float else None for v in made.results
        ]
        gradients = backward(made.nest_residuals(residuals), made.nest_results(cotangents))
        for value in _gradient_leaves(gradients, types, nest):
            builder.output(value)
    if builder.captures:
        _fail_capture("backward", next(iter(builder.captures)), "return it among the residuals")
    return builder.finish()


def _gradient_leaves(gradients: Any, types: Sequence[TensorType], nest: Rebuild) -> list[Value]:
    """Return a gradient for each float leaf of the arguments; zeros for an entry that is None."""
    arguments = nest(list(types))
    if not isinstance(gradients, (tuple, list)):
        gradients = (gradients,)
    if len(gradients) != len(arguments):
        raise InvalidArgumentError(
            f"the backward function must return one gradient for each of the {len(arguments)} "
            f"arguments, received {len(gradients)}"
        )
    found: list[Value] = []
    for position, (gradient, argument) in enumerate(zip(gradients, arguments, strict=True)):
        leaves = [leaf for leaf in flatten(argument)[0] if isinstance(leaf, TensorType)]
        floats = [leaf for leaf in leaves if leaf.dtype.is_float]
        given = [filled(t, 0) for t in floats] if gradient is None else flatten(gradient)[0]
        if len(given) not in (len(floats), len(leaves)):
            raise InvalidArgumentError(
                f"the gradient of argument {position} must be nested as the argument, "
                f"{len(floats)} float values, received {len(given)}"
            )
        pairs = zip(given, floats if len(given) == len(floats) else leaves, strict=True)
        found.extend(value for value, type_ in pairs if type_.dtype.is_float)
    return found


def _fail_capture(which: str, value: Value, advice: str) -> None:
    raise InvalidArgumentError(
        f"the {which} function of custom_vjp reads {value!r} from around it, and no gradient "
        f"would flow back into it: {advice}, or use frame.ops.stop_gradient on it inside an "
        "argument"
    )
