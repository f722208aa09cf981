"""Fourier transforms of every kind of length on the cpu, against numpy.fft in float64."""

from __future__ import annotations

import numpy as np
import pytest

from frame import ops
from frame.backends.cpu.target import named_target
from frame.codegen.schedules.cpu.fourier import workspaces
from frame.core.dtypes import DType, float32, float64
from frame.core.shapes import Dim
from frame.core.tolerances import compare
from frame.ir.builder import GraphBuilder
from frame.ir.graph import TensorType
from frame.ops.fourier_tables import LARGEST, factors, plan_of, radices, table_of
from tests.support.sweep import compile_cpu

# one product, each radix, several of them, convolutions of odd and of even lengths
LENGTHS = (1, 5, 64, 66, 77, 96, 130, 256, 343, 625, 1000, 1024, 1018, 1021)
MORE = (*range(65, 1100, 23), 97, 121, 169, 499, 509, 512, 729, 997, 1009, 1091, 1097, 4096, 6000)


def results(lengths: tuple[int, ...], dtype: DType) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Return (length, result, expected) of the transforms of 11 rows, forwards and back."""
    generator = np.random.default_rng(5)
    rows = [generator.standard_normal((11, n)).astype(dtype.numpy) for n in lengths]
    spectra = [generator.standard_normal((11, n // 2 + 1, 2)).astype(dtype.numpy) for n in lengths]
    with GraphBuilder("transforms") as builder:
        for array in rows:
            builder.output(ops.rfft(builder.input(TensorType(dtype, array.shape))))
        for n, array in zip(lengths, spectra, strict=True):
            builder.output(ops.irfft(builder.input(TensorType(dtype, array.shape)), n=n))
    found = compile_cpu(builder.finish())([*rows, *spectra])
    wide = [np.fft.rfft(array.astype(np.float64)) for array in rows]
    expected = [np.stack([z.real, z.imag], -1) for z in wide]
    for n, array in zip(lengths, spectra, strict=True):
        z = array.astype(np.float64)
        expected.append(np.fft.irfft(z[..., 0] + 1j * z[..., 1], n))
    return list(zip((*lengths, *lengths), found, expected, strict=True))


def check(lengths: tuple[int, ...], dtype: DType) -> None:
    for n, found, expected in results(lengths, dtype):
        compare(found, expected, dtype, np.max(np.abs(expected)), f"a length of {n}")


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_lengths(dtype):
    check(LENGTHS, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_more_lengths(part):
    check(MORE[part::4], float32)


def test_plans():
    assert radices(1024) == (8, 8, 4, 4)
    assert radices(2048) == (8, 8, 8, 4)
    assert radices(2) == (2,)
    assert radices(3 * 5 * 32) == (8, 4, 3, 5)
    for size in range(1, 1101):
        plan = plan_of(size)
        assert np.prod(plan.radices, dtype=int) == plan.points
        assert max(factors(plan.points), default=1) <= LARGEST
        assert bool(plan.padded) == (max(factors(plan.length), default=1) > LARGEST)
        assert not plan.padded or 2 * plan.length - 1 <= plan.padded < 4 * plan.length
    assert table_of(34).shape == (plan_of(34).rows, 2)


def test_a_row_that_is_not_finite_spoils_itself_alone():
    x = np.ones((3, 200), np.float32)
    x[1, 7] = np.inf
    z = np.ones((3, 101, 2), np.float32)
    z[2, 0, 1] = np.nan  # an imaginary part that reaches no element
    with GraphBuilder("spoiled") as builder:
        builder.output(ops.rfft(builder.input(TensorType(float32, x.shape))))
        builder.output(ops.irfft(builder.input(TensorType(float32, z.shape)), n=200))
    forwards, back = compile_cpu(builder.finish())([x, z])
    assert np.isnan(forwards[1]).all() and np.isfinite(forwards[[0, 2]]).all()
    assert np.isnan(back[2]).all() and np.isfinite(back[:2]).all()


@pytest.mark.parametrize(
    ("rows", "memories"),
    [(0, 1), (1, 1), (8, 1), (9, 2), (128, 16), (129, 16), (Dim.symbol("rows"), 16)],
    ids=str,
)
def test_a_workspace_holds_no_more_memories_than_groups_of_rows(rows, memories):
    """Of 8 rows of float32 each, twice complex elements; where rows are unknown, of all chunks."""
    size, plan = 65521, plan_of(65521)
    with GraphBuilder("rows") as builder:
        x = builder.input(TensorType(float32, (rows, size)))
        table = builder.input(TensorType(float32, (plan.rows, 2)))
        builder.output(ops.fourier_rows(x, table, size=size, count=size // 2 + 1))
        body = builder.finish()
    assert workspaces(body, named_target("x86-64-v3")) == (memories * 16 << 20,)
