"""Convolutions that conv2d expresses: conv1d and the transposed ones; the global pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Size, exact_divide, shape_text
from frame.ir.graph import Attribute, TensorType, Value
from frame.ops.composite import Attributes, Types, composite
from frame.ops.conv import swap_in_groups
from frame.ops.record import AttributeSpec, Autocast, Operand, Sample
from frame.ops.registry import lookup
from frame.ops.samples import not_finite, smooth

Operands = tuple[Value, ...]
_GROUPS = AttributeSpec("groups", "int", 1, "independent slices of the channels")


def _check(op: str, attributes: Attributes, lengths: Mapping[str, tuple[int, int]]) -> None:
    """Check how many numbers each attribute holds, and that each is large enough."""
    for name, (length, least) in lengths.items():
        numbers = attributes[name]
        items = numbers if isinstance(numbers, tuple) else (numbers,)
        if len(items) != length or min(items) < least:
            raise InvalidArgumentError(
                f"attribute {name!r} of {op} must hold {length} integers of at least {least}, "
                f"received {numbers}"
            )


# --- conv1d ---------------------------------------------------------------------------------------


def _canonical_conv1d(operands: Types, attributes: Attributes) -> Attributes:
    padding = attributes["padding"]
    return {"padding": padding * 2 if len(padding) == 1 else padding}


def _conv1d_attributes(attributes: Attributes) -> Mapping[str, Attribute]:
    return {
        "strides": (1, attributes["stride"]),
        "padding": (0, 0, *attributes["padding"]),
        "dilation": (1, attributes["dilation"]),
        "groups": attributes["groups"],
    }


def _rank_3(op: str, operands: Types) -> None:
    if any(t.rank != 3 for t in operands):
        shapes = " and ".join(shape_text(t.shape) for t in operands)
        raise InvalidArgumentError(
            f"{op} takes sequences [N, C, L] and weights of three axes, received {shapes}"
        )


def _infer_conv1d(operands: Types, attributes: Attributes) -> TensorType:
    _rank_3("conv1d", operands)
    _check("conv1d", attributes, {"stride": (1, 1), "padding": (2, -(2**31)), "dilation": (1, 1)})
    planes = tuple(TensorType(t.dtype, (*t.shape[:2], 1, t.shape[2])) for t in operands)
    _, (result,) = lookup("conv2d").check(planes, _conv1d_attributes(attributes))
    return TensorType(result.dtype, (*result.shape[:2], result.shape[3]))


def _reference_conv1d(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    x, w = operands
    low, high = attributes["padding"]
    x = np.pad(x, ((0, 0), (0, 0), (max(low, 0), max(high, 0))))
    x = x[:, :, max(-low, 0) : x.shape[2] - max(-high, 0)]
    step, spread, groups = (attributes[name] for name in ("stride", "dilation", "groups"))
    count = (x.shape[2] - (w.shape[2] - 1) * spread - 1) // step + 1
    y = np.zeros((x.shape[0], w.shape[0], count))
    width, outputs = w.shape[1], w.shape[0] // groups
    for o in range(w.shape[0]):
        group = x[:, o // outputs * width : (o // outputs + 1) * width]
        for k in range(w.shape[2]):
            taps = group[:, :, k * spread : k * spread + (count - 1) * step + 1 : step]
            y[:, o] += np.einsum("ncl,c->nl", taps, w[o, :, k])
    return y


def _plane(value: Value) -> Value:
    return ops.unsqueeze(value, 2)


def _build_conv1d(operands: Operands, attributes: Attributes) -> Value:
    x, w = operands
    return ops.squeeze(ops.conv2d(_plane(x), _plane(w), **_conv1d_attributes(attributes)), 2)


def _conv1d_samples() -> Iterable[Sample]:
    cases: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], Attributes]] = {
        "plain": ((2, 3, 7), (4, 3, 3), {}),
        "causal": ((1, 2, 6), (2, 1, 4), {"padding": (3, 0), "groups": 2}),
        "stride": ((2, 2, 9), (3, 2, 2), {"stride": 3, "padding": 1}),
        "dilation": ((1, 2, 9), (2, 2, 3), {"dilation": 2, "padding": 2}),
        "cropped": ((1, 1, 8), (1, 1, 2), {"padding": (-1, -2)}),
        "groups": ((2, 4, 5), (6, 2, 2), {"groups": 2}),
        "small": ((1, 1, 4), (1, 1, 2), {}),
        "empty_batch": ((0, 2, 5), (3, 2, 2), {}),
    }
    for seed, (name, (x, w, attributes)) in enumerate(cases.items()):
        yield Sample(name, (smooth(x, seed=seed), smooth(w, seed=seed + 50)), attributes)
    yield not_finite((2, 1, 9), (1, 1, 2))


composite(
    "conv1d",
    "One-dimensional convolution (cross-correlation) with zero padding; a negative padding crops. "
    "A bias is an add.",
    (
        Operand("x", ("float",), doc="sequences [N, groups * I, L]"),
        Operand("w", ("float",), doc="weights [O, I, K]"),
    ),
    infer=_infer_conv1d,
    reference=_reference_conv1d,
    build=_build_conv1d,
    samples=_conv1d_samples,
    attributes=(
        AttributeSpec("stride", "int", 1, "steps of the window"),
        AttributeSpec("padding", "ints", (0, 0), "zeros before and behind, or one number for both"),
        AttributeSpec("dilation", "int", 1, "distance of neighbours in the window"),
        _GROUPS,
    ),
    autocast=Autocast.LOW,
    canonicalize=_canonical_conv1d,
)


# --- conv_transpose2d -----------------------------------------------------------------------------

_TRANSPOSE_LENGTHS = {
    "strides": (2, 1),
    "padding": (4, 0),
    "output_padding": (2, 0),
    "dilation": (2, 1),
}


def _spatial(
    x: Sequence[Size], w: Sequence[Size], attributes: Attributes
) -> list[tuple[Size, int, int]]:
    """Return (output size, low padding, high padding of the equal conv2d) for each axis."""
    found = []
    for axis in range(2):
        window = w[2 + axis]
        if not isinstance(window, int):
            raise InvalidArgumentError(
                f"conv_transpose2d needs a window of known size, received {window}"
            )
        reach = (window - 1) * attributes["dilation"][axis]
        low, high = attributes["padding"][2 * axis : 2 * axis + 2]
        extra = attributes["output_padding"][axis]
        size = (x[2 + axis] - 1) * attributes["strides"][axis] + reach + 1 + extra - low - high
        found.append((size, reach - low, reach - high + extra))
    return found


def _infer_transpose(operands: Types, attributes: Attributes) -> TensorType:
    x, w = operands
    groups = attributes["groups"]
    if x.rank != 4 or w.rank != 4 or groups < 1 or x.shape[1] != w.shape[0]:
        raise InvalidArgumentError(
            "conv_transpose2d takes images [N, I, H, W] and weights [I, O / groups, KH, KW], "
            f"received {shape_text(x.shape)}, {shape_text(w.shape)} and {groups} groups"
        )
    _check("conv_transpose2d", attributes, _TRANSPOSE_LENGTHS)
    exact_divide(x.shape[1], groups)
    sizes = [size for size, _, _ in _spatial(x.shape, w.shape, attributes)]
    if any(isinstance(size, int) and size < 1 for size in sizes):
        raise InvalidArgumentError(
            f"conv_transpose2d of images {shape_text(x.shape)} with weights {shape_text(w.shape)} "
            f"and padding {attributes['padding']} would give images of {sizes[0]} x {sizes[1]}"
        )
    for name, extra in zip(("height", "width"), attributes["output_padding"], strict=True):
        axis = 0 if name == "height" else 1
        if extra >= max(attributes["strides"][axis], attributes["dilation"][axis]):
            raise InvalidArgumentError(
                f"the output_padding {extra} of the {name} must be below the stride or the "
                f"dilation: it chooses between sizes that a stride makes equal"
            )
    return TensorType(x.dtype, (x.shape[0], w.shape[1] * groups, *sizes))


def _reference_transpose(operands: Sequence[np.ndarray], attributes: Attributes) -> np.ndarray:
    x, w = operands
    groups, (sy, sx), (dy, dx) = (attributes[n] for n in ("groups", "strides", "dilation"))
    top, bottom, left, right = attributes["padding"]
    (oy, ox), (height, width) = attributes["output_padding"], x.shape[2:]
    inputs, outputs = w.shape[0] // groups, w.shape[1]
    full = (
        (height - 1) * sy + (w.shape[2] - 1) * dy + 1,
        (width - 1) * sx + (w.shape[3] - 1) * dx + 1,
    )
    y = np.zeros((x.shape[0], outputs * groups, full[0] + oy, full[1] + ox))
    for g in range(groups):
        part = x[:, g * inputs : (g + 1) * inputs]
        for i, j in np.ndindex(*w.shape[2:]):
            taps = np.einsum("nchw,co->nohw", part, w[g * inputs : (g + 1) * inputs, :, i, j])
            rows = slice(i * dy, i * dy + (height - 1) * sy + 1, sy)
            columns = slice(j * dx, j * dx + (width - 1) * sx + 1, sx)
            y[:, g * outputs : (g + 1) * outputs, rows, columns] += taps
    return y[:, :, top : y.shape[2] - bottom, left : y.shape[3] - right]


def _build_transpose(operands: Operands, attributes: Attributes) -> Value:
    x, w = operands
    groups = attributes["groups"]
    (_, top, bottom), (_, left, right) = _spatial(x.shape, w.shape, attributes)
    return ops.conv2d(
        x,
        ops.flip(swap_in_groups(w, groups), axes=(2, 3)),
        padding=(top, bottom, left, right),
        dilation=attributes["dilation"],
        input_dilation=attributes["strides"],
        groups=groups,
    )


def _transpose_samples() -> Iterable[Sample]:
    cases: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], Attributes]] = {
        "plain": ((2, 3, 4, 3), (3, 2, 3, 2), {}),
        "stride": ((1, 2, 3, 4), (2, 3, 2, 2), {"strides": (2, 2)}),
        "padding": ((1, 2, 4, 4), (2, 2, 3, 3), {"strides": (2, 1), "padding": (1, 0, 1, 1)}),
        "output_padding": (
            (1, 1, 3, 3),
            (1, 2, 3, 3),
            {"strides": (2, 3), "padding": (1, 1, 1, 1), "output_padding": (1, 2)},
        ),
        "dilation": ((1, 2, 3, 3), (2, 1, 2, 2), {"dilation": (2, 3), "padding": (1, 1, 0, 2)}),
        "groups": ((2, 4, 3, 2), (4, 3, 2, 2), {"groups": 2, "strides": (2, 2)}),
        "small": ((1, 1, 2, 2), (1, 1, 2, 2), {}),
        "padding_above_window": ((1, 1, 6, 6), (1, 1, 2, 2), {"padding": (2, 2, 3, 1)}),
        "empty_batch": ((0, 2, 3, 3), (2, 2, 2, 2), {}),
    }
    for seed, (name, (x, w, attributes)) in enumerate(cases.items()):
        yield Sample(name, (smooth(x, seed=seed), smooth(w, seed=seed + 50)), attributes)
    yield not_finite((1, 1, 5, 5), (1, 1, 2, 2))


composite(
    "conv_transpose2d",
    "Transposed two-dimensional convolution: each element of x adds its window, times the weights, "
    "to the result; it is the gradient of conv2d by its images. The result is cropped by the "
    "padding. Source: Zeiler et al., CVPR 2010; Dumoulin, Visin, arXiv 1603.07285.",
    (
        Operand("x", ("float",), doc="images [N, I, H, W]"),
        Operand("w", ("float",), doc="weights [I, O / groups, KH, KW]"),
    ),
    infer=_infer_transpose,
    reference=_reference_transpose,
    build=_build_transpose,
    samples=_transpose_samples,
    attributes=(
        AttributeSpec("strides", "ints", (1, 1), "steps of the window in the result"),
        AttributeSpec("padding", "ints", (0, 0, 0, 0), "cropped at top, bottom, left, right"),
        AttributeSpec("output_padding", "ints", (0, 0), "rows and columns more at the end"),
        AttributeSpec("dilation", "ints", (1, 1), "distance of neighbours in the window"),
        _GROUPS,
    ),
    autocast=Autocast.LOW,
)


# --- global_avg_pool ------------------------------------------------------------------------------


def _infer_pool(operands: Types, attributes: Attributes) -> TensorType:
    (x,) = operands
    if x.rank < 3:
        raise InvalidArgumentError(
            f"global_avg_pool takes x [N, C, ...] with an axis behind the channels, received "
            f"{shape_text(x.shape)}"
        )
    kept = (1,) * (x.rank - 2) if attributes["keepdims"] else ()
    return TensorType(x.dtype, (*x.shape[:2], *kept))


def _pool_samples() -> Iterable[Sample]:
    yield Sample("images", (smooth((2, 3, 4, 5)),))
    yield Sample("sequence", (smooth((2, 3, 7)),), {"keepdims": True})
    yield not_finite((3, 2, 3))
    yield Sample("volume", (smooth((1, 2, 2, 3, 2)),))
    yield Sample("empty_batch", (np.zeros((0, 3, 2, 2)),))


def _spatial_axes(rank: int) -> tuple[int, ...]:
    return tuple(range(2, rank))


composite(
    "global_avg_pool",
    "The mean of each channel over all axes behind it. Source: Lin, Chen, Yan, arXiv 1312.4400.",
    (Operand("x", ("float",), doc="values [N, C, ...]"),),
    infer=_infer_pool,
    reference=lambda operands, values: np.mean(
        operands[0], _spatial_axes(operands[0].ndim), keepdims=values["keepdims"]
    ),
    build=lambda operands, values: ops.mean(
        operands[0], axes=_spatial_axes(operands[0].rank), keepdims=values["keepdims"]
    ),
    samples=_pool_samples,
    attributes=(AttributeSpec("keepdims", "bool", False, "whether pooled axes stay, of size 1"),),
)
