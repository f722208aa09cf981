"""Every sample of every op, lowered: the module verifies, its text survives, no access leaves its
buffer in any order of the chunks, and native code gives the bits of the interpreter.
"""

from __future__ import annotations

import numpy as np
import pytest

from frame.codegen.loops.interpreter import run_module
from frame.codegen.loops.ir import Module
from frame.codegen.loops.parser import parse_module
from frame.codegen.loops.printer import print_module
from frame.codegen.loops.verifier import verify_module
from frame.core.dtypes import float32
from frame.core.errors import InvalidArgumentError, UnimplementedError
from frame.ops import records
from frame.ops.record import OpDef, Sample
from tests.ops.support import operands_of, sample_graph
from tests.support.compile import Compiled, make_piece

NATIVE = [record for record in records() if record.decomposition is None]


def lowered(record: OpDef, sample: Sample) -> Compiled | None:
    """Return a sample as a piece, None where the backend has no schedule for it."""
    try:
        piece = make_piece(sample_graph(record, sample, float32))
        assert piece.lowered.module.kernels is not None
    except UnimplementedError:
        return None
    return piece


def outputs_of(piece: Compiled) -> list[np.ndarray]:
    ports = piece.piece.signature.outputs
    return [np.zeros(port.type.storage_shape, port.type.dtype.numpy) for port in ports]


def check_module(module: Module) -> None:
    verify_module(module, lowered=True)
    text = print_module(module)
    again = parse_module(text)
    assert print_module(again) == text
    verify_module(again, lowered=True)


def check(record: OpDef, sample: Sample, native: bool) -> None:
    piece = lowered(record, sample)
    if piece is None:
        return
    module = piece.lowered.module
    check_module(module)
    arrays = [np.array(array, order="C") for array in operands_of(sample, float32)]
    found = outputs_of(piece)
    result = run_module(module, [*(a.copy() for a in arrays), *found], order="reversed")
    if native:
        compare_native(piece, arrays, found, bad=result.fail is not None)


def compare_native(
    piece: Compiled, arrays: list[np.ndarray], found: list[np.ndarray], bad: bool
) -> None:
    executable = piece.executable()
    if bad:
        with pytest.raises(InvalidArgumentError):
            executable.run(arrays)
        return
    for one, other in zip(executable.run(arrays), found, strict=True):
        same = one.tobytes() == other.tobytes()  # NaN payloads may differ where numpy can tell
        assert same or np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


@pytest.mark.parametrize("record", NATIVE, ids=lambda record: record.name)
def test_first_sample(record: OpDef) -> None:
    check(record, next(iter(record.samples())), native=False)


@pytest.mark.slow
@pytest.mark.parametrize("record", NATIVE, ids=lambda record: record.name)
def test_every_sample(record: OpDef) -> None:
    for sample in record.samples():
        check(record, sample, native=True)
