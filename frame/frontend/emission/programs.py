"""A plan as C functions: passes, schedules and loop IR for a plain target, printed as C99.

The target is data: four float lanes, no fused multiply-add, no instruction set. The same text goes
to every compiler, and depends on nothing of the machine that emits it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frame.codegen import lowering
from frame.codegen.emit import c99
from frame.core.dataclass import dataclass
from frame.core.errors import InternalError, UnimplementedError
from frame.core.shapes import numel
from frame.core.targets import TargetDescription
from frame.frontend.plan import BATCH, Plan
from frame.hal.interfaces import Piece, Port
from frame.ir.graph import Role, TensorType
from frame.nn.module import build_graph
from frame.runtime.loading import Declared
from frame.runtime.planning import PlannedProgram, plan, simplified
from frame.runtime.specs import with_sizes
from frame.runtime.training import declare_training

TARGET = TargetDescription("c99", "unknown-unknown-unknown", "generic", vector_bits=128)


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """One C function: its name, its source file, and what it takes.

    Attributes:
        symbol: the name of the function.
        text: the source, with everything that it calls.
        inputs: what its buffers are; those of `outputs` follow.
        outputs: what it writes.
        arena: bytes of scratch memory.
        checks: for each check of indices, what it expects.
    """

    symbol: str
    text: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    arena: int
    checks: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A run function, and where parameters are prepared once, a function for that.

    `derived[i]` is the output of `load` that the i-th derived input of `run` takes. `initial` gives
    the number that fills a state before the first run.
    """

    run: Function
    load: Function | None
    derived: tuple[int, ...]
    initial: Mapping[str, float]


def inference(spec: Plan, rows: int) -> Program:
    """Return the program of inference on so many rows.

    Raises:
        UnimplementedError: an op has no code that runs without Python.
    """
    graph = build_graph(spec.module, _fixed(spec, rows), "infer")
    return _program(Declared(graph, "cpu", TARGET), "infer")


def training(spec: Plan, rows: int) -> Program:
    """Return the program of one training step on so many rows; raises as `inference`."""
    target = with_sizes(spec.target, _sizes(spec, rows))
    inputs = _fixed(spec, rows)
    graph, transform = declare_training(spec.module, spec.loss, inputs, [target], spec.optimizer)
    return _program(Declared(graph, "cpu", TARGET, transform), "train_step")


def _sizes(spec: Plan, rows: int) -> dict[str, int]:
    return {BATCH: rows} if spec.has_symbols else {}


def _fixed(spec: Plan, rows: int) -> dict[str, TensorType]:
    return {name: with_sizes(t, _sizes(spec, rows)) for name, t in spec.inputs.items()}


def _program(declared: Declared, name: str) -> Program:
    planned = plan(declared, simplified(declared))
    if planned.refused:
        ops = ", ".join(dict.fromkeys(row.op for row in planned.refused))
        raise UnimplementedError(f"frame emit: {ops} has no code that runs without Python")
    load = None if planned.load is None else _function(planned.load, f"model_{name}_load")
    initial = {} if declared.transform is None else declared.transform.initial
    return Program(_function(planned.run, f"model_{name}_run"), load, planned.derived, initial)


def _function(program: PlannedProgram, symbol: str) -> Function:
    if len(program.pieces) != 1:
        raise InternalError(f"expected one piece for {symbol}, received {len(program.pieces)}")
    piece: Piece = program.pieces[0]
    if piece.plan is None or piece.signature.symbols:
        raise InternalError(f"{symbol}: expected a plan without symbols")
    lowered = lowering.lower_piece(piece.graph, piece.plan, (), TARGET)
    checks = [f"{check.node.op}: an index from 0 to {check.limit} - 1" for check in lowered.checks]
    return Function(
        symbol,
        c99.emit_module(lowered.module, symbol),
        piece.signature.inputs,
        piece.signature.outputs,
        piece.plan.arena_size,
        tuple(checks),
    )


def nbytes(type_: TensorType) -> int:
    """Return the bytes of a value of known shape, in the layout that it is stored in."""
    return int(numel(type_.storage_shape)) * type_.dtype.itemsize  # type: ignore[arg-type]


def state_of(programs: Sequence[Program]) -> dict[str, Port]:
    """Return parameters, buffers and optimizer states by name, in the order of their first use."""
    roles = (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE)
    found: dict[str, Port] = {}
    for program in programs:
        for function in (program.load, program.run):
            for port in () if function is None else function.inputs:
                if port.role in roles:
                    found.setdefault(port.name, port)
    return found
