"""An op of your own: its meaning as a record, its code as one scalar rule.

    python examples/custom_op.py

The record says what `scaled_relu` is: operands, types, a numpy reference, a gradient, samples. From
it come the interpreter, autodiff and every generic test. The scalar rule says how one element is
computed; fusion, vectorisation, threads and the cache treat the op like a built-in one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import frame
from frame import ops
from frame.codegen import register_scalar_rule
from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Expr
from frame.codegen.schedules.scalar_rules import RuleContext
from frame.ir.graph import Value
from frame.ops.record import AttributeSpec, GradientContext, OpDef, Operand, Sample, Trait
from frame.ops.registry import register


def _gradient(context: GradientContext) -> list[Value | None]:
    (x,), (cotangent,) = context.operands, context.cotangents
    slope = ops.where(ops.greater(x, 0.0), context.attributes["scale"], 0.0)
    return [cotangent * ops.cast(slope, x.dtype)]


def _samples() -> Iterator[Sample]:
    yield Sample("matrix", (np.array([[-1.0, 0.5], [2.0, -3.0]]),), {"scale": 2.0})


def _rule(context: RuleContext, x: Expr) -> Expr:
    return b.mul(b.max_(x, b.like(0.0, x)), b.like(context.attributes["scale"], x))


def declare() -> None:
    """Register the op and its rule."""
    register(
        OpDef(
            name="scaled_relu",
            doc="Return scale * max(x, 0).",
            operands=(Operand("x", ("float",)),),
            infer=lambda operands, attributes: operands[0],
            reference=lambda operands, attributes: (
                np.maximum(operands[0], 0.0) * attributes["scale"]
            ),
            gradient=_gradient,
            attributes=(AttributeSpec("scale", "float", doc="the slope above zero"),),
            traits=frozenset({Trait.ELEMENTWISE}),
            samples=_samples,
        )
    )
    register_scalar_rule("scaled_relu", _rule)


def main() -> None:
    """Use the op in a compiled function, fused with its neighbours."""
    declare()
    model = frame.compile(
        lambda x: ops.scaled_relu(x, scale=2.0) + 1.0, inputs=[frame.spec(("n", 3))]
    )
    x = np.array([[-1.0, 0.0, 2.0], [4.0, -5.0, 6.0]], np.float32)
    print(model(x))
    print("kernels:", [row.kernel for row in model.entry("infer").profile(x)])


if __name__ == "__main__":
    main()
