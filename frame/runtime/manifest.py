"""The manifest: what a compiled model is, as plain data; the value of the level-1 cache.

From a manifest and its artefacts a program is built without running a pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from frame.core.dataclass import dataclass
from frame.core.devices import HOST, Device
from frame.core.dtypes import dtype
from frame.core.errors import FrameError, InvalidArgumentError
from frame.core.shapes import Dim, parse_dim
from frame.hal.interfaces import ArtifactStore, Executable, Port, Signature
from frame.ir.constraints import Constraint
from frame.ir.graph import Graph, Layout, Role, TensorType
from frame.runtime.backends import backend
from frame.runtime.program import CompiledPiece, Program, single_piece
from frame.runtime.steps import HostStep, RunStep, Step, TransferStep, WriteBackStep

VERSION = 3


@dataclass(frozen=True, slots=True)
class PiecePlan:
    """One compiled piece: its backend and device, the key of its artefact, and its signature."""

    device: Device
    key: str
    signature: Signature


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """A program without its executables."""

    signature: Signature
    pieces: tuple[PiecePlan, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nodes of an op that a backend did not take, why, and the device that runs them instead."""

    op: str
    backend: str
    reason: str
    device: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Tuned:
    """What tuning chose for groups of one kind: `variant` is empty where the default stays, `gain`
    the time of the default over that of the variant, `count` how many such groups there are."""

    group: str
    variant: str
    gain: float
    count: int = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """The run program, the load program if there is one, and what was refused.

    `derived[i]` is the output of the load program that the i-th input of role `derived` takes.
    `sources` gives the source hash of each backend that took part beside the one compiled for: the
    level-1 key does not cover them. `tuned` tells what tuning chose, `untuned` for how many groups
    its time did not suffice.
    """

    run: ProgramPlan
    load: ProgramPlan | None = None
    derived: tuple[int, ...] = ()
    refused: tuple[Refusal, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    tuned: tuple[Tuned, ...] = ()
    untuned: int = 0

    @property
    def is_unbound(self) -> bool:
        """Whether nothing is compiled yet: the backend needs sizes, which the first call gives."""
        return bool(self.run.signature.symbols) and not self.run.steps

    def to_bytes(self) -> bytes:
        """Return the manifest as a JSON text."""
        data = {
            "version": VERSION,
            "run": _program_to_data(self.run),
            "load": None if self.load is None else _program_to_data(self.load),
            "derived": list(self.derived),
            "refused": [[r.op, r.backend, r.reason, r.device, r.count] for r in self.refused],
            "sources": dict(self.sources),
            "tuned": [[t.group, t.variant, t.gain, t.count] for t in self.tuned],
            "untuned": self.untuned,
        }
        return json.dumps(data, separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(text: bytes) -> Manifest:
        """Return the manifest that `to_bytes` wrote; raise InvalidArgumentError for other data."""
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise InvalidArgumentError(f"the manifest has version {data['version']}")
            load = None if data["load"] is None else _program_from_data(data["load"])
            refused = tuple(_refusal(*row) for row in data["refused"])
            derived = tuple(map(int, data["derived"]))
            sources = {str(name): str(digest) for name, digest in data["sources"].items()}
            tuned = tuple(Tuned(str(g), str(v), float(r), int(n)) for g, v, r, n in data["tuned"])
            run, untuned = _program_from_data(data["run"]), int(data["untuned"])
            return Manifest(run, load, derived, refused, sources, tuned, untuned)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise InvalidArgumentError(f"damaged manifest: {error}") from error


def _refusal(op: str, backend: str, reason: str, device: str, count: int) -> Refusal:
    return Refusal(str(op), str(backend), str(reason), str(device), int(count))


def build_program(plan: ProgramPlan, store: ArtifactStore) -> Program | None:
    """Return the program of a plan from the artefacts of a store; None when one is missing."""
    pieces = []
    for piece in plan.pieces:
        data = store.get(piece.key)
        if data is None:
            return None
        try:
            executable = backend(piece.device.backend).deserialize(data, piece.signature, store)
        except FrameError:
            return None
        pieces.append(CompiledPiece(executable, piece.device))
    return assemble(plan, [piece.executable for piece in pieces])


def assemble(plan: ProgramPlan, executables: Sequence[Executable]) -> Program:
    """Return the program of a plan and the executables of its pieces."""
    count = len(plan.signature.inputs)
    outputs = tuple(range(count, count + len(plan.signature.outputs)))
    whole = (RunStep(0, tuple(range(count)), outputs),)
    if plan.steps == whole and plan.outputs == outputs and plan.pieces[0].device == HOST:
        return single_piece(plan.signature, executables[0])
    pieces = tuple(
        CompiledPiece(executable, piece.device)
        for executable, piece in zip(executables, plan.pieces, strict=True)
    )
    return Program(plan.signature, pieces, plan.steps, plan.outputs)


# --- plain data ---------------------------------------------------------------------------------


def type_to_data(type_: TensorType) -> list[Any]:
    """Return a tensor type as plain data."""
    stored = type_.layout
    layout = [list(stored.permutation), [list(block) for block in stored.blocks], stored.winograd]
    return [type_.dtype.name, [str(size) for size in type_.shape], layout, str(type_.device)]


def type_from_data(data: Sequence[Any]) -> TensorType:
    """Return the tensor type that `type_to_data` wrote."""
    name, shape, (permutation, blocks, *further), device = data
    pairs = tuple((int(axis), int(size)) for axis, size in blocks)
    layout = Layout(tuple(permutation), pairs, *map(int, further))
    sizes = tuple(parse_dim(size) for size in shape)
    return TensorType(dtype(name), sizes, layout, Device.parse(device))


def signature_to_data(signature: Signature) -> dict[str, Any]:
    """Return a signature as plain data."""
    return {
        "inputs": [[p.name, type_to_data(p.type), p.role.value] for p in signature.inputs],
        "outputs": [[p.name, type_to_data(p.type), p.role.value] for p in signature.outputs],
        "symbols": list(signature.symbols),
        "updates": list(signature.updates),
        # Not the place: another caller may have the same graph at other lines.
        "constraints": [[str(c.size), c.op, c.need] for c in signature.constraints],
    }


def signature_from_data(data: Mapping[str, Any]) -> Signature:
    """Return the signature that `signature_to_data` wrote."""

    def ports(rows: Sequence[Any]) -> tuple[Port, ...]:
        return tuple(Port(str(n), type_from_data(t), Role(r)) for n, t, r in rows)

    return Signature(
        ports(data["inputs"]),
        ports(data["outputs"]),
        tuple(map(str, data["symbols"])),
        tuple(map(int, data["updates"])),
        tuple(_constraint(*row) for row in data["constraints"]),
    )


def _constraint(size: str, op: str, need: str) -> Constraint:
    parsed = parse_dim(size)
    if not isinstance(parsed, Dim):
        raise InvalidArgumentError(f"expected a size with a symbol, received {size!r}")
    return Constraint(parsed, str(op), str(need))


def _program_to_data(plan: ProgramPlan) -> dict[str, Any]:
    return {
        "signature": signature_to_data(plan.signature),
        "pieces": [
            [str(piece.device), piece.key, signature_to_data(piece.signature)]
            for piece in plan.pieces
        ],
        "steps": [_step_to_data(step) for step in plan.steps],
        "outputs": list(plan.outputs),
    }


def _program_from_data(data: Mapping[str, Any]) -> ProgramPlan:
    pieces = tuple(
        PiecePlan(Device.parse(device), str(key), signature_from_data(signature))
        for device, key, signature in data["pieces"]
    )
    steps = tuple(_READERS[row[0]](*row[1:]) for row in data["steps"])
    outputs = tuple(map(int, data["outputs"]))
    return ProgramPlan(signature_from_data(data["signature"]), pieces, steps, outputs)


def _step_to_data(step: Step) -> list[Any]:
    if isinstance(step, RunStep):
        return ["run", step.piece, list(step.inputs), list(step.outputs)]
    if isinstance(step, TransferStep):
        return ["move", step.source, step.target, str(step.origin), str(step.device)]
    if isinstance(step, WriteBackStep):
        return ["write", step.source, step.input, str(step.device)]
    return ["host", *_graph_to_data(step.graph), list(step.inputs), list(step.outputs)]


def _graph_to_data(graph: Graph) -> tuple[str, dict[str, Any]]:
    from frame.ir.printer import constant_pool, print_graph

    pool = {
        digest: [array.dtype.name, list(array.shape), array.tobytes().hex()]
        for digest, array in constant_pool(graph).items()
    }
    return print_graph(graph), pool


def _host_step(
    text: str, pool: Mapping[str, Any], inputs: Sequence[int], outputs: Sequence[int]
) -> HostStep:
    # Few programs have steps in numpy: the others need no parser.
    import numpy as np

    from frame.ir.parser import parse_graph

    constants = {
        digest: np.frombuffer(bytes.fromhex(data), dtype(name).numpy).reshape(shape)
        for digest, (name, shape, data) in pool.items()
    }
    return HostStep(parse_graph(text, constants), tuple(inputs), tuple(outputs))


_READERS: Mapping[str, Callable[..., Step]] = {
    "run": lambda piece, inputs, outputs: RunStep(int(piece), tuple(inputs), tuple(outputs)),
    "move": lambda source, target, origin, device: TransferStep(
        int(source), int(target), Device.parse(origin), Device.parse(device)
    ),
    "write": lambda source, target, device: WriteBackStep(
        int(source), int(target), Device.parse(device)
    ),
    "host": _host_step,
}
