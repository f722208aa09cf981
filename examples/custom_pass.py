"""A pass of your own: `x * 2` becomes `x + x`, before the standard passes see it.

    python examples/custom_pass.py

A pass is a frozen dataclass: its fields are its options and enter the cache key. It gets a graph
and returns a new one through a Rewriter, or the same one when it changed nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import frame
from frame import ops
from frame.compiler.pass_manager import PassContext
from frame.ir.builder import Rewriter
from frame.ir.graph import Graph, Node, Value


def _is_two(value: Value) -> bool:
    node = value.node
    return (
        node is not None
        and node.op == "constant"
        and bool(np.all(node.attributes["value"].array == 2))
    )


@dataclass(frozen=True)
class DoubleByAdding:
    """Replace a product with the constant 2 by a sum."""

    name: ClassVar[str] = "double_by_adding"

    def run(self, graph: Graph, context: PassContext) -> Graph:
        """Return the rewritten graph."""
        with Rewriter(graph) as rewriter:
            for node in graph.nodes:
                if self._matches(node):
                    x = rewriter[node.operands[0]]
                    rewriter.replace(node.results[0], ops.add(x, x))
                    context.count("doubled")
                else:
                    rewriter.copy(node)
            return rewriter.finish()

    def _matches(self, node: Node) -> bool:
        return node.op == "mul" and _is_two(node.operands[1])


def main() -> None:
    """Compile one function with the pass and without, and compare."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    plain = frame.compile(lambda x: x * 2.0, inputs=[frame.spec((2, 3))])
    changed = frame.compile(
        lambda x: x * 2.0, inputs=[frame.spec((2, 3))], passes=[DoubleByAdding()]
    )
    print("same results:", np.array_equal(plain(x), changed(x)))
    print("kernels:", plain.profile(x).rows[0].kernel, changed.profile(x).rows[0].kernel)


if __name__ == "__main__":
    main()
