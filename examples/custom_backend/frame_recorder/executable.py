"""Running a piece: node by node through the numpy references, when the stream comes to it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from frame.core.devices import Device
from frame.core.dtypes import dtype
from frame.core.errors import FrameError, InvalidArgumentError
from frame.core.shapes import bind_shape, match_shapes
from frame.hal.interfaces import KernelTime, Signature
from frame.ir.graph import Graph, GraphInput, Node, Value
from frame.ir.parser import parse_graph
from frame.ir.printer import constant_pool, print_graph
from frame.ops.interpreter import interpret
from frame_recorder.device import Buffer, Machine, Stream, require_buffer


class RecorderExecutable:
    """A compiled piece."""

    def __init__(
        self, machine: Machine, device: Device, graph: Graph, signature: Signature
    ) -> None:
        self.signature = signature
        self.graph = graph
        self._machine, self._device = machine, device

    def run(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any] | None = None,
        stream: Stream | None = None,
    ) -> list[Buffer]:
        """Queue the piece and return its output buffers; without a stream wait for it.

        Raises:
            InvalidArgumentError: an input does not fit. A bad index is raised by the wait.
        """
        work = stream or Stream(self._machine, self._device)
        sources = [require_buffer(value, self._device) for value in inputs]
        bindings = self._bindings(sources)
        results = list(outputs) if outputs is not None else self._allocate(bindings)
        updated = [sources[position] for position in self.signature.updates]

        def action() -> None:
            arrays = [_filled(source) for source in sources]
            values = {value: array for value, array, _ in self._values(arrays, bindings)}
            # All of them are known before the first is written: a bad index changes nothing.
            for target, value in zip((*results, *updated), self.graph.returned, strict=True):
                target.data = np.array(values[value])

        names = [node.op for node in self.graph.nodes if node.op != "constant"]
        names = [*names, *("update" for _ in updated)] or ["nothing"]
        work.queue(names, sources, (*results, *updated), action)
        if stream is None:
            work.synchronize()
        return results

    def profile(self, inputs: Sequence[Any]) -> list[KernelTime]:
        """Run once, changing nothing, and return the time of each node."""
        sources = [require_buffer(value, self._device) for value in inputs]
        bindings = self._bindings(sources)
        times: dict[Node, float] = {}
        for value, _, seconds in self._values([_filled(s) for s in sources], bindings):
            if value.node is not None and value.node.op != "constant":
                times[value.node] = seconds
        return [
            KernelTime(node.op, () if node.origin is None else (node.origin,), seconds)
            for node, seconds in times.items()
        ]

    def source(self) -> Mapping[str, str]:
        """Return the graph."""
        return {"graph": print_graph(self.graph)}

    def serialize(self) -> bytes:
        """Return the graph and its constants as JSON."""
        pool = {
            digest: [array.dtype.name, list(array.shape), array.tobytes().hex()]
            for digest, array in constant_pool(self.graph).items()
        }
        return json.dumps([str(self._device), print_graph(self.graph), pool]).encode()

    def _bindings(self, sources: Sequence[Buffer]) -> dict[str, int]:
        ports = self.signature.inputs
        found: dict[str, int] = {}
        if len(sources) != len(ports):
            raise InvalidArgumentError(f"expected {len(ports)} inputs, received {len(sources)}")
        for port, source in zip(ports, sources, strict=True):
            if source.dtype != port.type.dtype.numpy:
                raise InvalidArgumentError(
                    f"input {port.name!r}: expected {port.type}, received {source!r}"
                )
        pairs = ((p.type.shape, s.shape) for p, s in zip(ports, sources, strict=True))
        if not match_shapes(pairs, found):
            expected = ", ".join(f"{port.name}: {port.type}" for port in ports)
            raise InvalidArgumentError(f"expected {expected}, received {list(sources)!r}")
        return found

    def _allocate(self, bindings: Mapping[str, int]) -> list[Buffer]:
        types = [port.type for port in self.signature.outputs]
        return [
            Buffer(self._machine, self._device, bind_shape(t.shape, bindings), t.dtype.numpy)
            for t in types
        ]

    def _values(
        self, arrays: Sequence[np.ndarray], bindings: Mapping[str, int]
    ) -> Iterator[tuple[Value, np.ndarray, float]]:
        """Yield every value of the graph with its elements and the seconds of its node."""
        values = dict(zip(self.graph.input_values, arrays, strict=True))
        yield from ((value, array, 0.0) for value, array in values.items())
        for node in self.graph.nodes:
            start = time.perf_counter()
            results = _run_node(node, values, bindings)
            seconds = time.perf_counter() - start
            for value, array in zip(node.results, results, strict=True):
                values[value] = array
                yield value, array, seconds


def _run_node(
    node: Node, values: Mapping[Value, np.ndarray], bindings: Mapping[str, int]
) -> list[np.ndarray]:
    operands = tuple(dict.fromkeys(node.operands))
    inputs = tuple(GraphInput(value, name=f"x{k}") for k, value in enumerate(operands))
    graph = Graph(inputs, (node,), node.results)
    return interpret(graph, [values[value] for value in operands], bindings, precision="native")


def _filled(buffer: Buffer) -> np.ndarray:
    if buffer.data is None:
        raise InvalidArgumentError(f"{buffer!r} holds nothing")
    return buffer.data


def read(data: bytes, machine: Machine, signature: Signature) -> RecorderExecutable:
    """Return the executable that `serialize` wrote; raise InvalidArgumentError for other data."""
    try:
        device, text, pool = json.loads(data)
        constants = {
            digest: np.frombuffer(bytes.fromhex(row), dtype(name).numpy).reshape(shape)
            for digest, (name, shape, row) in pool.items()
        }
        graph = parse_graph(text, constants)
        return RecorderExecutable(machine, Device.parse(device), graph, signature)
    except (ValueError, TypeError, AttributeError, FrameError) as error:
        raise InvalidArgumentError(f"this is no executable of the recorder: {error}") from error
