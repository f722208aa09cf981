"""The same loop IR as C99: code of a C compiler gives the bits of LLVM and of the semantics."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from frame import ops, spec, trace
from frame.backends.cpu.backend import CpuBackend
from frame.codegen.emit import c99
from frame.codegen.loops import builder as b
from frame.codegen.loops import ir
from frame.compiler.pipeline import simplify_graph
from frame.core import dtypes as dt
from frame.core.errors import InvalidArgumentError
from frame.core.tolerances import GRADIENTS, compare
from frame.ops.interpreter import interpret
from tests.codegen import kernels, operators
from tests.codegen.native import Native
from tests.support.compile import make_piece

COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler `cc` on PATH")
FLAGS = ["-std=c99", "-O1", "-Wall", "-Werror", "-Wno-unused", "-shared", "-fPIC"]
WORD = ctypes.c_int64
HOST = CpuBackend()


class Compiled:
    """A C source, compiled and loaded."""

    def __init__(self, module, folder):
        source, library = folder / "module.c", folder / "module.so"
        source.write_text(c99.emit_module(module))
        command = [COMPILER, *FLAGS, "-o", str(library), str(source), "-lm"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr[:2000]
        self.function = ctypes.CDLL(str(library)).frame_entry

    def entry(self, arrays, symbols=(), arena=0, offsets=()):
        memory, status = np.zeros(arena + 64, np.uint8), (WORD * 3)()
        buffers = (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))
        tables = [(WORD * max(len(words), 1))(*words) for words in (symbols, offsets)]
        address = ctypes.c_void_p(memory.ctypes.data)
        result = self.function(buffers, tables[0], address, tables[1], status)
        return result, tuple(status)


def launching(kernels_, launches, shapes, symbols=0):
    """A module whose entry launches kernels over its arguments.

    `launches` are (kernel, positions of arguments, scalars, chunks), the last two functions of the
    symbols; `shapes` are (dtype, function of the symbols that gives the shape).
    """
    scalars = tuple(b.fresh("size") for _ in range(symbols))
    arguments = [
        b.buffer(f"argument{i}", dtype, shape(*scalars)) for i, (dtype, shape) in enumerate(shapes)
    ]
    statements = tuple(
        ir.Launch(
            name,
            tuple(ir.View(arguments[place]) for place in places),
            tuple(map(b.as_index, sizes(*scalars))),
            b.as_index(chunks(*scalars)),
        )
        for name, places, sizes, chunks in launches
    )
    placements = tuple(
        ir.Placement(buffer, ir.Place.ARGUMENT, i) for i, buffer in enumerate(arguments)
    )
    return ir.Module("test", tuple(kernels_), ir.Entry("main", placements, scalars, statements))


def both(module, folder, arrays, symbols=()):
    """Run through C and through LLVM; the last array is the result, which must have equal bits."""
    results = []
    for compiled in (Compiled(module, folder), Native(module)):
        copies = [array.copy() for array in arrays]
        assert compiled.entry(copies, symbols)[0] == 0
        results.append(copies[-1])
    np.testing.assert_array_equal(results[0], results[1], strict=True)
    return results[0]


FLOATS = pytest.mark.parametrize("dtype", [dt.float32, dt.float64], ids=str)


@needs_compiler
@FLOATS
@pytest.mark.parametrize("size", [1, 7, 8, 37])
def test_elementwise(dtype, size, tmp_path):
    kernel = kernels.elementwise(dtype, 8)
    shapes = [(dtype, lambda n: [1]), (dtype, lambda n: [n]), (dtype, lambda n: [n])]
    launch = (kernel.name, (0, 1, 2), lambda n: [n], lambda n: b.ceil_div(n, 8))
    rng = np.random.default_rng(size)
    a, x, y = (rng.standard_normal(count).astype(dtype.numpy) for count in (1, size, size))
    result = both(launching([kernel], [launch], shapes, 1), tmp_path, [a, x, y], [size])
    exact = np.maximum(x.astype(np.longdouble) * a + y, 0)
    np.testing.assert_allclose(result, exact.astype(dtype.numpy), rtol=2 * np.finfo(x.dtype).eps)


@needs_compiler
@FLOATS
def test_row_sums(dtype, tmp_path):
    kernel = kernels.row_sums(dtype, 8)
    shapes = [(dtype, lambda m, n: [m, n]), (dtype, lambda m, n: [m])]
    launch = (kernel.name, (0, 1), lambda m, n: [m, n], lambda m, n: m)
    x = np.random.default_rng(0).standard_normal((5, 43)).astype(dtype.numpy)
    module = launching([kernel], [launch], shapes, 2)
    result = both(module, tmp_path, [x, np.zeros(5, x.dtype)], [5, 43])
    np.testing.assert_allclose(result, x.sum(1), rtol=100 * np.finfo(x.dtype).eps, atol=1e-6)


@needs_compiler
@FLOATS
def test_gemm(dtype, tmp_path):
    lanes, rows = (8, 6) if dtype == dt.float32 else (4, 6)
    tile, grid = kernels.tiled_gemm(dtype, rows, 2, lanes)
    columns = 2 * lanes
    m, n, depth = 3 * rows, 2 * columns, 19
    rng = np.random.default_rng(1)
    left = rng.standard_normal((m // rows, depth, rows)).astype(dtype.numpy)
    right = rng.standard_normal((n // columns, depth, columns)).astype(dtype.numpy)
    start = rng.standard_normal((m, n)).astype(dtype.numpy)
    shapes = [(dtype, lambda s=array.shape: list(s)) for array in (left, right, start)]
    launch = (grid.name, (0, 1, 2), lambda: [m, n, depth], lambda: m // rows)
    module = launching([tile, grid], [launch], shapes)
    result = both(module, tmp_path, [left, right, start])
    exact = np.einsum("ikr,jkc->irjc", left, right).reshape(m, n) + start
    np.testing.assert_allclose(result, exact, rtol=1e-4, atol=64 * np.finfo(start.dtype).eps)


def _mlp(x, w, v):
    return ops.softmax(ops.gelu(x @ w + v[0]) @ ops.transpose(w, (1, 0)))


SCHEDULED = {
    "elementwise": lambda x, w, v: ops.relu(x[:, :1] * v[0] - ops.tanh(v[1])) + ops.exp(-v[2]),
    "reduction": lambda x, w, v: (ops.layer_norm(x, x[0], x[1]), ops.max(w, (0,)), ops.sum(v)),
    "gemm": lambda x, w, v: ops.relu(x @ w + v[0]) * 0.5,
    "mlp": _mlp,
}


@needs_compiler
@FLOATS
@pytest.mark.parametrize("name", SCHEDULED)
def test_what_the_schedules_make(name, dtype, tmp_path):
    """The loop IR of whole pieces, with packing, tiles, tails, workspaces and arena: the bits of
    LLVM, and the numbers of the reference."""
    shapes = ((37, 43), (43, 70), (3, 70))
    graph = trace(SCHEDULED[name], *(spec(shape, dtype.name) for shape in shapes))
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(dtype.numpy) for shape in shapes]
    piece = make_piece(simplify_graph(graph, HOST.target(), HOST.capabilities(HOST.target())))
    wanted = piece.executable().run(arrays)
    found = [np.zeros_like(array) for array in wanted]
    library = Compiled(piece.lowered.module, tmp_path)
    assert library.entry([*arrays, *found], arena=piece.piece.plan.arena_size)[0] == 0
    for one, other, exact in zip(found, wanted, interpret(graph, arrays), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
        compare(one, exact, dtype, np.max(np.abs(exact)), name, table=GRADIENTS)


def check_rows(rows, lanes, folder):
    """One module that launches the kernel of every row, then a comparison of every result."""
    launches, shapes, arrays, results = [], [], [], []
    for place, (_, sources, result, operands, _) in enumerate(rows):
        got = np.zeros(operators.COUNT, result.numpy)
        for count in lanes:
            positions = tuple(range(len(arrays), len(arrays) + len(operands) + 1))
            launches.append((f"k{place}x{count}", positions, list, lambda: 1))
            shapes += [(dtype, lambda: [operators.COUNT]) for dtype in (*sources, result)]
            got = np.zeros(operators.COUNT, result.numpy)
            arrays += [*operands, got]
            results.append((place, count, got))
    module = launching(operators.kernels_of(rows, lanes), launches, shapes)
    assert Compiled(module, folder).entry(arrays)[0] == 0
    for place, count, got in results:
        row = rows[place]
        operators.assert_same(got, row[4], f"row {place} {row[1]} to {row[2]} x{count}", row[3])


@needs_compiler
@pytest.mark.parametrize("dtype", operators.DTYPE_PARAMETERS)
def test_every_operator(dtype, tmp_path):
    families = ("unary", "binary", "compare", "cast")
    rows = [row for name in families for row in getattr(operators, f"{name}_rows")(dtype)]
    check_rows(rows, operators.LANES, tmp_path)


@needs_compiler
def test_fma_bits_and_16_bit_ties(tmp_path):
    rows = [*operators.fma_rows(dt.float32), *operators.fma_rows(dt.float64)]
    check_rows([*rows, *operators.bit_rows(), *operators.half_rows()], operators.LANES, tmp_path)
    for lanes in (1, 8):
        folder = tmp_path / str(lanes)
        folder.mkdir()
        check_rows(operators.pair_rows(lanes), (lanes,), folder)


@needs_compiler
def test_casts_of_what_is_only_stored(tmp_path):
    check_rows(operators.storage_rows(), operators.LANES, tmp_path)


@needs_compiler
def test_across_lanes(tmp_path):
    dtypes = (*operators.FLOATS, dt.int32, dt.uint8)
    check_rows([row for dtype in dtypes for row in operators.lane_rows(dtype)], (8,), tmp_path)


def control_module():
    """A check, a carried swap, a branch, a local buffer, a copy, a constant and a while loop."""
    n = b.fresh("n")
    x, y = b.buffer("x", dt.float64, [n]), b.buffer("y", dt.float64, [2])
    body = b.Body()
    with body.fold(n, (b.const(0.0, dt.float64), b.const(1.0, dt.float64))) as swap:
        body.prefetch(x, [swap.index])
        value = body.let("v", b.load(x, [swap.index]))
        with body.when(b.gt(value, 5.0)):
            body.fail(3, swap.index, b.cast(value, dt.int64))
        swap.next = (swap.values[1], b.add(swap.values[0], value))
    local = body.alloc("pair", dt.float64, [2], ir.Scope.LOCAL)
    body.store(local, [0], swap.results[0])
    body.store(local, [1], swap.results[1])
    body.add(ir.Copy(ir.View(y), ir.View(local), (b.index(2),)))
    swapped = ir.Kernel("swapped", (x, y), (n,), body.block())

    count, more = b.buffer("count", dt.int64, [1]), b.buffer("more", dt.bool_, [])
    body = b.Body()
    body.store(count, [0], b.add(b.load(count, [0]), 1))
    body.store(more, [], b.lt(b.load(count, [0]), 4))
    step = ir.Kernel("step", (count, more), (), body.block())
    return swapped, step


def control_entry(swapped, step):
    n = b.fresh("n")
    x, y = b.buffer("x", dt.float64, [n]), b.buffer("y", dt.float64, [2])
    ticks, result = b.buffer("ticks", dt.int64, [1]), b.buffer("result", dt.int64, [1])
    more, start = b.buffer("more", dt.bool_, []), b.buffer("start", dt.int64, [1])
    once = b.index(1)
    tick = ir.Launch(step.name, (ir.View(ticks), ir.View(more)), (), once)
    statements = (
        ir.Launch(swapped.name, (ir.View(x), ir.View(y)), (n,), once),
        ir.Return(),
        ir.Copy(ir.View(ticks), ir.View(start), (once,)),
        b.store(more, [], True),
        ir.While(more, (tick,)),
        b.if_(b.gt(n, 2), [b.store(result, [0], b.load(ticks, [0]))], [b.store(result, [0], -1)]),
    )
    places = (ir.Place.ARGUMENT, ir.Place.ARGUMENT, ir.Place.ARGUMENT)
    placements = [
        ir.Placement(buffer, place, i)
        for i, (buffer, place) in enumerate(zip((x, y, result), places, strict=True))
    ]
    placements.append(ir.Placement(ticks, ir.Place.ARENA, 64))
    placements.append(ir.Placement(more, ir.Place.TABLE, 1))
    placements.append(ir.Placement(start, ir.Place.CONSTANT, 0))
    return ir.Entry("main", tuple(placements), (n,), statements)


def run_control(compiled, x, symbols):
    y, result = np.zeros(2), np.zeros(1, np.int64)
    code, status = compiled.entry([x, y, result], symbols, arena=256, offsets=[0, 32])[:2]
    return code, status, y.tolist(), int(result[0])


@pytest.mark.parametrize("language", [pytest.param("c", marks=needs_compiler), "llvm"])
def test_control_flow_places_and_checks(language, tmp_path):
    swapped, step = control_module()
    start = ir.ConstantData("start", np.array([1], np.int64).tobytes())
    module = ir.Module("test", (swapped, step), control_entry(swapped, step), (start,))
    compiled = Compiled(module, tmp_path) if language == "c" else Native(module)
    good = run_control(compiled, np.array([1.0, 2.0, 3.0]), [3])
    assert good == (0, (0, 0, 0), [3.0, 4.0], 4)
    assert run_control(compiled, np.array([1.0, 2.0]), [2])[3] == -1
    bad = run_control(compiled, np.array([1.0, 9.0, 7.0]), [3])
    assert bad[:2] == (1, (3, 1, 9)) and bad[3] == 0


def test_the_entry_is_an_identifier():
    module = ir.Module("test", (), ir.Entry("main", (), (), ()))
    assert "int run_it(" in c99.emit_module(module, entry="run_it")
    with pytest.raises(InvalidArgumentError, match="identifier"):
        c99.emit_module(module, entry="a; system()")
