"""The gradient of conv2d by its weights, as an op of its own.

    gw[o, c, k] = sum over images n and places p of g[n, o, p] * x'[n, c, p * s + k * d - low]

with s the stride, d the dilation and x' the padded images. It is a conv2d too, with the batch in
the place of the channels, but one whose windows are images: a target that knows better takes it
whole. Groups, and images that are spread, stay with conv2d.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Size, known, shape_text
from frame.ir.graph import Attribute, TensorType, Value
from frame.ops.conv import (
    check_counts,
    check_images,
    conv_axes,
    conv_filter_gradient,
    conv_input_gradient,
    images_windows,
    window_constraints,
)
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
from frame.ops.samples import smooth

Attributes = Mapping[str, Attribute]
Types = tuple[TensorType, ...]
_NAME = "conv2d_filter_grad"


def _infer(operands: Types, attributes: Attributes) -> TensorType:
    x, cotangent = operands
    check_images(_NAME, "x", x)
    check_images(_NAME, "gy", cotangent, "N, O, OH, OW")
    lengths = {"window": 2, "strides": 2, "padding": 4, "dilation": 2}
    check_counts(_NAME, attributes, lengths, 1)
    shape = (cotangent.shape[1], x.shape[1], *attributes["window"])
    axes = conv_axes(x.shape, shape, attributes)
    expected = (x.shape[0], cotangent.shape[1], *(axis.output(_NAME) for axis in axes))
    if cotangent.shape != expected:
        raise InvalidArgumentError(
            f"{_NAME}: with this window the convolution of x {shape_text(x.shape)} has results of "
            f"the shape {shape_text(expected)}, received gy of the shape "
            f"{shape_text(cotangent.shape)}"
        )
    return TensorType(x.dtype, shape)


def _constraints(operands: Types, attributes: Attributes) -> Iterable[tuple[Size, str]]:
    x, cotangent = operands
    shape = (cotangent.shape[1], x.shape[1], *attributes["window"])
    return window_constraints(conv_axes(x.shape, shape, attributes))


def _reference(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    x, cotangent = operands
    shape = (cotangent.shape[1], x.shape[1], *attributes["window"])
    windows = images_windows(x, conv_axes(x.shape, shape, attributes), 0.0)
    return np.tensordot(cotangent, windows, ((0, 2, 3), (0, 2, 3)))


def _plain(attributes: Attributes) -> dict[str, Attribute]:
    """Return the attributes of the convolution whose gradient an op is."""
    names = ("strides", "padding", "dilation")
    return {**{name: attributes[name] for name in names}, "input_dilation": (1, 1), "groups": 1}


def _build(operands: tuple[Value, ...], attributes: Attributes) -> Value:
    x, cotangent = operands
    shape = (cotangent.shape[1], x.shape[1], *attributes["window"])
    return conv_filter_gradient(x, shape, cotangent, _plain(attributes))


def _gradient(context: GradientContext) -> Sequence[Value | None]:
    """The op is linear in both operands: its result stands where the weights of conv2d do."""
    (x, cotangent), (to_weights,) = context.operands, context.cotangents
    need_x, need_cotangent = context.needed
    values = _plain(context.attributes)
    return [
        conv_input_gradient(x, to_weights, cotangent, values) if need_x else None,
        ops.conv2d(x, to_weights, **values) if need_cotangent else None,
    ]


# name -> (shape of x, output channels, attributes)
_CASES: Mapping[str, tuple[tuple[int, ...], int, Attributes]] = {
    "plain": ((2, 3, 5, 7), 4, {"window": (3, 3)}),
    "same": ((3, 2, 6, 5), 3, {"window": (3, 3), "padding": (1, 1, 1, 1)}),
    "one_by_one": ((2, 3, 4, 5), 2, {"window": (1, 1)}),
    "stride_2": ((2, 2, 7, 8), 3, {"window": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}),
    "stride_leaves_rest": ((1, 2, 8, 9), 2, {"window": (3, 2), "strides": (3, 2)}),
    "one_by_one_stride_2": ((2, 2, 5, 4), 3, {"window": (1, 1), "strides": (2, 2)}),
    "dilation": ((1, 2, 9, 8), 3, {"window": (3, 2), "dilation": (2, 3), "padding": (1, 1, 0, 2)}),
    "dilation_stride": (
        (2, 2, 9, 9),
        2,
        {"window": (2, 3), "dilation": (3, 2), "strides": (2, 3), "padding": (2, 1, 1, 0)},
    ),
    "negative_padding": ((1, 2, 7, 8), 2, {"window": (3, 2), "padding": (-1, 1, 2, -2)}),
    "padding_above_window": ((1, 1, 3, 3), 1, {"window": (1, 1), "padding": (3, 2, 2, 3)}),
    "window_is_image": ((3, 2, 4, 3), 5, {"window": (4, 3)}),
    "empty_batch": ((0, 2, 5, 5), 3, {"window": (3, 3)}),
}


def _samples() -> Iterable[Sample]:
    for name, (shape, outputs, attributes) in _CASES.items():
        x = smooth(shape)
        plain = {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), **attributes}
        axes = conv_axes(shape, (outputs, shape[1], *attributes["window"]), plain)
        places = tuple(known(axis.output(_NAME)) for axis in axes)
        cotangent = smooth((shape[0], outputs, *places), low=-1.2, high=1.0)
        yield Sample(name, (x, cotangent), attributes)
    image = smooth((1, 1, 3, 3))
    image[0, 0, 0, 0], image[0, 0, 2, 2], image[0, 0, 0, 2] = np.nan, np.inf, -np.inf
    yield Sample("not_finite", (image, np.ones((1, 1, 2, 2))), {"window": (2, 2)}, gradient=False)


register(
    OpDef(
        _NAME,
        "The gradient of conv2d by its weights, without groups: the sum over images and places of "
        "gy times the window of x there.",
        (
            Operand("x", ("float",), doc="images [N, C, H, W]"),
            Operand("gy", ("float",), doc="cotangents [N, O, OH, OW]"),
        ),
        _infer,
        _reference,
        _gradient,
        attributes=(
            AttributeSpec("window", "ints", doc="points of the window (height, width)"),
            AttributeSpec("strides", "ints", (1, 1), "steps of the window (height, width)"),
            AttributeSpec("padding", "ints", (0, 0, 0, 0), "zeros at top, bottom, left, right"),
            AttributeSpec("dilation", "ints", (1, 1), "distance of neighbours in the window"),
        ),
        results=("gw",),
        traits=frozenset({Trait.CONTRACTION}),
        autocast=Autocast.LOW,
        decomposition=_build,
        samples=_samples,
        constraints=_constraints,
    )
)
