"""Compilation as a list of named pure stages: Declared -> Keyed -> Planned -> Manifest -> Loaded.

    Declared   the graph as the user declared it, and what to make of it
    Keyed      the level-1 key, taken before autocast and backward
    Planned    pieces that are ready for their backends, after all passes
    Manifest   plain data: everything but the machine code
    Loaded     programs with executables

A level-1 hit goes from the key to the manifest and the artefacts and runs no pass: that half, with
the stages Declared, Keyed and Loaded, is `frame.runtime.loading`. Here, and in
`frame.runtime.planning`, is what a miss needs.
"""

from __future__ import annotations

from frame.core.errors import UnimplementedError
from frame.hal.interfaces import Executable, Piece
from frame.runtime import statistics
from frame.runtime.backends import backend
from frame.runtime.cache import Cache
from frame.runtime.loading import Declared, Loaded
from frame.runtime.manifest import Manifest, PiecePlan, assemble
from frame.runtime.planning import (
    Planned,
    PlannedProgram,
    joined,
    options_on,
    plan,
    simplified,
    target_on,
)
from frame.runtime.program import Program
from frame.runtime.tuning import Tuner


def compile_declared(declared: Declared, cache: Cache) -> Loaded:
    """Run all passes and compile the pieces.

    Nodes that turn out too late to be impossible for a backend join those that it refused, and the
    graph is cut again, once.

    Raises:
        UnimplementedError: an error of that kind names no node, or comes a second time.
    """
    simple = simplified(declared)
    tuner = None if declared.tune is None else Tuner(declared, cache)
    try:
        return compile_plan(plan(declared, simple, tuner), declared, cache)
    except UnimplementedError as error:
        more = joined(simple, error)
        if more is None:
            raise
    tuner = None if declared.tune is None else Tuner(declared, cache)
    return compile_plan(plan(declared, more, tuner), declared, cache)


def compile_plan(planned: Planned, declared: Declared, cache: Cache) -> Loaded:
    """Turn planned pieces into programs; artefacts go through the level-2 cache."""
    run = _compile_program(planned.run, declared, cache)
    load_program = None
    if planned.load is not None:
        load_program = _compile_program(planned.load, declared, cache)
    load_plan = None if planned.load is None else planned.load.plan
    sources = _sources(planned, declared)
    manifest = Manifest(
        planned.run.plan,
        load_plan,
        planned.derived,
        planned.refused,
        sources,
        planned.tuned,
        planned.untuned,
    )
    return Loaded(manifest, run, load_program, False)


def _sources(planned: Planned, declared: Declared) -> dict[str, str]:
    """Return the source hash of the backend that was asked about refused nodes."""
    if not planned.refused or declared.backend == "cpu":
        return {}
    return {"cpu": backend("cpu").source_hash()}


def _compile_program(planned: PlannedProgram, declared: Declared, cache: Cache) -> Program:
    executables = [
        _compile_piece(piece, row, declared, cache)
        for piece, row in zip(planned.pieces, planned.plan.pieces, strict=True)
    ]
    return assemble(planned.plan, executables)


def _compile_piece(piece: Piece, row: PiecePlan, declared: Declared, cache: Cache) -> Executable:
    owner, store = backend(row.device.backend), cache.artifacts()
    target, options = target_on(declared, row.device), options_on(declared, row.device)
    executable = owner.compile(piece, target, options, store)
    statistics.count(compiled=1)
    store.put(row.key, executable.serialize())
    return executable
