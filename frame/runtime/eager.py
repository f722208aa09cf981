"""`frame.eager`: run a function op by op in numpy, with values that can be looked at. To debug.

The function is the one that `frame.jit` compiles. Each op runs when it is called, through its
reference, so that a print or a breakpoint between two ops shows real numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from frame.core.dtypes import dtype
from frame.core.errors import InvalidArgumentError
from frame.core.tensors import Tensor, from_numpy
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, GraphInput, Node, Role, TensorType, Value
from frame.ops.interpreter import interpret
from frame.runtime.tracing import as_value, flatten

Watch = Callable[[Node, Sequence[np.ndarray]], object]


class EagerValue(Value):
    """A value that has its elements: print it, or take them with `numpy()`."""

    __slots__ = ("elements",)

    elements: np.ndarray

    @classmethod
    def holding(cls, array: np.ndarray, value: Value) -> Self:
        """Return the value of the same place with its elements."""
        made = cls(value.type, value.node, value.index)
        object.__setattr__(made, "elements", array)
        return made

    def numpy(self) -> np.ndarray:
        """Return a copy of the elements."""
        return self.elements.copy()

    def item(self) -> Any:
        """Return the only element as a Python scalar."""
        return self.elements.item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.elements, dtype=dtype, copy=True if copy is None else copy)

    def __repr__(self) -> str:
        return f"{self.type} {np.array2string(self.elements, threshold=100)}"


class EagerBuilder(GraphBuilder):
    """A builder that runs each node as it is added.

    The body of a scan, cond or while_loop is built by another builder: its values have no elements,
    and the whole node runs once its bodies are built.
    """

    def __init__(self, name: str, watch: Watch | None = None) -> None:
        super().__init__(name)
        self._watch = watch

    def append(self, node: Node) -> tuple[Value, ...]:
        """Append a node, run it, and let its results hold their elements."""
        arrays = self._run(node)
        pairs = zip(arrays, node.results, strict=True)
        object.__setattr__(node, "results", tuple(EagerValue.holding(*pair) for pair in pairs))
        if self._watch is not None:
            self._watch(node, arrays)
        return super().append(node)

    def given(self, array: np.ndarray, name: str) -> Value:
        """Declare an input that holds `array`."""
        plain = Value(TensorType(dtype(array.dtype), array.shape))
        native = np.asarray(array, plain.dtype.numpy)
        value = EagerValue.holding(native, plain)
        self.adopt(GraphInput(value, Role.INPUT, name))
        return value

    def _run(self, node: Node) -> Sequence[np.ndarray]:
        operands = tuple(dict.fromkeys(node.operands))
        inputs = tuple(GraphInput(v, Role.INPUT, f"x{i}") for i, v in enumerate(operands))
        graph = Graph(inputs, (node,), node.results)
        return interpret(graph, [elements_of(v) for v in operands], precision="native")


def elements_of(value: Value) -> np.ndarray:
    """Return the elements of a value of an eager run.

    Raises:
        InvalidArgumentError: the value is of a body, which runs when the whole body is built.
    """
    if not isinstance(value, EagerValue):
        raise InvalidArgumentError(
            f"{value!r} has no elements: it is of the body of a scan, cond or while_loop, which "
            "runs when the whole body is built"
        )
    return value.elements


def eager(
    function: Callable[..., Any] | None = None, *, watch: Watch | None = None
) -> Callable[..., Any]:
    """Return a function that runs the ops of `function` one by one in numpy.

    Args:
        function: what `frame.jit` would compile; a function made by `frame.jit` is unwrapped.
        watch: called after each op with its node and the arrays of its results, such as to find
            the first NaN.

    Returns:
        A function of arrays, Tensors and scalars (or nests of them) that returns the nest that
        `function` returns, of arrays; of Tensors where one was given. Values inside of `function`
        can be printed.
    """
    if function is None:
        return functools.partial(eager, watch=watch)
    plain = getattr(function, "function", function)

    @functools.wraps(plain)
    def run(*arguments: Any, **static: Any) -> Any:
        leaves, layout = flatten(arguments)
        name = getattr(plain, "__name__", "eager").strip("<>") or "eager"
        with EagerBuilder(name, watch) as builder:
            given = [
                builder.given(_as_array(leaf), f"arg{position}")
                for position, leaf in enumerate(leaves)
            ]
            found, structure = flatten(plain(*layout.build(iter(given)), **static))
            results: list[Any] = [elements_of(as_value(leaf)).copy() for leaf in found]
        if any(isinstance(leaf, Tensor) for leaf in leaves):
            results = [from_numpy(result) for result in results]
        return structure.build(iter(results))

    return run


def _as_array(leaf: Any) -> np.ndarray:
    if isinstance(leaf, float):
        return np.asarray(leaf, np.float32)
    if isinstance(leaf, np.ndarray) and np.ma.is_masked(leaf):
        raise InvalidArgumentError(
            f"expected an array without masked elements, received {leaf.dtype.name}"
            f"{list(leaf.shape)} with {np.ma.getmaskarray(leaf).sum()} of them; call "
            ".filled(value) on it first"
        )
    return np.asarray(leaf)
