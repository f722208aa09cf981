"""A program: compiled pieces, transfers and host steps over numbered slots.

Slots 0 .. n-1 hold the inputs of the signature. Most programs are one piece and run as one call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from frame.core.dataclass import dataclass
from frame.core.devices import HOST, Device
from frame.core.errors import InvalidArgumentError
from frame.hal.interfaces import Executable, KernelCode, KernelTime, Signature
from frame.hal.ports import copy_results
from frame.runtime.execution import Lanes, Run
from frame.runtime.steps import HostStep, RunStep, Step

if TYPE_CHECKING:
    from frame.hal.source import Source

_KEPT_LANES = 8  # sets of streams that wait for a next run


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
    _lanes: deque[Lanes] = field(default_factory=lambda: deque(maxlen=_KEPT_LANES), repr=False)

    @property
    def is_direct(self) -> bool:
        """Whether a run is one call of an executable on host arrays."""
        return self.single is not None

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
        self, inputs: Sequence[Any], outputs: Sequence[np.ndarray] | None = None
    ) -> Sequence[np.ndarray]:
        """Run on host arrays and return the results; updated inputs change in place.

        Inputs may be `Resident`, unless the program is direct.

        Raises:
            InvalidArgumentError: as `Executable.run`.
        """
        if self.single is not None:
            return self.single.run(inputs, outputs)
        results, _ = self._run(inputs)
        if outputs is None:
            return results
        copy_results(self.signature, results, outputs)
        return outputs

    def _run(self, inputs: Sequence[Any], profiled: bool = False) -> tuple[list[np.ndarray], Run]:
        """Run the steps, on the streams of an earlier run that ended well where there are some."""
        try:
            lanes = self._lanes.pop()
        except IndexError:
            lanes = {}
        run = Run(self, inputs, lanes, profiled)
        results = run.results()
        self._lanes.append(lanes)
        return results, run

    def prepare(self, fixed: Mapping[int, Any]) -> Any:
        """Return an object whose `run(inputs, outputs)` takes the inputs that are not fixed.

        An executable that can settle the fixed ones once (`prepare`) does so. A program that is not
        direct takes them as `Resident`, too, and keeps their copies on its devices.
        """
        prepare = getattr(self.single, "prepare", None)
        return _Merged(self, fixed) if prepare is None else prepare(fixed)

    def profile(self, inputs: Sequence[np.ndarray]) -> list[KernelTime]:
        """Run once and return the times of the launches of all pieces."""
        if self.single is not None:
            return list(self.single.profile(inputs))
        return self._run(inputs, profiled=True)[1].times

    def source(self) -> Source:
        """Return the generated code by stage, one piece after the other."""
        from frame.hal.source import Source, joined

        parts = [piece.executable.source() for piece in self.pieces]
        made = [p if isinstance(p, Source) else Source("", _makers(p)) for p in parts]
        return joined("program", made)

    def kernels(self) -> list[KernelCode]:
        """Return the kernels of all pieces whose backends tell them."""
        found: list[KernelCode] = []
        for piece in self.pieces:
            tell = getattr(piece.executable, "kernels", None)
            found.extend(() if tell is None else tell())
        return found


def _makers(texts: Mapping[str, str]) -> dict[str, Callable[[], str]]:
    return {stage: lambda text=text: text for stage, text in texts.items()}  # type: ignore[misc]


class _Merged:
    """The call of a program with some of its inputs fixed."""

    def __init__(self, program: Program, fixed: Mapping[int, Any]) -> None:
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


def single_piece(signature: Signature, executable: Executable) -> Program:
    """Return the program of one piece on host memory."""
    count = len(signature.inputs)
    outputs = tuple(range(count, count + len(signature.outputs)))
    step = RunStep(0, tuple(range(count)), outputs)
    return Program(signature, (CompiledPiece(executable, HOST),), (step,), outputs, executable)
