"""Random graphs for the property tests: any op that fits, shared values, constants, bodies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from frame import ops
from frame.core.dtypes import bool_, float64, int64
from frame.ir.builder import GraphBuilder
from frame.ir.graph import Graph, Role, TensorType, Value

BATCH = 3


class _Maker:
    """Appends random nodes to the active builder and keeps the values that they may read."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.values: list[Value] = []

    def pick(self, kind: str = "float", rank: int | None = None, least: int = 0) -> Value:
        fits = [
            v
            for v in self.values
            if v.dtype.kind == kind and (rank is None or v.rank == rank) and v.rank >= least
        ]
        if not fits:
            return self.fresh(kind, max(rank or 0, least))
        late = fits[-6:] if self.random.random() < 0.7 else fits
        return late[self.random.integers(len(late))]

    def fresh(self, kind: str, rank: int) -> Value:
        shape = tuple(int(n) for n in self.random.choice([1, 2, 3, 4], rank))
        dtype = {"float": float64, "int": int64, "bool": bool_}[kind]
        if self.random.random() < 0.5:
            value = [0, 1, 2, 3][self.random.integers(4)]
            return ops.full(shape, bool(value % 2) if kind == "bool" else value, dtype)
        array = self.random.integers(0, 2 if kind == "bool" else 4, shape)
        return ops.constant(array.astype(dtype.numpy))

    def partner(self, x: Value) -> Value:
        """A value that broadcasts with `x`."""
        kind = x.dtype.kind
        same = [v for v in self.values if v.dtype == x.dtype and v.shape == x.shape]
        choice = self.random.random()
        if same and choice < 0.5:
            return same[self.random.integers(len(same))]
        if choice < 0.8:
            return ops.full((), int(self.random.integers(2 if kind == "bool" else 4)), x.dtype)
        row = tuple(d if self.random.random() < 0.6 else 1 for d in x.shape[1:])
        return ops.expand(ops.full((), int(kind != "bool"), x.dtype), row)

    def axes(self, x: Value) -> tuple[int, ...]:
        return tuple(i for i in range(x.rank) if self.random.random() < 0.5)


Rule = Callable[[_Maker], Value]


def _unary(m: _Maker) -> Value:
    x = m.pick()
    names = ("neg", "tanh", "sigmoid", "square", "relu", "abs", "softplus", "silu", "gelu")
    return getattr(ops, names[m.random.integers(len(names))])(x)


def _binary(m: _Maker) -> Value:
    x = m.pick()
    y = m.partner(x)
    if m.random.random() < 0.5:
        x, y = y, x
    names = ("add", "sub", "mul", "maximum", "minimum")
    return getattr(ops, names[m.random.integers(len(names))])(x, y)


def _integers(m: _Maker) -> Value:
    x = m.pick("int")
    names = ("add", "sub", "mul", "bitwise_or", "bitwise_and", "maximum", "floor_div")
    return getattr(ops, names[m.random.integers(len(names))])(x, m.partner(x))


def _choice(m: _Maker) -> Value:
    x = m.pick()
    y = m.partner(x)
    predicate = ops.less(x, y) if m.random.random() < 0.8 else ops.full(x.shape, True, bool_)
    return ops.where(ops.logical_not(predicate), x, y)


def _division(m: _Maker) -> Value:
    return m.pick() / float(m.random.choice([1.0, 2.0, 3.0, 0.25]))


def _reduction(m: _Maker) -> Value:
    x = m.pick()
    names = ("sum", "max", "min", "mean", "prod")
    name = names[m.random.integers(len(names))]
    return getattr(ops, name)(ops.tanh(x), m.axes(x), keepdims=bool(m.random.integers(2)))


def _position(m: _Maker) -> Value:
    x = m.pick(least=1)
    name = ("argmax", "argmin")[m.random.integers(2)]
    return getattr(ops, name)(x, axis=int(m.random.integers(x.rank)))


def _rows(m: _Maker) -> Value:
    x = m.pick(least=1)
    return (ops.softmax, ops.log_softmax)[m.random.integers(2)](x)


def _transpose(m: _Maker) -> Value:
    x = m.pick(least=1)
    return ops.transpose(x, tuple(int(i) for i in m.random.permutation(x.rank)))


def _reshape(m: _Maker) -> Value:
    x = m.pick()
    forms = (
        lambda: ops.unsqueeze(x, 0),
        lambda: ops.flatten(x, 0) if x.rank else x,
        lambda: ops.reshape(x, (*x.shape, 1)),
        lambda: ops.reshape(x, x.shape),
    )
    return forms[m.random.integers(len(forms))]()


def _view(m: _Maker) -> Value:
    x = m.pick(least=1)
    width = (1, *(0,) * (x.rank - 1))
    forms = (
        lambda: ops.flip(x, m.axes(x)),
        lambda: x[:],
        lambda: x[:1],
        lambda: ops.pad(x, width, (0,) * x.rank, -0.0),
        lambda: ops.concat([x, x], axis=0),
        lambda: ops.concat([x], axis=0),
        lambda: ops.expand(x[:1], (2, *x[:1].shape)),
    )
    return forms[m.random.integers(len(forms))]()


def _product(m: _Maker) -> Value:
    x = m.pick(least=2)
    y = ops.tanh(x)
    if m.random.random() < 0.5:
        return ops.matmul(x, y, transpose_b=True)
    return ops.transpose(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2)) @ y


def _cast(m: _Maker) -> Value:
    if m.random.random() < 0.5:
        return ops.cast(m.pick("int"), float64)
    return ops.cast(ops.clamp(ops.round(m.pick()), -5.0, 5.0), int64)


def _scan(m: _Maker) -> Value:
    xs, outer = m.pick(least=1), m.pick()
    factor = ops.mean(ops.tanh(outer))
    start = ops.zeros(xs.shape[1:], float64)
    last, ys = ops.scan(lambda c, x: (ops.tanh(c * 1.0 + x * factor), ops.silu(x) + c), start, xs)
    return ys if m.random.random() < 0.5 else last


def _cond(m: _Maker) -> Value:
    x, y = m.pick(), m.pick()
    predicate = ops.less(ops.sum(ops.tanh(x)), ops.sum(ops.tanh(y)))
    return ops.cond(predicate, lambda: ops.softplus(x * 1.0), lambda: x + ops.sum(ops.tanh(y)))


def _stop(m: _Maker) -> Value:
    return ops.stop_gradient(m.pick())


RULES: tuple[tuple[Rule, float], ...] = (
    (_unary, 4),
    (_binary, 5),
    (_integers, 2),
    (_choice, 1),
    (_division, 1),
    (_reduction, 3),
    (_position, 1),
    (_rows, 1),
    (_transpose, 2),
    (_reshape, 2),
    (_view, 2),
    (_product, 1.5),
    (_cast, 1),
    (_scan, 0.6),
    (_cond, 0.6),
    (_stop, 0.5),
)


def random_graph(seed: int, size: int = 25) -> Graph:
    """Return a graph of about `size` declared ops over inputs of several roles and ranks."""
    random = np.random.default_rng(seed)
    maker = _Maker(random)
    types = (
        (TensorType(float64, (4, 3)), Role.INPUT),
        (TensorType(float64, (3,)), Role.PARAMETER),
        (TensorType(float64, ()), Role.INPUT),
        (TensorType(float64, (2, 1, 3)), Role.BUFFER),
        (TensorType(int64, (4,)), Role.INPUT),
    )
    weights = np.array([weight for _, weight in RULES])
    with GraphBuilder("random") as builder:
        for i, (type_, role) in enumerate(types):
            maker.values.append(builder.input(type_, role, f"x{i}"))
        for _ in range(size):
            rule = RULES[random.choice(len(RULES), p=weights / weights.sum())][0]
            value = rule(maker)
            if all(isinstance(d, int) and d <= 8 for d in value.shape) and value.rank <= 4:
                maker.values.append(value)
        for value in maker.values[-5:]:
            builder.output(value)
    return builder.finish()
