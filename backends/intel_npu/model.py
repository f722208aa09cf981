"""A graph as `openvino.Model`: one visit a node, through the rows of the opset table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any

import numpy as np

from frame.backends.intel_npu import sdk
from frame.backends.intel_npu.opset_table import ROWS
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType
from frame.core.errors import UnimplementedError
from frame.core.shapes import Dim, Shape, Size, numel
from frame.ir.graph import Graph, Node, Value

TYPE_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
        "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
        "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "boolean",
    }
)  # fmt: skip
"""OpenVINO's name of each dtype."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of index values, made on the host.

    `source` is the position of a model input (checked before the run) when `before`, else of a
    model output (checked after it; the model itself runs on harmless indices then).
    """

    op: str
    where: str
    limit: Size
    source: int
    before: bool

    def message(self, position: int, value: int) -> str:
        """Return what to tell the person whose data failed the check."""
        place = f" ({self.where})" if self.where else ""
        return (
            f"{self.op}{place}: the index at position {position} is {value}, expected a value from "
            f"0 to {self.limit} - 1; nothing was changed by this run"
        )


@dataclass(frozen=True, slots=True, eq=False)
class BuiltModel:
    """A model; its inputs are those of the graph, then the `symbols`, int64 scalars.

    Its outputs are those of the graph, then the values of the updates, then checked indices.
    """

    model: Any
    symbols: tuple[str, ...]
    checks: tuple[Check, ...]
    names: Mapping[str, int] = field(default_factory=dict)  # friendly name -> declared node


def build_model(graph: Graph) -> BuiltModel:
    """Return a graph of static or symbolic shapes as a model.

    Raises:
        UnimplementedError: a node has no row in the opset table.
        DeviceError: the openvino wheel is missing.
    """
    return Lowering(graph).run()


class Lowering:
    """The state of one translation, and what the rows of the table build with."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ov: Any = sdk.opset()
        self._inputs = {entry.value: k for k, entry in enumerate(graph.inputs)}
        self._outputs: dict[Value, Any] = {}
        self._parameters: list[Any] = []
        self._symbols: dict[str, Any] = {}
        self._checks: list[Check] = []
        self._checked: list[Any] = []

    def run(self) -> BuiltModel:
        """Visit every node, in order."""
        for entry in self.graph.inputs:
            type_ = entry.value.type
            shape = [-1 if isinstance(size, Dim) else size for size in type_.shape]
            parameter = self.ov.parameter(shape, self.type(type_.dtype), name=entry.name)
            self._parameters.append(parameter)
            self._outputs[entry.value] = parameter.output(0)
        names: dict[str, int] = {}
        for index, node in enumerate(self.graph.nodes):
            self._visit(node, f"{node.op}_{index}", names)
        results = [self._outputs[value] for value in self.graph.returned] + self._checked
        results = [self.ov.result(value) for value in results]
        parameters = [*self._parameters, *self._symbols.values()]
        model = sdk.openvino().Model(results, parameters, self.graph.name)
        return BuiltModel(model, tuple(self._symbols), tuple(self._checks), names)

    def _visit(self, node: Node, name: str, names: dict[str, int]) -> None:
        row = ROWS.get(node.op)
        if row is None:
            raise UnimplementedError(f"the opset table has no row for {node.op}", nodes=(node,))
        operands = [self._outputs[operand] for operand in node.operands]
        built = row.build(self, node, operands)
        results = list(built) if isinstance(built, (tuple, list)) else [built]
        outputs = [each if hasattr(each, "get_index") else each.output(0) for each in results]
        outputs[0].get_node().set_friendly_name(name)
        if node.origin is not None:
            names[name] = node.origin
        self._outputs.update(zip(node.results, outputs, strict=True))

    # --- what rows build with -------------------------------------------------------------------

    def type(self, dtype: DType) -> Any:
        """Return OpenVINO's element type of a dtype."""
        return getattr(sdk.openvino().Type, TYPE_NAMES[dtype.name])

    def constant(self, array: Any, dtype: DType) -> Any:
        """Return a constant node."""
        values = np.asarray(array)
        if dtype.name == "bfloat16":  # OpenVINO does not make such constants from NaN or infinity
            return self.convert(self.ov.constant(values.astype(np.float32)), dtype)
        return self.ov.constant(values.astype(dtype.numpy))

    def numbers(self, values: Sequence[int]) -> Any:
        """Return an int64 vector of known values."""
        return self.ov.constant(np.array(values, np.int64))

    def convert(self, value: Any, dtype: DType) -> Any:
        """Return a value in another element type."""
        return self.ov.convert(value, TYPE_NAMES[dtype.name])

    def size(self, size: Size) -> Any:
        """Return a size as an int64 vector of one element."""
        if not isinstance(size, Dim):
            return self.numbers([size])
        total = None
        for monomial, coefficient in size.terms:
            term = self.numbers([coefficient])
            for symbol in monomial:
                term = self.ov.multiply(term, self._symbol(symbol))
            total = term if total is None else self.ov.add(total, term)
        return total

    def shape(self, shape: Shape) -> Any:
        """Return a shape as an int64 vector, of constants as far as it is known."""
        if not any(isinstance(size, Dim) for size in shape):
            return self.numbers(shape)  # type: ignore[arg-type]
        return self.ov.concat([self.size(size) for size in shape], 0)

    def reshape(self, value: Any, shape: Shape) -> Any:
        """Return a value in another shape, the one unknown size left to OpenVINO."""
        unknown = [k for k, size in enumerate(shape) if isinstance(size, Dim)]
        known = numel([size for size in shape if not isinstance(size, Dim)])
        if len(unknown) == 1 and known != 0:
            sizes = [-1 if k in unknown else size for k, size in enumerate(shape)]
            return self.ov.reshape(value, self.numbers(sizes), False)  # type: ignore[arg-type]
        return self.ov.reshape(value, self.shape(shape), False)

    def checked(self, node: Node, position: int, limit: Size, value: Any) -> Any:
        """Return the indices of a node, and have the host check that they are in [0, limit)."""
        operand = node.operands[position]
        where = str(self.graph.location(node))
        if operand in self._inputs:
            self._checks.append(Check(node.op, where, limit, self._inputs[operand], True))
            return value
        source = len(self.graph.returned) + len(self._checked)
        self._checks.append(Check(node.op, where, limit, source, False))
        self._checked.append(value)
        return self._harmless(value, operand.dtype, limit)

    def _harmless(self, value: Any, dtype: DType, limit: Size) -> Any:
        zero = self.constant(0, dtype)
        above = self.convert(self.size(limit), dtype)
        good = self.ov.logical_and(self.ov.greater_equal(value, zero), self.ov.less(value, above))
        return self.ov.select(good, value, zero)

    def _symbol(self, name: str) -> Any:
        if name not in self._symbols:
            self._symbols[name] = self.ov.parameter([1], np.int64, name=f"symbol:{name}")
        return self._symbols[name]
