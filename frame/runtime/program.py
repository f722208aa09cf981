"""A program: compiled pieces, transfers and host steps over numbered slots.

Slots 0 .. n-1 hold the inputs of the signature. Most programs are one piece and run as one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from frame.core.devices import HOST, Device
from frame.core.errors import InternalError, InvalidArgumentError
from frame.core.shapes import match_shapes
from frame.hal.interfaces import Executable, KernelTime, Signature
from frame.ir.graph import Graph
from frame.runtime.backends import backend


@dataclass(frozen=True, slots=True)
class RunStep:
    """Run a compiled piece; its updated inputs change in place."""

    piece: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TransferStep:
    """Copy a slot to another device."""

    source: int
    target: int
    origin: Device
    device: Device


@dataclass(frozen=True, slots=True)
class HostStep:
    """Run a graph with the numpy references: what no backend takes."""

    graph: Graph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WriteBackStep:
    """Write a slot into the memory of an input that the program updates."""

    source: int
    input: int


Step = RunStep | TransferStep | HostStep | WriteBackStep


@dataclass(frozen=True, slots=True)
class CompiledPiece:
    """An executable and the device that it runs on."""

    executable: Executable
    device: Device


@dataclass(frozen=True, eq=False)
class Program:
    """Steps over slots. `outputs` are the slots of the results."""

    signature: Signature
    pieces: tuple[CompiledPiece, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    single: Executable | None = field(default=None)

    @property
    def host_steps(self) -> tuple[str, ...]:
        """The ops that run in numpy, in order."""
        return tuple(
            node.op
            for step in self.steps
            if isinstance(step, HostStep)
            for node in step.graph.nodes
            if node.op != "constant"
        )

    def run(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None
    ) -> Sequence[np.ndarray]:
        """Run on host arrays and return the results; updated inputs change in place.

        Raises:
            InvalidArgumentError: as `Executable.run`.
        """
        if self.single is not None:
            return self.single.run(inputs, outputs)
        results = _Run(self, inputs).results()
        if outputs is None:
            return results
        for target, result in zip(outputs, results, strict=True):
            np.copyto(target, result)
        return outputs

    def prepare(self, fixed: Mapping[int, np.ndarray]) -> Any:
        """Return an object whose `run(inputs, outputs)` takes the inputs that are not fixed.

        An executable that can settle the fixed ones once (`prepare`) does so.
        """
        prepare = getattr(self.single, "prepare", None)
        return _Merged(self, fixed) if prepare is None else prepare(fixed)

    def profile(self, inputs: Sequence[np.ndarray]) -> list[KernelTime]:
        """Run once and return the times of the launches of all pieces."""
        if self.single is not None:
            return list(self.single.profile(inputs))
        run = _Run(self, inputs, profile=True)
        run.results()
        return run.times

    def source(self) -> Mapping[str, str]:
        """Return the generated code by stage, one piece after the other."""
        texts: dict[str, str] = {}
        for piece in self.pieces:
            for stage, text in piece.executable.source().items():
                texts[stage] = texts.get(stage, "") + text
        return texts


class _Merged:
    """The call of a program with some of its inputs fixed."""

    def __init__(self, program: Program, fixed: Mapping[int, np.ndarray]) -> None:
        self._program = program
        self._fixed = dict(fixed)

    def run(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None
    ) -> list[np.ndarray]:
        """Run on the free inputs, in order."""
        free, fixed = iter(inputs), self._fixed
        count = len(self._program.signature.inputs)
        if len(inputs) + len(fixed) != count:
            raise InvalidArgumentError(
                f"expected {count - len(fixed)} inputs, received {len(inputs)}"
            )
        merged = [fixed[i] if i in fixed else next(free) for i in range(count)]
        return list(self._program.run(merged, outputs))


def single_piece(signature: Signature, executable: Executable, device: Device) -> Program:
    """Return the program of one piece on host memory."""
    count = len(signature.inputs)
    outputs = tuple(range(count, count + len(signature.outputs)))
    step = RunStep(0, tuple(range(count)), outputs)
    direct = executable if device == HOST else None
    return Program(signature, (CompiledPiece(executable, device),), (step,), outputs, direct)


class _Run:
    """One run of a program of several steps."""

    def __init__(
        self, program: Program, inputs: Sequence[np.ndarray], profile: bool = False
    ) -> None:
        self.program = program
        self.slots: dict[int, Any] = dict(enumerate(inputs))
        self.profiled = profile
        self.times: list[KernelTime] = []
        self.streams: dict[Device, Any] = {}
        self.bindings: dict[str, int] = {}
        ports = program.signature.inputs
        shapes = [np.shape(array) for array in inputs]
        pairs = ((p.type.storage_shape, shape) for p, shape in zip(ports, shapes, strict=True))
        if not match_shapes(pairs, self.bindings):
            expected = ", ".join(f"{port.name}: {port.type}" for port in ports)
            raise InvalidArgumentError(
                f"expected the inputs {expected}, received the shapes "
                f"{', '.join(str(list(shape)) for shape in shapes)}"
            )

    def results(self) -> list[np.ndarray]:
        """Run every step, wait for all devices, and return the results as host arrays."""
        for step in self.program.steps:
            _STEPS[type(step)](self, step)
        for stream in self.streams.values():
            stream.synchronize()
        return [np.asarray(self.slots[slot]) for slot in self.program.outputs]

    def _stream(self, device: Device) -> Any:
        if device not in self.streams:
            self.streams[device] = backend(device.backend).stream(device)
        return self.streams[device]

    def _run(self, step: RunStep) -> None:
        piece = self.program.pieces[step.piece]
        inputs = [self.slots[slot] for slot in step.inputs]
        if self.profiled:
            self.times.extend(piece.executable.profile(inputs))
        results = piece.executable.run(inputs, None, self._stream(piece.device))
        self.slots.update(zip(step.outputs, results, strict=True))

    def _transfer(self, step: TransferStep) -> None:
        value = self.slots[step.source]
        if step.origin.backend == step.device.backend:
            owner = backend(step.device.backend)
            moved = owner.copy(value, step.device, self._stream(step.device))
        elif step.device == HOST:
            owner, stream = backend(step.origin.backend), self._stream(step.origin)
            moved = owner.download(value, stream)
            stream.synchronize()
        elif step.origin == HOST:
            owner = backend(step.device.backend)
            moved = owner.upload(value, step.device, self._stream(step.device))
        else:
            raise InternalError(f"no direct transfer from {step.origin} to {step.device}")
        self.slots[step.target] = moved

    def _host(self, step: HostStep) -> None:
        from frame.ops.interpreter import interpret

        inputs = [np.asarray(self.slots[slot]) for slot in step.inputs]
        results = interpret(step.graph, inputs, self.bindings, precision="native")
        self.slots.update(zip(step.outputs, results, strict=True))

    def _write_back(self, step: WriteBackStep) -> None:
        np.copyto(self.slots[step.input], np.asarray(self.slots[step.source]))


_STEPS: Mapping[type, Callable[[_Run, Any], None]] = {
    RunStep: _Run._run,
    TransferStep: _Run._transfer,
    HostStep: _Run._host,
    WriteBackStep: _Run._write_back,
}
