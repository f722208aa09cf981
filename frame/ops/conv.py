"""Convolution and pooling over images: NCHW values, OIHW weights.

conv2d is general enough (input dilation, negative and uneven padding) that both of its gradients
are conv2d again, so it is closed under differentiation. Along one axis, with s the stride, d the
dilation, i the input dilation and (low, high) the padding:

    y[o] = sum over k of w[k] * x'[o * s + k * d - low],   x'[j * i] = x[j], zero elsewhere

Source: Dumoulin, Visin, "A guide to convolution arithmetic for deep learning", arXiv 1603.07285.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from frame import ops
from frame.core.dataclass import dataclass
from frame.core.dtypes import int64
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Size, exact_divide, known, numel, shape_text
from frame.ir.graph import Attribute, TensorType, Value
from frame.ops.record import (
    AttributeSpec,
    Autocast,
    GradientContext,
    OpDef,
    Operand,
    Sample,
    Trait,
)
from frame.ops.registry import register
from frame.ops.samples import INTEGER_DTYPES, smooth
from frame.ops.vjp import filled

Attributes = Mapping[str, Attribute]
Operands = tuple[Value, ...]
Types = tuple[TensorType, ...]


# --- window arithmetic ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    """The window arithmetic of one spatial axis: sizes in elements."""

    size: Size
    window: Size
    stride: int
    low: int
    high: int
    dilation: int = 1
    input_dilation: int = 1

    @property
    def slack(self) -> Size:
        """How far the dilated window can move over the dilated, padded input."""
        return (
            (self.size - 1) * self.input_dilation
            + self.low
            + self.high
            - (self.window - 1) * self.dilation
        )

    def output(self, op: str) -> Size:
        """Return the number of window positions.

        Raises:
            InvalidArgumentError: the window does not fit, or a symbolic size does not divide.
        """
        slack = self.slack
        if not isinstance(slack, int):
            return exact_divide(slack, self.stride) + 1
        if slack < 0 or (isinstance(self.size, int) and self.size < 1):
            raise InvalidArgumentError(
                f"{op}: a window of {self.window} (dilation {self.dilation}) does not fit into a "
                f"size of {self.size} (dilation {self.input_dilation}) with padding "
                f"({self.low}, {self.high})"
            )
        return slack // self.stride + 1

    @property
    def rest(self) -> int:
        """The elements at the end that no window reaches, because the stride skips them."""
        return self.slack % self.stride if isinstance(self.slack, int) else 0


def window_constraints(axes: Sequence[Axis]) -> Iterable[tuple[Size, str]]:
    """Ask for images that the window fits into."""
    for axis, name in zip(axes, ("height", "width"), strict=True):
        yield axis.size - 1, f"a {name} of 1 or more"
        yield (
            axis.slack,
            f"a {name} that the window of {axis.window} (dilation {axis.dilation}) fits into",
        )


def _axes(
    image: Sequence[Size], window: Sequence[Size], attributes: Attributes
) -> tuple[Axis, Axis]:
    top, bottom, left, right = attributes["padding"]
    dilation = attributes.get("dilation", (1, 1))
    spread_ = attributes.get("input_dilation", (1, 1))
    pads = ((top, bottom), (left, right))
    first, second = (
        Axis(image[i], window[i], attributes["strides"][i], *pads[i], dilation[i], spread_[i])
        for i in range(2)
    )
    return first, second


def check_counts(op: str, attributes: Attributes, lengths: Mapping[str, int], least: int) -> None:
    """Check the lengths of attributes, and that all but the padding are at least `least`."""
    for name, length in lengths.items():
        numbers = attributes[name]
        if len(numbers) != length:
            raise InvalidArgumentError(
                f"attribute {name!r} of {op} must hold {length} integers, received {numbers}"
            )
        if name != "padding" and min(numbers) < least:
            raise InvalidArgumentError(
                f"attribute {name!r} of {op} must be at least {least}, received {numbers}"
            )


def check_images(op: str, operand: str, type_: TensorType, axes: str = "N, C, H, W") -> None:
    """Check that an operand has four axes."""
    if type_.rank != 4:
        raise InvalidArgumentError(
            f"operand {operand!r} of {op} must have the four axes [{axes}], received the shape "
            f"{shape_text(type_.shape)}"
        )


def _padded(x: np.ndarray, axes: Sequence[Axis], value: float) -> np.ndarray:
    """Return x [N, C, H, W] dilated by the input dilation and padded or cropped."""
    for number, axis in enumerate(axes, start=2):
        size = (x.shape[number] - 1) * axis.input_dilation + 1
        start, end = max(0, axis.low), size + axis.low + axis.high
        shape = list(x.shape)
        shape[number] = max(0, axis.low) + size + max(0, axis.high)
        out = np.full(shape, value, x.dtype)
        window: list[slice] = [slice(None)] * 4
        window[number] = slice(start, start + size, axis.input_dilation)
        out[tuple(window)] = x
        window[number] = slice(max(0, -axis.low), max(0, -axis.low) + end)
        x = out[tuple(window)]
    return x


def images_windows(x: np.ndarray, axes: Sequence[Axis], value: float) -> np.ndarray:
    """Return the windows of x [N, C, H, W] as a view [N, C, OH, OW, KH, KW]."""
    padded = _padded(x, axes, value)
    spans: Any = tuple((axis.window - 1) * axis.dilation + 1 for axis in axes)
    view = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=(2, 3))
    (first, second) = axes
    return view[:, :, :: first.stride, :: second.stride, :: first.dilation, :: second.dilation]


# --- conv2d ---------------------------------------------------------------------------------------


def conv_axes(x: Sequence[Size], w: Sequence[Size], attributes: Attributes) -> tuple[Axis, Axis]:
    """Return both spatial axes of the convolution of images x by weights, from their shapes."""
    return _axes(x[2:], w[2:], attributes)


def _conv_constraints(operands: Types, attributes: Attributes) -> Iterable[tuple[Size, str]]:
    x, w = operands
    return window_constraints(conv_axes(x.shape, w.shape, attributes))


def _infer_conv2d(operands: Types, attributes: Attributes) -> TensorType:
    x, w = operands
    check_images("conv2d", "x", x)
    check_images("conv2d", "w", w, "O, I, H, W")
    lengths = {"strides": 2, "padding": 4, "dilation": 2, "input_dilation": 2}
    check_counts("conv2d", attributes, lengths, 1)
    _check_groups(x, w, attributes["groups"])
    height, width = conv_axes(x.shape, w.shape, attributes)
    shape = (x.shape[0], w.shape[0], height.output("conv2d"), width.output("conv2d"))
    return TensorType(x.dtype, shape)


def _check_groups(x: TensorType, w: TensorType, groups: int) -> None:
    if groups < 1:
        raise InvalidArgumentError(
            f"attribute 'groups' of conv2d must be at least 1, received {groups}"
        )
    if x.shape[1] != w.shape[1] * groups:
        raise InvalidArgumentError(
            f"conv2d: w {shape_text(w.shape)} takes {w.shape[1]} channels in each of {groups} "
            f"groups, {w.shape[1] * groups} in all, and x {shape_text(x.shape)} has {x.shape[1]}"
        )
    if not isinstance(w.shape[0], int) or w.shape[0] % groups:
        if groups == 1:
            return
        raise InvalidArgumentError(
            f"conv2d: the {w.shape[0]} output channels of w must divide into {groups} groups"
        )


def _reference_conv2d(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    x, w = operands
    groups = attributes["groups"]
    windows = images_windows(x, conv_axes(x.shape, w.shape, attributes), 0.0)
    outputs = w.shape[0] // groups
    channels = w.shape[1]
    parts = [
        np.tensordot(
            windows[:, g * channels : (g + 1) * channels],
            w[g * outputs : (g + 1) * outputs],
            ((1, 4, 5), (1, 2, 3)),
        )
        for g in range(groups)
    ]
    return np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)


def _gradient_conv2d(context: GradientContext) -> Sequence[Value | None]:
    (x, w), (cotangent,) = context.operands, context.cotangents
    need_x, need_w = context.needed
    return [
        conv_input_gradient(x, w, cotangent, context.attributes) if need_x else None,
        _filter_gradient(x, w, cotangent, context.attributes) if need_w else None,
    ]


def swap_in_groups(value: Value, groups: int) -> Value:
    """Turn [G * A, B, H, W] into [G * B, A, H, W]: swap the two axes inside each group."""
    rows, columns, height, width = value.shape
    if groups == 1:
        return ops.transpose(value, permutation=(1, 0, 2, 3))
    inner = exact_divide(rows, groups)
    split = ops.reshape(value, (groups, inner, columns, height, width))
    swapped = ops.transpose(split, permutation=(0, 2, 1, 3, 4))
    return ops.reshape(swapped, (groups * columns, inner, height, width))


def conv_input_gradient(x: Value, w: Value, cotangent: Value, attributes: Attributes) -> Value:
    """Slide the flipped weights over the cotangent, spread by the strides."""
    axes = conv_axes(x.shape, w.shape, attributes)
    flipped = ops.flip(swap_in_groups(w, attributes["groups"]), axes=(2, 3))
    padding: list[int] = []
    for axis in axes:
        reach = _fixed_reach(axis)
        padding += [reach - axis.low, reach - axis.high + axis.rest]
    return ops.conv2d(
        cotangent,
        flipped,
        strides=attributes["input_dilation"],
        padding=tuple(padding),
        dilation=attributes["dilation"],
        input_dilation=attributes["strides"],
        groups=attributes["groups"],
    )


def _fixed_reach(axis: Axis) -> int:
    if not isinstance(axis.window, int):
        raise InvalidArgumentError(
            f"the gradient of conv2d by x needs a window of known size, received {axis.window}"
        )
    return (axis.window - 1) * axis.dilation


def _filter_gradient(x: Value, w: Value, cotangent: Value, attributes: Attributes) -> Value:
    """Return the gradient by the weights, as an op of its own where one stands for it."""
    sizes = (*x.shape[1:], *w.shape)
    fixed = all(isinstance(size, int) and size > 0 for size in sizes)
    if not fixed or attributes["groups"] > 1 or attributes["input_dilation"] != (1, 1):
        return conv_filter_gradient(x, w.shape, cotangent, attributes)
    plain = {name: attributes[name] for name in ("strides", "padding", "dilation")}
    window = tuple(map(known, w.shape[2:]))
    return ops.conv2d_filter_grad(x, cotangent, window=window, **plain)


def conv_filter_gradient(
    x: Value, weights: Sequence[Size], cotangent: Value, attributes: Attributes
) -> Value:
    """Slide the cotangent over x, with the batch in the place of the channels.

    Strides and dilation change places: neighbours of the window are `dilation` apart in x, and
    neighbours of the cotangent `stride` apart.
    """
    groups = attributes["groups"]
    padding: list[int] = []
    for axis in conv_axes(x.shape, weights, attributes):
        padding += [axis.low, axis.high - axis.rest]
    gradient = ops.conv2d(
        _batch_as_channels(x, groups),
        ops.transpose(cotangent, permutation=(1, 0, 2, 3)),
        strides=attributes["dilation"],
        padding=tuple(padding),
        dilation=attributes["strides"],
        input_dilation=attributes["input_dilation"],
        groups=groups,
    )
    return ops.transpose(gradient, permutation=(1, 0, 2, 3))


def _batch_as_channels(x: Value, groups: int) -> Value:
    """Turn [N, G * C, H, W] into [C, G * N, H, W]."""
    if groups == 1:
        return ops.transpose(x, permutation=(1, 0, 2, 3))
    batch, channels, height, width = x.shape
    inner = exact_divide(channels, groups)
    split = ops.reshape(x, (batch, groups, inner, height, width))
    swapped = ops.transpose(split, permutation=(2, 1, 0, 3, 4))
    return ops.reshape(swapped, (inner, groups * batch, height, width))


# name -> (shape of x, shape of w, attributes)
_CONV_CASES: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], Attributes]] = {
    "plain": ((2, 3, 5, 7), (4, 3, 3, 3), {}),
    "one_by_one": ((2, 3, 4, 5), (4, 3, 1, 1), {}),
    "one_by_one_stride_2": ((1, 3, 5, 4), (2, 3, 1, 1), {"strides": (2, 2)}),
    "same": ((1, 2, 6, 5), (3, 2, 3, 3), {"padding": (1, 1, 1, 1)}),
    "stride_2": ((2, 2, 7, 8), (3, 2, 3, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1)}),
    "stride_leaves_rest": ((1, 2, 8, 9), (2, 2, 3, 2), {"strides": (3, 2)}),
    "stride_above_window": ((1, 1, 9, 9), (2, 1, 2, 2), {"strides": (4, 3)}),
    "uneven_padding": ((1, 2, 5, 6), (2, 2, 3, 3), {"padding": (0, 2, 3, 1)}),
    "negative_padding": ((1, 2, 7, 8), (2, 2, 3, 2), {"padding": (-1, 1, 2, -2)}),
    "padding_above_window": ((1, 1, 3, 3), (1, 1, 2, 2), {"padding": (3, 2, 2, 3)}),
    "dilation": ((1, 2, 9, 8), (3, 2, 3, 2), {"dilation": (2, 3), "padding": (1, 1, 0, 2)}),
    "dilation_stride": (
        (2, 2, 9, 9),
        (2, 2, 2, 3),
        {"dilation": (3, 2), "strides": (2, 3), "padding": (2, 1, 1, 0)},
    ),
    "input_dilation": (
        (1, 2, 4, 5),
        (3, 2, 3, 3),
        {"input_dilation": (2, 3), "padding": (2, 2, 1, 2)},
    ),
    "all_at_once": (
        (2, 4, 5, 6),
        (6, 2, 2, 3),
        {
            "strides": (2, 3),
            "padding": (1, 0, -1, 2),
            "dilation": (2, 1),
            "input_dilation": (3, 2),
            "groups": 2,
        },
    ),
    "groups": ((2, 6, 5, 4), (3, 2, 3, 3), {"groups": 3, "padding": (1, 1, 1, 1)}),
    "depthwise": ((2, 3, 6, 5), (3, 1, 3, 3), {"groups": 3, "strides": (2, 1)}),
    "depthwise_multiplier": ((1, 2, 5, 5), (4, 1, 3, 3), {"groups": 2}),
    "rectangle": ((1, 2, 1, 9), (2, 2, 1, 5), {"padding": (0, 0, 2, 2)}),
    "window_is_image": ((3, 2, 4, 3), (5, 2, 4, 3), {}),
    "empty_batch": ((0, 2, 5, 5), (3, 2, 3, 3), {}),
}


def _conv_samples() -> Iterable[Sample]:
    for name, (x, w, attributes) in _CONV_CASES.items():
        yield Sample(name, (smooth(x), smooth(w, low=-1.2, high=1.0)), attributes)
    image = smooth((1, 1, 4, 4))
    image[0, 0, 0, 0], image[0, 0, 3, 3], image[0, 0, 0, 3] = np.nan, np.inf, -np.inf
    yield Sample("not_finite", (image, np.ones((1, 1, 2, 2))), gradient=False)


register(
    OpDef(
        "conv2d",
        "Two-dimensional convolution (cross-correlation) with zero padding; a negative padding "
        "crops. With input_dilation it is the transposed convolution. A bias is an add.",
        (
            Operand("x", ("float",), doc="images [N, groups * I, H, W]"),
            Operand("w", ("float",), doc="weights [O, I, KH, KW]"),
        ),
        _infer_conv2d,
        _reference_conv2d,
        _gradient_conv2d,
        attributes=(
            AttributeSpec("strides", "ints", (1, 1), "steps of the window (height, width)"),
            AttributeSpec("padding", "ints", (0, 0, 0, 0), "zeros at top, bottom, left, right"),
            AttributeSpec("dilation", "ints", (1, 1), "distance of neighbours in the window"),
            AttributeSpec("input_dilation", "ints", (1, 1), "distance that x is spread to"),
            AttributeSpec("groups", "int", 1, "independent slices of the channels"),
        ),
        traits=frozenset({Trait.CONTRACTION}),
        autocast=Autocast.LOW,
        samples=_conv_samples,
        constraints=_conv_constraints,
    )
)


# --- pooling --------------------------------------------------------------------------------------

_POOL_ATTRIBUTES = (
    AttributeSpec("kernel", "ints", doc="window (height, width)"),
    AttributeSpec("strides", "ints", doc="steps of the window (height, width)"),
    AttributeSpec("padding", "ints", (0, 0, 0, 0), "at top, bottom, left, right"),
)


def _pool_axes(shape: Sequence[Size], attributes: Attributes) -> tuple[Axis, Axis]:
    return _axes(shape[2:], attributes["kernel"], attributes)


def _pool_constraints(operands: Types, attributes: Attributes) -> Iterable[tuple[Size, str]]:
    return window_constraints(_pool_axes(operands[0].shape, attributes))


def _pooled_shape(op: str, x: TensorType, attributes: Attributes) -> tuple[Size, ...]:
    check_images(op, "x", x)
    check_counts(op, attributes, {"kernel": 2, "strides": 2, "padding": 4}, 1)
    axes = _pool_axes(x.shape, attributes)
    for axis in axes:
        if not (0 <= axis.low < axis.window and 0 <= axis.high < axis.window):
            raise InvalidArgumentError(
                f"attribute 'padding' of {op} must be from 0 to the window less one, so that no "
                f"window lies in the padding alone; received {attributes['padding']} for the "
                f"window {attributes['kernel']}"
            )
    return (*x.shape[:2], *(axis.output(op) for axis in axes))


def _infer_max_pool2d(operands: Types, attributes: Attributes) -> Types:
    shape = _pooled_shape("max_pool2d", operands[0], attributes)
    return TensorType(operands[0].dtype, shape), TensorType(int64, shape)


def _reference_max_pool2d(
    operands: Sequence[np.ndarray], attributes: Attributes
) -> tuple[np.ndarray, np.ndarray]:
    (x,) = operands
    axes = _pool_axes(x.shape, attributes)
    windows = images_windows(x, axes, -np.inf)
    plane = np.arange(math.prod(x.shape[2:]), dtype=np.float64).reshape(1, 1, *x.shape[2:])
    positions = np.broadcast_to(images_windows(plane, axes, -1.0), windows.shape)
    flat = windows.reshape(*windows.shape[:4], math.prod(attributes["kernel"]))
    # Padding must lose against -inf in the image, and NaN must win against everything.
    inside = positions.reshape(flat.shape) >= 0
    rank = np.where(np.isnan(flat), 3, np.where(inside, np.where(np.isneginf(flat), 1, 2), 0))
    top = rank == rank.max(-1, initial=0, keepdims=True)
    best = np.where(top & (rank == 2), flat, -np.inf).max(-1, initial=-np.inf, keepdims=True)
    winner = np.argmax(top & ((rank != 2) | (flat == best)), axis=-1)[..., None]
    value = np.take_along_axis(flat, winner, -1)[..., 0]
    index = np.take_along_axis(positions.reshape(flat.shape), winner, -1)[..., 0]
    return value, index.astype(np.int64)


def _gradient_max_pool2d(context: GradientContext) -> Sequence[Value | None]:
    (x,), (_, index), cotangent = context.operands, context.results, context.cotangents[0]
    return [ops.max_pool2d_grad(cotangent, index, input_shape=x.shape)]


def _pool_samples() -> Iterable[Sample]:
    cases: Mapping[str, tuple[tuple[int, ...], Attributes]] = {
        "two_by_two": ((2, 3, 4, 6), {"kernel": (2, 2), "strides": (2, 2)}),
        "odd": ((1, 2, 7, 5), {"kernel": (2, 2), "strides": (2, 2)}),
        "overlap": ((1, 2, 7, 6), {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}),
        "stride_1": ((2, 1, 5, 5), {"kernel": (3, 2), "strides": (1, 1)}),
        "uneven": ((1, 2, 5, 6), {"kernel": (3, 2), "strides": (2, 3), "padding": (0, 2, 1, 0)}),
        "gaps": ((1, 1, 8, 9), {"kernel": (2, 2), "strides": (3, 4)}),
        "whole_image": ((3, 2, 4, 3), {"kernel": (4, 3), "strides": (1, 1)}),
        "one_by_one": ((1, 2, 3, 3), {"kernel": (1, 1), "strides": (2, 2)}),
        "empty_batch": ((0, 2, 4, 4), {"kernel": (2, 2), "strides": (2, 2)}),
    }
    for name, (shape, attributes) in cases.items():
        yield Sample(name, (smooth(shape),), attributes)
    special = smooth((1, 1, 4, 6))
    special[0, 0, 0, 1], special[0, 0, 1, 3], special[0, 0, :2, 4:] = np.nan, np.inf, -np.inf
    two = {"kernel": (2, 2), "strides": (2, 2)}
    yield Sample("not_finite", (special,), two, gradient=False)


def _max_pool_samples() -> Iterable[Sample]:
    yield from _pool_samples()
    padded = {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}
    yield Sample("ties", (np.round(smooth((1, 2, 6, 6))),), padded, gradient=False)
    lowest = np.full((1, 1, 3, 3), -np.inf)
    yield Sample("all_lowest", (lowest,), padded, gradient=False)
    yield Sample("several_nan", (np.full((1, 1, 4, 4), np.nan),), padded, gradient=False)


register(
    OpDef(
        "max_pool2d",
        "The largest element of each window, and its flat position in the H * W plane of x. The "
        "first of equal elements wins; NaN wins over every number; padding never wins.",
        (Operand("x", ("float",), doc="images [N, C, H, W]"),),
        _infer_max_pool2d,
        _reference_max_pool2d,
        _gradient_max_pool2d,
        attributes=_POOL_ATTRIBUTES,
        results=("y", "index"),
        samples=_max_pool_samples,
        constraints=_pool_constraints,
        indices=lambda node: {node.results[1]: numel(node.operands[0].shape[2:])},
    )
)


def _infer_max_pool2d_grad(operands: Types, attributes: Attributes) -> TensorType:
    cotangent, index = operands
    shape = attributes["input_shape"]
    check_images("max_pool2d_grad", "gy", cotangent)
    if index.shape != cotangent.shape or len(shape) != 4 or shape[:2] != cotangent.shape[:2]:
        raise InvalidArgumentError(
            "max_pool2d_grad takes gy and index of one shape [N, C, OH, OW] and an input_shape "
            f"(N, C, H, W), received {shape_text(cotangent.shape)}, {shape_text(index.shape)} "
            f"and {shape_text(shape)}"
        )
    return TensorType(cotangent.dtype, shape)


def _check_positions(op: str, index: np.ndarray, limit: int) -> None:
    flat = index.reshape(-1)
    wrong = np.flatnonzero((flat < 0) | (flat >= limit))
    if wrong.size:
        position = int(wrong[0])
        raise InvalidArgumentError(
            f"{op}: the index at position {position} is {int(flat[position])}, expected a "
            f"position from 0 to {limit - 1}"
        )


def _reference_max_pool2d_grad(
    operands: Sequence[np.ndarray], attributes: Attributes
) -> np.ndarray:
    cotangent, index = operands
    shape = attributes["input_shape"]
    planes, size = shape[0] * shape[1], shape[2] * shape[3]
    _check_positions("max_pool2d_grad", index, size)
    out = np.zeros((planes, size))
    rows = np.broadcast_to(np.arange(planes)[:, None], (planes, math.prod(index.shape[2:])))
    np.add.at(out, (rows, index.reshape(rows.shape)), cotangent.reshape(rows.shape))
    return out.reshape(shape)


def _flat_positions(index: Value, images: Value) -> Value:
    """Turn positions in each H * W plane of images into positions in all of them flattened."""
    batch, channels, height, width = images.shape
    planes = ops.iota(shape=(batch * channels,), axis=0, dtype=int64)
    if isinstance(height, int) and isinstance(width, int):
        starts = ops.mul(planes, height * width)
    else:
        starts = ops.mul(planes, ops.mul(ops.size(images, axis=2), ops.size(images, axis=3)))
    index = index if index.dtype == int64 else ops.cast(index, int64)
    return ops.add(index, ops.reshape(starts, (batch, channels, 1, 1)))


def _gradient_max_pool2d_grad(context: GradientContext) -> Sequence[Value | None]:
    (_, index), (cotangent,) = context.operands, context.cotangents
    flat = ops.reshape(cotangent, (numel(cotangent.shape),))
    return [ops.gather(flat, _flat_positions(index, cotangent), axis=0), None]


def _max_pool_grad_samples() -> Iterable[Sample]:
    index = np.array([0, 5, 5, 11, 3, 8, 0, 1]).reshape(2, 1, 2, 2)
    shape = {"input_shape": (2, 1, 3, 4)}
    yield Sample("overlap", (smooth((2, 1, 2, 2)), index), shape, fixed=(1,))
    one = np.array([[[[5, 0, 5]]]])
    for row in INTEGER_DTYPES:
        if row.is_signed:
            operands = (smooth((1, 1, 1, 3)), one.astype(row.numpy))
            yield Sample(f"ties_{row}", operands, {"input_shape": (1, 1, 2, 3)}, fixed=(1,))
    special = np.array([[[[np.nan, np.inf, -np.inf]]]])
    operands = (special, np.array([[[[0, 2, 5]]]]))
    values = {"input_shape": (1, 1, 2, 3)}
    yield Sample("not_finite", operands, values, fixed=(1,), gradient=False)
    empty = (np.zeros((0, 2, 1, 1)), np.zeros((0, 2, 1, 1), np.int64))
    yield Sample("empty_batch", empty, {"input_shape": (0, 2, 3, 3)}, fixed=(1,))


register(
    OpDef(
        "max_pool2d_grad",
        "The gradient of max_pool2d: adds each element of gy to the position that index names in "
        "its own H * W plane of a tensor of zeros. Positions are checked when the graph runs.",
        (
            Operand("gy", ("float",), doc="cotangents [N, C, OH, OW]"),
            Operand("index", ("int",), group="I", doc="the second result of max_pool2d"),
        ),
        _infer_max_pool2d_grad,
        _reference_max_pool2d_grad,
        _gradient_max_pool2d_grad,
        attributes=(AttributeSpec("input_shape", "shape", doc="the shape of x"),),
        results=("gx",),
        traits=frozenset({Trait.CHECKED}),
        samples=_max_pool_grad_samples,
        indices=lambda node: {node.operands[1]: numel(node.attributes["input_shape"][2:])},
    )
)


def _infer_avg_pool2d(operands: Types, attributes: Attributes) -> TensorType:
    return TensorType(operands[0].dtype, _pooled_shape("avg_pool2d", operands[0], attributes))


def _reference_avg_pool2d(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    (x,) = operands
    with np.errstate(invalid="ignore"):
        return images_windows(x, _pool_axes(x.shape, attributes), 0.0).mean(axis=(4, 5))


def _averaging(x: Value, kernel: Sequence[int]) -> Value:
    """Return the weights of a depthwise convolution that averages, for one channel."""
    return filled(TensorType(x.dtype, (1, 1, *kernel)), 1.0 / math.prod(kernel))


def _as_single_channel(x: Value) -> Value:
    batch, channels, height, width = x.shape
    return ops.reshape(x, (batch * channels, 1, height, width))


def _build_avg_pool2d(operands: Operands, attributes: Attributes) -> Value:
    (x,) = operands
    shape = _pooled_shape("avg_pool2d", x.type, attributes)
    y = ops.conv2d(
        _as_single_channel(x),
        _averaging(x, attributes["kernel"]),
        strides=attributes["strides"],
        padding=attributes["padding"],
    )
    return ops.reshape(y, shape)


def _gradient_avg_pool2d(context: GradientContext) -> Sequence[Value | None]:
    (x,), (cotangent,) = context.operands, context.cotangents
    kernel, strides = context.attributes["kernel"], context.attributes["strides"]
    padding: list[int] = []
    for axis in _pool_axes(x.shape, context.attributes):
        reach = _fixed_reach(axis)
        padding += [reach - axis.low, reach - axis.high + axis.rest]
    dx = ops.conv2d(
        _as_single_channel(cotangent),
        _averaging(x, kernel),
        padding=tuple(padding),
        input_dilation=strides,
    )
    return [ops.reshape(dx, x.shape)]


register(
    OpDef(
        "avg_pool2d",
        "The mean of each window; padding counts as zeros, so that every window is divided by the "
        "same number.",
        (Operand("x", ("float",), doc="images [N, C, H, W]"),),
        _infer_avg_pool2d,
        _reference_avg_pool2d,
        _gradient_avg_pool2d,
        attributes=_POOL_ATTRIBUTES,
        decomposition=_build_avg_pool2d,
        samples=_pool_samples,
        constraints=_pool_constraints,
    )
)
