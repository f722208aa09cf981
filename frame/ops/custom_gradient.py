"""custom_vjp_call: a function that brings its own gradient, as a node that prints and parses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from frame import ops
from frame.core.dtypes import float32
from frame.core.errors import InvalidArgumentError
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Attribute, Graph, Role, TensorType, Value
from frame.ops.interpreter import run_body
from frame.ops.record import AttributeSpec, GradientContext, OpDef, Operand, Sample
from frame.ops.registry import register
from frame.ops.samples import smooth
from frame.ops.vjp import inline, is_zeros, vjp

Attributes = Mapping[str, Attribute]
Types = tuple[TensorType, ...]


def _text(types: Iterable[TensorType]) -> str:
    return ", ".join(map(str, types)) or "nothing"


def _logical(types: Iterable[TensorType]) -> list[tuple[object, ...]]:
    return [(t.dtype, t.shape) for t in types]


def _check(what: str, expected: Sequence[TensorType], received: Sequence[TensorType]) -> None:
    if _logical(expected) != _logical(received):
        raise InvalidArgumentError(
            f"{what} of custom_vjp_call must be ({_text(expected)}), received ({_text(received)})"
        )


def _types(values: Iterable[Value]) -> Types:
    return tuple(value.type for value in values)


def _floats(types: Iterable[TensorType]) -> list[TensorType]:
    return [t for t in types if t.dtype.is_float]


def _infer(operands: Types, values: Attributes) -> Types:
    forward, backward, count = values["forward"], values["backward"], values["results"]
    if forward.updates or backward.updates:
        raise InvalidArgumentError("the bodies of custom_vjp_call update state: only a graph may")
    _check("the inputs of the forward body", operands, _types(forward.input_values))
    produced = _types(forward.outputs)
    if not 1 <= count <= len(produced):
        raise InvalidArgumentError(
            f"attribute 'results' of custom_vjp_call must be from 1 to the {len(produced)} outputs "
            f"of the forward body, received {count}"
        )
    given = (*produced[count:], *_floats(produced[:count]))
    _check("the inputs of the backward body", given, _types(backward.input_values))
    _check("the outputs of the backward body", _floats(operands), _types(backward.outputs))
    return produced


def _gradient(context: GradientContext) -> list[Value | None]:
    """Run the backward body on what flows into the results; differentiate the residuals as usual.

    Something flows into the residuals only where a gradient is differentiated again.
    """
    values, count = context.attributes, context.attributes["results"]
    cotangents = [
        cotangent
        for result, cotangent in zip(context.results[:count], context.cotangents, strict=False)
        if result.dtype.is_float
    ]
    backward: Graph = values["backward"]
    inner = inline(backward, (*context.results[count:], *cotangents))
    positions = [i for i, operand in enumerate(context.operands) if operand.dtype.is_float]
    found: list[Value | None] = [None] * len(context.operands)
    for position, output in zip(positions, backward.outputs, strict=True):
        found[position] = inner[output]
    return _with_residuals(context, positions, found)


def _with_residuals(
    context: GradientContext, positions: list[int], found: list[Value | None]
) -> list[Value | None]:
    forward, count = context.attributes["forward"], context.attributes["results"]
    seeds: list[Value | None] = [None] * count
    for residual, cotangent in zip(
        context.results[count:], context.cotangents[count:], strict=True
    ):
        flows = residual.dtype.is_float and not is_zeros(cotangent)
        seeds.append(cotangent if flows else None)
    wanted = [i for i in positions if context.needed[i]]
    if all(seed is None for seed in seeds) or not wanted:
        return found
    first = {context.operands[i]: i for i in reversed(wanted)}
    extra = vjp(forward, context.operands, seeds, tuple(first.values()))
    for position, gradient in zip(first.values(), extra, strict=True):
        known = found[position]
        found[position] = gradient if known is None else ops.add(known, gradient)
    return found


def _decompose(operands: tuple[Value, ...], values: Attributes) -> tuple[Value, ...]:
    forward: Graph = values["forward"]
    inner = inline(forward, operands)
    return tuple(inner[output] for output in forward.outputs)


# --- samples --------------------------------------------------------------------------------------


def _body(name: str, function: Callable[..., Sequence[Value]], *types: TensorType) -> Graph:
    with GraphBuilder(name) as builder:
        inputs = [builder.input(type_, Role.CAPTURE) for type_ in types]
        for value in function(*inputs):
            builder.output(value)
    return builder.finish()


def _sample(name: str, shape: tuple[int, ...]) -> Sample:
    """X * y * y with the product rule written out; x and y are the residuals."""
    type_ = TensorType(float32, shape)
    forward = _body("forward", lambda x, y: (x * y * y, x, y), type_, type_)
    backward = _body("backward", lambda x, y, g: (g * y * y, g * x * y * 2.0), type_, type_, type_)
    operands = tuple(smooth(shape, seed=seed).astype(np.float32) for seed in (0, 1))
    values = {"forward": forward, "backward": backward, "results": 1}
    return Sample(name, operands, values, fixed=(0, 1))


def _samples() -> Iterable[Sample]:
    yield _sample("matrix", (3, 5))
    yield _sample("vector", (7,))
    yield _sample("rank0", ())
    yield _sample("empty", (0, 3))


register(
    OpDef(
        name="custom_vjp_call",
        doc="Run the forward body; differentiate it by the backward body instead of op by op.\n\n"
        "The forward body returns the results, then the residuals. The backward body takes the "
        "residuals and the cotangents of the float results, and returns the cotangents of the "
        "float operands.",
        operands=(Operand("operands", group="", variadic=True, storage=True),),
        attributes=(
            AttributeSpec("forward", "graph", doc="operands -> results, residuals"),
            AttributeSpec("backward", "graph", doc="residuals, cotangents -> cotangents"),
            AttributeSpec("results", "int", doc="number of results that are no residuals"),
        ),
        infer=_infer,
        reference=lambda operands, values: tuple(run_body(values["forward"], operands)),
        gradient=_gradient,
        results=("result...",),
        decomposition=_decompose,
        samples=_samples,
    )
)
