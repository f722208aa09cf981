"""How composites and ops that move elements are used at the boundary shapes of their schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from frame import ops
from frame.core.dtypes import DType
from frame.core.shapes import Shape
from frame.ops.control_samples import body

Use = tuple[list[np.ndarray], dict[str, Any]]
Maker = Callable[[Shape, DType], Iterator[Use]]

COUNTER = np.array([7, 3], np.uint64)


def numbers(shape: Shape, floats: DType, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(floats.numpy)


def _along_axes(shape: Shape, floats: DType) -> Iterator[Use]:
    for axis in sorted({0, len(shape) - 1}):
        yield [numbers(shape, floats)], {"axis": axis}


def _normalised(shape: Shape, floats: DType) -> Iterator[Use]:
    rows = [numbers(shape[-1:], floats, seed) for seed in (1, 2)]
    yield [numbers(shape, floats), *rows], {}


def _per_channel(*seeds: int) -> Maker:
    def uses(shape: Shape, floats: DType) -> Iterator[Use]:
        if len(shape) > 1:
            rows = [np.abs(numbers(shape[1:2], floats, seed)) for seed in seeds]
            yield [numbers(shape, floats), *rows], {}

    return uses


def _pair(shape: Shape, floats: DType) -> Iterator[Use]:
    yield [numbers(shape, floats), numbers(shape, floats, 1)], {}


def _labels(shape: Shape, floats: DType) -> Iterator[Use]:
    labels = np.random.default_rng(1).integers(0, shape[-1], shape[:-1])
    yield [numbers(shape, floats), np.asarray(labels, np.int64)], {}


def _moved(attributes: Callable[[Shape], dict[str, Any]], count: int = 1) -> Maker:
    def uses(shape: Shape, floats: DType) -> Iterator[Use]:
        yield [numbers(shape, floats, seed) for seed in range(count)], attributes(shape)

    return uses


def _drawn(shape: Shape, floats: DType) -> Iterator[Use]:
    yield [COUNTER], {"shape": shape, "dtype": floats, "stream": 3}


def _dropped(shape: Shape, floats: DType) -> Iterator[Use]:
    yield [numbers(shape, floats), COUNTER], {"rate": 0.25, "stream": 3}


def _numbered(shape: Shape, floats: DType) -> Iterator[Use]:
    for axis in sorted({0, len(shape) - 1}):
        yield [], {"shape": shape, "axis": axis, "dtype": floats}


def _cut(shape: Shape, floats: DType) -> Iterator[Use]:
    """Into two parts, of which the second starts at no multiple of a vector."""
    for axis, size in enumerate(shape):
        if size > 1:
            yield [numbers(shape, floats)], {"sizes": (1, size - 1), "axis": axis}


def _scanned(shape: Shape, floats: DType) -> Iterator[Use]:
    """A step carries, reads and writes a tensor of the shape; forwards and backwards."""
    state, elements = numbers(shape, floats), numbers((3, *shape), floats, 1)
    step = body(lambda c, x: (c * 0.5 + x, c - x), state, elements, roles="ce")
    for reverse in (False, True):
        known = {"body": step, "carries": 1, "elements": 1, "length": 3, "reverse": reverse}
        yield [state, elements], known


def _chosen(shape: Shape, floats: DType) -> Iterator[Use]:
    """One branch computes its result, the other returns a capture."""
    pair = [numbers(shape, floats), numbers(shape, floats, 1)]
    then, otherwise = body(lambda a, b: [a * b], *pair), body(lambda a, b: [b], *pair)
    for value in (True, False):
        yield [np.array(value), *pair], {"then": then, "otherwise": otherwise}


def _repeated(shape: Shape, floats: DType) -> Iterator[Use]:
    """Carries that swap places in each iteration."""
    operands = [np.zeros((), np.int64), numbers(shape, floats), numbers(shape, floats, 1)]
    yield (
        operands,
        {
            "condition": body(lambda i, x, y: [ops.less(i, 3)], *operands, roles="ccc"),
            "body": body(lambda i, x, y: [i + 1, y, x * 0.5], *operands, roles="ccc"),
            "carries": 3,
        },
    )


# op -> the anchor whose boundary shapes it is used at, and its uses at one shape
USES: Mapping[str, tuple[str, Maker]] = {
    **dict.fromkeys(("softmax", "log_softmax", "argmax", "argmin"), ("reduction", _along_axes)),
    "layer_norm": ("reduction", _normalised),
    "batch_norm_train": ("reduction", _per_channel(1, 2)),
    "batch_norm_infer": ("elementwise", _per_channel(1, 2, 3, 4)),
    "mse_loss": ("reduction", _pair),
    "softmax_cross_entropy": ("reduction", _labels),
    "transpose": ("elementwise", _moved(lambda s: {"permutation": tuple(reversed(range(len(s))))})),
    "flip": ("elementwise", _moved(lambda s: {"axes": (len(s) - 1,)})),
    "reshape": ("elementwise", _moved(lambda s: {"shape": (*s[:-1], 1, s[-1])})),
    "expand": ("elementwise", _moved(lambda s: {"shape": (3, *s)})),
    "pad": (
        "elementwise",
        _moved(lambda s: {"low": (1,) * len(s), "high": (2,) * len(s), "value": 1.0}),
    ),
    "slice": (
        "elementwise",
        _moved(lambda s: {"starts": (0,) * len(s), "stops": s, "steps": (*(1,) * len(s[1:]), 2)}),
    ),
    "iota": ("elementwise", _numbered),
    "split": ("elementwise", _cut),
    "tile": ("elementwise", _moved(lambda s: {"repeats": (*(1,) * len(s[1:]), 2)})),
    "scan": ("elementwise", _scanned),
    "cond": ("elementwise", _chosen),
    "while": ("elementwise", _repeated),
    "stack": ("elementwise", _moved(lambda s: {"axis": 0}, 2)),
    "uniform": ("elementwise", _drawn),
    "normal": ("elementwise", _drawn),
    "dropout": ("elementwise", _dropped),
}
