"""The transforms of Winograd's convolutions by 3 x 3, F(2 x 2) and F(4 x 4), and their kernels.

    Y = A^T ((G g G^T) * (B^T d B)) A       d: (m + 2)^2 pixels, g: 3^2 weights, Y: m^2 results

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016). The points of F(4 x 4)
are 0, +-3/4, +-3/2 and infinity, not 0, +-1, +-2: its error is then about twice that of a direct
sum (root of the mean of squares, 64 channels of unit normal data), that of F(2 x 2) two thirds.
Vectors run along tiles of pixels.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Call, Expr, Kernel, LoopKind, Scope, Type, Var, View
from frame.codegen.schedules.access import Reader
from frame.codegen.schedules.cpu.chunks import unflatten
from frame.codegen.schedules.cpu.conv_pixels import side_by_side
from frame.codegen.schedules.cpu.gemm_micro import multiply_add
from frame.codegen.schedules.group import Group, KernelCall
from frame.core.dataclass import dataclass
from frame.core.dtypes import DType, float64
from frame.ir.graph import Value

NOTE = "\n".join(__doc__.splitlines()[2:3])
WINDOW = 3  # points of the window along an axis

_A, _B = 0.75, 1.5  # the finite points of F(4 x 4) but 0, all of whose powers are exact
_C, _D = 2 * _A**2 * (_A**2 - _B**2), 2 * _B**2 * (_B**2 - _A**2)

# G by the results of a tile: a row a point, a column a weight
FILTERS: Mapping[int, tuple[tuple[float, float, float], ...]] = {
    2: ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0)),
    4: (
        (1 / (_A * _B) ** 2, 0.0, 0.0),
        (1 / _C, _A / _C, _A**2 / _C),
        (1 / _C, -_A / _C, _A**2 / _C),
        (1 / _D, _B / _D, _B**2 / _D),
        (1 / _D, -_B / _D, _B**2 / _D),
        (0.0, 0.0, 1.0),
    ),
}


@dataclass(frozen=True, slots=True)
class WinogradTile:
    """A vector of `lanes` tiles of `outputs` x `outputs` results, which lie in `vectors`.

    Tiles are read in pieces, which may `cross` the end of a row, as in `PixelTile`.
    """

    dtype: DType
    outputs: int
    vectors: int
    lanes: int
    piece: int
    crosses: bool
    fused: bool

    @property
    def points(self) -> int:
        """The points of a transform along one axis."""
        return self.outputs + WINDOW - 1

    @property
    def columns(self) -> int:
        """The tiles of all vectors."""
        return self.vectors * self.lanes

    @property
    def pieces(self) -> int:
        """The pieces of a vector."""
        return self.lanes // self.piece

    @property
    def pixels_name(self) -> str:
        """The name of the kernel of pixels, the same for equal kernels only."""
        crossing = "_crossing" if self.crosses else ""
        return self._named("pixels", f"{self.lanes}of{self.piece}{crossing}")

    @property
    def results_name(self) -> str:
        """The name of the kernel of results, the same for equal kernels only."""
        return self._named("results", f"{self.vectors}x{self.lanes}")

    def _named(self, stem: str, size: str) -> str:
        flag = "" if self.fused else "_unfused"
        return f"winograd_{stem}_{self.dtype}_{self.outputs}by{self.outputs}_{size}{flag}"


class _Lines:
    """Writes the transforms of one line of vectors."""

    def __init__(self, body: b.Body, tile: WinogradTile) -> None:
        self.body, self.tile = body, tile

    def plus(self, x: Expr, y: Expr) -> Expr:
        return self.body.let("t", b.add(x, y))

    def minus(self, x: Expr, y: Expr) -> Expr:
        return self.body.let("t", b.sub(x, y))

    def scaled(self, factor: float, x: Expr, y: Expr | None = None) -> Expr:
        """Return factor * x + y."""
        wide = b.const(factor, Type(self.tile.dtype, self.tile.lanes))
        if y is None:
            return self.body.let("t", b.mul(wide, x))
        return self.body.let("t", multiply_add(self.tile.fused, wide, x, y))

    def pixels(self, d: Sequence[Expr]) -> list[Expr]:
        """Return B^T d."""
        if self.tile.outputs == 2:
            return [
                self.minus(d[0], d[2]),
                self.plus(d[2], d[1]),
                self.minus(d[2], d[1]),
                self.minus(d[3], d[1]),
            ]
        a, b_, both, sums = _A**2, _B**2, (_A * _B) ** 2, _A**2 + _B**2
        even, odd = self.scaled(-b_, d[2], d[4]), self.scaled(-b_, d[1], d[3])
        inner, outer = self.scaled(-a, d[2], d[4]), self.scaled(-a, d[1], d[3])
        return [
            self.scaled(-sums, d[2], self.scaled(both, d[0], d[4])),
            self.scaled(_A, odd, even),
            self.scaled(-_A, odd, even),
            self.scaled(_B, outer, inner),
            self.scaled(-_B, outer, inner),
            self.scaled(-sums, d[3], self.scaled(both, d[1], d[5])),
        ]

    def results(self, m: Sequence[Expr]) -> list[Expr]:
        """Return A^T m."""
        sum_1, difference_1 = self.plus(m[1], m[2]), self.minus(m[1], m[2])
        if self.tile.outputs == 2:
            return [self.plus(m[0], sum_1), self.plus(difference_1, m[3])]
        sum_2, difference_2 = self.plus(m[3], m[4]), self.minus(m[3], m[4])
        return [
            self.plus(self.plus(m[0], sum_1), sum_2),
            self.scaled(_B, difference_2, self.scaled(_A, difference_1)),
            self.scaled(_B**2, sum_2, self.scaled(_A**2, sum_1)),
            self.scaled(_B**3, difference_2, self.scaled(_A**3, difference_1, m[5])),
        ]


# --- pixels ---------------------------------------------------------------------------------------


@functools.cache
def pixels_kernel(tile: WinogradTile) -> Kernel:
    """Return the kernel that transforms the pixels of a vector of tiles, channel by channel.

    Its buffers are the transforms [points^2, channels, lanes] and x (flat); its scalars the
    channels, the strides of the transforms, the elements of a channel, a row and a phase of x, the
    elements of x, and the places of the pieces, as for `panel_kernel`.
    """
    names = ("channels", "point_step", "channel_step", "plane", "row", "phase", "size")
    channels, point_step, channel_step, plane, row, phase, size = map(Var, names)
    pieces = ("low", "high", "split") if tile.crosses else ("place",)
    each = [Var(f"{name}{i}") for i in range(tile.pieces) for name in pieces]
    count = tile.points
    shape, strides = (count * count, channels, tile.lanes), (point_step, channel_step, 1)
    target = Buffer("transforms", tile.dtype, shape, strides)
    x, body = Buffer("x", tile.dtype, (size,)), b.Body()
    masks = _masks(body, tile, each)
    lines, points = _Lines(body, tile), range(count)
    with body.loop(channels, "c") as channel:
        base = body.let("base", b.mul(channel, plane))
        columns = []
        for column in points:
            shift, number = divmod(column, tile.outputs)
            start = body.let("start", b.add(b.add(base, b.mul(phase, number)), shift))
            places = [b.add(start, b.mul(row, line)) for line in points]
            columns.append(lines.pixels([_read(body, tile, x, p, each, masks) for p in places]))
        for i in points:
            for j, value in enumerate(lines.pixels([columns[k][i] for k in points])):
                body.store(target, [i * count + j, channel, b.ramp(0, tile.lanes)], value)
    scalars = (channels, point_step, channel_step, plane, row, phase, size, *each)
    return Kernel(tile.pixels_name, (target, x), scalars, body.block(), NOTE)


def _masks(body: b.Body, tile: WinogradTile, each: Sequence[Var]) -> list[Expr]:
    if not tile.crosses:
        return []
    lanes = b.ramp(0, tile.piece)
    return [body.let("first", b.lt(lanes, split)) for split in each[2::3]]


def _read(
    body: b.Body,
    tile: WinogradTile,
    x: Buffer,
    start: Expr,
    each: Sequence[Var],
    masks: Sequence[Expr],
) -> Expr:
    """Return one pixel of every tile of a vector."""
    start, parts = body.let("start", start), list[Expr]()
    for i in range(tile.pieces):
        if not tile.crosses:
            parts.append(b.load(x, [b.ramp(b.add(start, each[i]), tile.piece)]))
            continue
        low, high, _ = each[3 * i : 3 * i + 3]
        begun = b.load(x, [b.ramp(b.add(start, low), tile.piece)], masks[i])
        rest = b.load(x, [b.ramp(b.add(start, high), tile.piece)])
        parts.append(b.select(masks[i], begun, rest))
    return side_by_side(body, [body.let("x", part) for part in parts])


# --- results --------------------------------------------------------------------------------------


@functools.cache
def results_kernel(tile: WinogradTile) -> Kernel:
    """Return the kernel that transforms the sums of one output channel back.

    Its buffers are the results [outputs, columns * outputs], whose rows are those of the tiles,
    and the sums [points^2, columns]; its scalar is the stride of a point of the sums.
    """
    count, outputs, step = tile.points, tile.outputs, Var("point_step")
    target = Buffer("results", tile.dtype, (outputs, tile.columns * outputs))
    sums = Buffer("sums", tile.dtype, (count * count, tile.columns), (step, 1))
    body = b.Body()
    lines, points = _Lines(body, tile), range(count)
    with body.loop(tile.vectors, "v") as v:
        where = b.ramp(body.let("first", b.mul(v, tile.lanes)), tile.lanes)
        columns = []
        for j in points:
            loads = [b.load(sums, [i * count + j, where]) for i in points]
            columns.append(lines.results([body.let("m", value) for value in loads]))
        for row in range(outputs):
            values = interleaved(body, lines.results([columns[j][row] for j in points]))
            for number, value in enumerate(values):
                first = b.mul(b.add(b.mul(v, outputs), number), tile.lanes)
                body.store(target, [row, b.ramp(first, tile.lanes)], value)
    return Kernel(tile.results_name, (target, sums), (step,), body.block(), NOTE)


def interleaved(body: b.Body, vectors: Sequence[Expr]) -> list[Expr]:
    """Return the first lanes of a power of two of vectors, then their second lanes, and so on."""
    if len(vectors) == 1:
        return list(vectors)
    even, odd = interleaved(body, vectors[::2]), interleaved(body, vectors[1::2])
    lanes = vectors[0].type.lanes
    found = []
    for low, high in zip(even, odd, strict=True):
        for half in (0, lanes // 2):
            order = [lane + half + side * lanes for lane in range(lanes // 2) for side in (0, 1)]
            found.append(body.let("p", b.shuffle(low, high, order)))
    return found


# --- weights --------------------------------------------------------------------------------------

WEIGHTS_NOTE = """parallel over blocks of input channels, and tiles of output channels
for input channel, for output channel    its weights, beside those of the others
vector: for all of them                  the transform, in float64, rounded once"""


def weights_call(group: Group, weights: Value, target: Buffer) -> KernelCall:
    """Return the kernel that transforms weights [outputs, channels, 3, 3].

    The target is [points, points, blocks of channels, tiles of outputs, channels of a block,
    outputs of a tile]; what it has no weights for is zero.
    """
    count, _, blocks, tiles, depth, height = (_known(size) for size in target.shape)
    pairs = depth * height
    lanes = 1 << (min(max(1, group.target.lanes(float64)), pairs).bit_length() - 1)
    flat = Buffer(target.name, target.dtype, (count, count, blocks, tiles, pairs))
    group = group.with_buffers(outputs=(flat,))
    kernel, body = weights_kernel(count, lanes, target.dtype), b.Body()
    with body.loop(blocks * tiles, "chunk", LoopKind.PARALLEL) as chunk:
        block, tile = (
            body.let("at", i) for i in unflatten(chunk, [b.index(blocks), b.index(tiles)])
        )
        window = body.alloc("window", target.dtype, (WINDOW**2, pairs), Scope.LOCAL)
        with body.loop(depth, "c") as c, body.loop(height, "row") as row:
            output = body.let("output", b.add(b.mul(tile, height), row))
            channel = body.let("channel", b.add(b.mul(block, depth), c))
            pair = body.let("pair", b.add(b.mul(c, height), row))
            for k, weight in enumerate(_window(group, body, weights, (output, channel))):
                body.store(window, [k, pair], b.cast(weight, target.dtype))
        views = View(flat, (b.index(0), b.index(0), block, tile, b.index(0))), View(window)
        body.add(Call(kernel.name, views, (b.index(pairs), b.index(blocks * tiles * pairs))))
    chunks = b.index(blocks * tiles)
    return group.call("", body.block(), chunks, WEIGHTS_NOTE, helpers=(kernel,))


@functools.cache
def weights_kernel(count: int, lanes: int, dtype: DType) -> Kernel:
    """Return the kernel that transforms the weights of pairs of channels, `lanes` pairs at a time.

    Its buffers are the transforms [count^2, pairs] and the weights [9, pairs]; its scalars the
    pairs, of which there are at least `lanes`, and the stride of a point of the transforms.
    """
    pairs, step, body = Var("pairs"), Var("point_step"), b.Body()
    target = Buffer("transforms", dtype, (count * count, pairs), (step, 1))
    window = Buffer("window", dtype, (WINDOW**2, pairs), (pairs, 1))
    rows = FILTERS[count - WINDOW + 1]
    with body.loop(b.ceil_div(pairs, lanes), "v") as v:
        # The last vector lies over the one before it, and stores the same again.
        first = body.let("pair", b.min_(b.mul(v, lanes), b.sub(pairs, lanes)))
        place = b.ramp(first, lanes)
        loads = [b.load(window, [k, place]) for k in range(WINDOW**2)]
        read = [body.let("w", b.cast(value, float64)) for value in loads]
        half = [[_combined(body, g, read[x::WINDOW]) for x in range(WINDOW)] for g in rows]
        for i, line in enumerate(half):
            for j, column in enumerate(rows):
                value = b.cast(_combined(body, column, line), dtype)
                body.store(target, [i * count + j, place], value)
    name = f"winograd_weights_{dtype}_{count - WINDOW + 1}_{lanes}"
    return Kernel(name, (target, window), (pairs, step), body.block(), WEIGHTS_NOTE)


def _known(size: int | Expr) -> int:
    return int(b.constant_value(b.as_index(size)) or 0)


def _window(group: Group, body: b.Body, weights: Value, place: tuple[Expr, Expr]) -> list[Expr]:
    """Return the weights of a pair of channels, zeros where there is none."""
    sizes = group.extents(weights.shape[:2])
    limits = zip(place, sizes, strict=True)
    there = body.let("there", functools.reduce(b.and_, [b.lt(i, size) for i, size in limits]))
    inside = tuple(b.min_(i, b.sub(size, 1)) for i, size in zip(place, sizes, strict=True))
    reader = Reader(group, body).guarded(there)
    return [
        body.let("w", reader.load(weights, (*inside, b.index(y), b.index(x))))
        for y in range(WINDOW)
        for x in range(WINDOW)
    ]


def _combined(body: b.Body, factors: Sequence[float], values: Sequence[Expr]) -> Expr:
    """Return a sum of products with constants that may be zero."""
    parts = [
        value if factor == 1.0 else b.mul(b.const(factor, value.type), value)
        for factor, value in zip(factors, values, strict=True)
        if factor != 0.0
    ]
    return body.let("g", functools.reduce(b.add, parts))
