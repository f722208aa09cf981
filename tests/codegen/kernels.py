"""Loop IR written by hand for the tests of the emitters: elementwise, reduction, GEMM."""

from frame.codegen.loops import builder as b
from frame.codegen.loops import ir


def elementwise(dtype, lanes, name="elementwise"):
    """y[i] = max(a x[i] + y[i], 0) with a masked tail; a is the one element of a buffer."""
    n = b.fresh("n")
    a, x, y = (b.buffer(stem, dtype, shape) for stem, shape in (("a", [1]), ("x", [n]), ("y", [n])))
    chunk, body = b.fresh("chunk"), b.Body()
    at = b.ramp(b.mul(chunk, lanes), lanes)
    mask = b.lt(at, n)
    value = b.fma(b.load(x, [at], mask), b.load(a, [0]), b.load(y, [at], mask))
    body.store(y, [at], b.maximum(value, b.const(0.0, dtype)), mask)
    parallel = ir.For(ir.LoopKind.PARALLEL, chunk, b.ceil_div(n, lanes), body.block())
    return ir.Kernel(name, (a, x, y), (n,), (parallel,))


def row_sums(dtype, lanes, name="row_sums"):
    """s[r] = sum of x[r, :], in vectors with carried sums, then a scalar tail."""
    rows, columns = b.fresh("rows"), b.fresh("columns")
    x, s = b.buffer("x", dtype, [rows, columns]), b.buffer("s", dtype, [rows])
    r, body = b.fresh("r"), b.Body()
    zero = b.const(0.0, ir.Type(dtype, lanes))
    blocks = body.let("blocks", b.div(columns, lanes))
    with body.fold(blocks, (zero, zero)) as partial:
        value = body.let("v", b.load(x, [r, b.ramp(b.mul(partial.index, lanes), lanes)]))
        squares = b.fma(value, value, partial.values[1])
        partial.next = (b.add(partial.values[0], value), squares)
    total = body.let("total", b.sum_lanes(partial.results[0]))
    done = b.mul(blocks, lanes)
    with body.fold(b.sub(columns, done), (total,)) as rest:
        value = b.load(x, [r, b.add(rest.index, done)])
        rest.next = (b.add(rest.values[0], value),)
    body.store(s, [r], rest.results[0])
    parallel = ir.For(ir.LoopKind.PARALLEL, r, rows, body.block())
    return ir.Kernel(name, (x, s), (rows, columns), (parallel,))


def gemm_tile(dtype, rows, vectors, lanes, name="gemm_tile"):
    """c[rows, columns] += a[k, rows] b[k, columns]: packed panels and a register tile."""
    depth, width = b.fresh("k"), b.fresh("ldc")
    columns = vectors * lanes
    left, right = b.buffer("a", dtype, [depth, rows]), b.buffer("b", dtype, [depth, columns])
    target = b.buffer("c", dtype, [rows, columns], [width, 1])
    body = b.Body()
    tile = body.alloc("tile", dtype, [rows, vectors], lanes=lanes)
    cells = [(i, j) for i in range(rows) for j in range(vectors)]
    for i, j in cells:
        body.store(tile, [i, j], b.const(0.0, ir.Type(dtype, lanes)))
    with body.loop(depth) as k:
        panel = [
            body.let("b", b.load(right, [k, b.ramp(b.index(j * lanes), lanes)]))
            for j in range(vectors)
        ]
        for i in range(rows):
            factor = body.let("a", b.load(left, [k, i]))
            for j in range(vectors):
                old = b.load(tile, [i, j])
                body.store(tile, [i, j], b.fma(b.broadcast(factor, lanes), panel[j], old))
    for i, j in cells:
        at = [b.index(i), b.ramp(b.index(j * lanes), lanes)]
        body.store(target, at, b.add(b.load(target, at), b.load(tile, [i, j])))
    return ir.Kernel(name, (left, right, target), (depth, width), body.block())


def tiled_gemm(dtype, rows, vectors, lanes, name="gemm"):
    """A grid of tiles over packed panels; the parallel loop runs over the rows of tiles."""
    tile = gemm_tile(dtype, rows, vectors, lanes)
    m, n, depth = b.fresh("m"), b.fresh("n"), b.fresh("k")
    columns = vectors * lanes
    left = b.buffer("a", dtype, [b.div(m, rows), depth, rows])
    right = b.buffer("b", dtype, [b.div(n, columns), depth, columns])
    target = b.buffer("c", dtype, [m, n])
    i, body = b.fresh("i"), b.Body()
    with body.loop(b.div(n, columns)) as j:
        views = (
            ir.View(left, (i, b.index(0), b.index(0))),
            ir.View(right, (j, b.index(0), b.index(0))),
            ir.View(target, (b.mul(i, rows), b.mul(j, columns))),
        )
        body.add(ir.Call(tile.name, views, (depth, n)))
    parallel = ir.For(ir.LoopKind.PARALLEL, i, b.div(m, rows), body.block())
    return tile, ir.Kernel(name, (left, right, target), (m, n, depth), (parallel,))
