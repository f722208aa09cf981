"""Test-time augmentation: in inference a network answers for several views of each image.

The views stand one after another along the batch, so that the network runs once over all of them;
what it answers for one image is then their weighted mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from frame import ops
from frame.core.arguments import settle, shown, whole
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.ir.graph import Value
from frame.nn.module import Module, Scope
from frame.train.augment import LAYOUTS


@dataclass(frozen=True, slots=True)
class Views:
    """Which views of an image the answer is the mean of.

    The image itself has half of the weight, its two shifts a quarter each, as in Jordan, "94% on
    CIFAR-10 in 3.29 Seconds on a Single GPU", arXiv 2404.00498, section 3.4; without a shift it has
    all of it. With `mirror` each of them shares its weight with its mirror image.

    Attributes:
        mirror: whether mirror images, left and right exchanged, count.
        shift: the image moved up and left, and down and right, by so many pixels counts; the
            border is repeated. 0 for none.
        layout: `NCHW`, or `NHWC` for blueprints.

    Raises:
        InvalidArgumentError: an option is out of its range, or there is only the image itself.
    """

    mirror: bool = True
    shift: int = 0
    layout: str = "NCHW"

    def __post_init__(self) -> None:
        whole("test time", "shift", self.shift, 0)
        settle("test time", self)
        _require(self.layout in LAYOUTS, f"layout to be one of {', '.join(LAYOUTS)}", self.layout)
        _require(self.mirror or self.shift > 0, "mirror or a shift above 0", (False, 0))

    def around(self, module: Module) -> Module:
        """Return a module that answers for all views in inference; it trains as before."""
        return replace(module, builder=_Around(self, module.builder))

    def weights(self) -> tuple[float, ...]:
        """Return the weight of each view, in the order of `of`."""
        plain = (0.5, 0.25, 0.25) if self.shift else (1.0,)
        return tuple(each / 2 for each in (*plain, *plain)) if self.mirror else plain

    def of(self, images: Value) -> list[Value]:
        """Return the views of a batch of images: the image, its shifts, and then their mirrors.

        Raises:
            InvalidArgumentError: they are no images, or of unknown height or width.
        """
        high, wide = self.layout.index("H"), self.layout.index("W")
        sizes = images.shape[high : wide + 1] if images.rank == 4 else ()
        if len(sizes) != 2 or not all(isinstance(size, int) for size in sizes):
            raise InvalidArgumentError(
                f"test time: expected images {self.layout} of known height and width, received "
                f"{images.type}"
            )
        found = [images]
        for distance in (self.shift, -self.shift) if self.shift else ():
            found.append(_shifted(_shifted(images, high, distance), wide, distance))
        return [*found, *(ops.flip(view, (wide,)) for view in found)] if self.mirror else found


@dataclass(frozen=True, slots=True)
class _Around:
    """The builder of a module that sees several views in inference."""

    views: Views
    inner: Callable[..., Any]

    def __call__(self, scope: Scope, images: Value, *others: Value) -> Any:
        if scope.training:
            return self.inner(scope, images, *others)
        weights, rows = self.views.weights(), images.shape[0]
        batch = ops.concat(self.views.of(images), 0)
        repeated = [_repeated(other, rows, len(weights)) for other in others]
        answers = self.inner(scope, batch, *repeated)
        if isinstance(answers, (tuple, list)):
            return tuple(_mean(answer, rows, weights) for answer in answers)
        return _mean(answers, rows, weights)


def _shifted(images: Value, axis: int, distance: int) -> Value:
    size = int(images.shape[axis])  # type: ignore[arg-type]
    places = np.clip(np.arange(size) + distance, 0, size - 1)
    return ops.gather(images, ops.constant(places), axis=axis)


def _repeated(value: Value, rows: Any, times: int) -> Value:
    batched = value.rank > 0 and value.shape[0] == rows
    return ops.concat([value] * times, 0) if batched else value


def _mean(answer: Value, rows: Any, weights: Sequence[float]) -> Value:
    count = len(weights)
    if not answer.dtype.is_float or answer.rank == 0 or answer.shape[0] != count * rows:
        raise InvalidArgumentError(
            f"test time: expected float outputs with a row an image, received {answer.type}"
        )
    apart = ops.reshape(answer, (count, rows, *answer.shape[1:]))
    shares = ops.reshape(ops.constant(weights, answer.dtype), (count, *(1,) * answer.rank))
    return ops.sum(apart * shares, axes=(0,))


def _require(condition: bool, expected: str, received: object) -> None:
    if not condition:
        raise InvalidArgumentError(f"test time: expected {expected}, received {shown(received)}")
