"""What the records of composites share: one call that registers an op built from simpler ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from frame import ops
from frame.core.dtypes import float32
from frame.ir.graph import Attribute, TensorType, Value
from frame.ops.record import (
    AttributeSpec,
    Autocast,
    Canonicalize,
    Decomposition,
    Gradient,
    InferTypes,
    OpDef,
    Operand,
    Reference,
    Sample,
    Trait,
)
from frame.ops.registry import register
from frame.ops.vjp import composite_gradient

Attributes = Mapping[str, Attribute]
Types = tuple[TensorType, ...]


def composite(
    name: str,
    doc: str,
    operands: tuple[Operand, ...],
    *,
    infer: InferTypes,
    reference: Reference,
    build: Decomposition,
    samples: Callable[[], Iterable[Sample]],
    gradient: Gradient | None = None,
    attributes: tuple[AttributeSpec, ...] = (),
    results: tuple[str, ...] = ("y",),
    traits: Iterable[Trait] = (),
    autocast: Autocast = Autocast.FLOAT32,
    canonicalize: Canonicalize | None = None,
) -> OpDef:
    """Register an op that decomposes; its gradient is that of the decomposition by default."""
    return register(
        OpDef(
            name,
            doc,
            operands,
            infer,
            reference,
            gradient or composite_gradient(build),
            attributes=attributes,
            results=results,
            traits=frozenset(traits),
            autocast=autocast,
            decomposition=build,
            samples=samples,
            canonicalize=canonicalize,
        )
    )


def in_float32(build: Decomposition) -> Decomposition:
    """Return a decomposition with one result that computes narrow floats in float32.

    For composites that keep sums in memory between steps: only the result is rounded.
    """

    def widened(operands: tuple[Value, ...], attributes: Attributes) -> Value:
        narrow = operands[0].dtype
        if not narrow.is_float or narrow.bits >= 32:
            return build(operands, attributes)  # type: ignore[return-value]
        wide = tuple(ops.cast(operand, float32) for operand in operands)
        return ops.cast(build(wide, attributes), narrow)  # type: ignore[arg-type]

    return widened


def same_type(operands: Types, attributes: Attributes) -> TensorType:
    """Return the type of the first operand: the rule of most activations."""
    return operands[0]
