"""What boundary graphs are made with: a graph that holds many cases, and sizes around edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from frame.core.dtypes import DType, bfloat16, float16, int64
from frame.core.shapes import Dim, Shape
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, TensorType, Value

HALVES = (float16, bfloat16)


@dataclass(slots=True)
class Cases:
    """A graph that is being filled with cases."""

    builder: GraphBuilder
    dtype: DType
    count: int = field(default=0)

    def input(self, shape: Sequence[int | Dim], dtype: DType | None = None) -> Value:
        """Add an input."""
        self.count += 1
        type_ = TensorType(dtype or self.dtype, tuple(shape))
        return self.builder.input(type_, name=f"x{self.count}")

    def indices(self, shape: Shape, limit: int, dtype: DType = int64) -> Value:
        """Add an input of indices below a limit."""
        self.count += 1
        return self.builder.input(TensorType(dtype, shape), name=f"below{limit}_{self.count}")

    def outputs(self, *values: Value) -> None:
        """Add results."""
        for value in values:
            self.builder.output(value)


def graph(name: str, dtype: DType, fill: Callable[[Cases], None]) -> Graph:
    """Return the graph that `fill` fills."""
    with GraphBuilder(name) as builder:
        fill(Cases(builder, dtype))
    return builder.finish()


def around(*edges: int) -> list[int]:
    """Return the sizes below, at and above edges, in order, each once; none below 1."""
    return sorted({edge + step for edge in edges for step in (-1, 0, 1) if edge + step >= 1})


def uneven(lanes: int) -> int:
    """Return a size of four vectors in flight, one more vector, and a rest."""
    return 5 * lanes + 3


# --- contraction ----------------------------------------------------------------------------------
