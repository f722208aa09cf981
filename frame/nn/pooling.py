"""Pools of sequences, and the largest element of each channel."""

from __future__ import annotations

from collections.abc import Sequence

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import shape_text
from frame.ir.graph import Value
from frame.nn.checks import layer, of_shape
from frame.nn.common import sides
from frame.nn.layers import check_window, positive
from frame.nn.module import Builder, Module, Scope


def _plane(self: Scope, x: Value) -> Value:
    return ops.unsqueeze(of_shape(self.options["op"], x, "N", "C", "L"), 2)


def _attributes(self: Scope) -> dict[str, tuple[int, ...]]:
    options = self.options
    return {
        "kernel": (1, options["kernel_size"]),
        "strides": (1, options["stride"]),
        "padding": (0, 0, *options["padding"]),
    }


def _build_max_pool1d(self: Scope, x: Value) -> Value:
    y, _ = ops.max_pool2d(_plane(self, x), **_attributes(self))
    return ops.squeeze(y, 2)


def _build_avg_pool1d(self: Scope, x: Value) -> Value:
    return ops.squeeze(ops.avg_pool2d(_plane(self, x), **_attributes(self)), 2)


def _pool1d(
    kind: str,
    builder: Builder,
    kernel_size: int,
    stride: int | None,
    padding: int | Sequence[int],
    name: str,
) -> Module:
    window, around = positive("kernel_size", kernel_size), sides(padding)
    check_window(around, (window, window))
    options = {
        "op": kind,  # hidden from people, who see the kind itself
        "kernel_size": window,
        "stride": window if stride is None else positive("stride", stride),
        "padding": around,
    }
    return layer(kind, builder, options, name=name)


def MaxPool1d(
    kernel_size: int,
    stride: int | None = None,
    padding: int | Sequence[int] = 0,
    *,
    name: str = "",
) -> Module:
    """Return the largest element of each window of [N, C, L]; the stride is the window's size.

    `padding` is a number or (before, behind), and never wins. Source: Yamaguchi et al., ICSLP 1990.
    """
    return _pool1d("MaxPool1d", _build_max_pool1d, kernel_size, stride, padding, name)


def AvgPool1d(
    kernel_size: int,
    stride: int | None = None,
    padding: int | Sequence[int] = 0,
    *,
    name: str = "",
) -> Module:
    """Return the mean of each window of [N, C, L]; padding counts as zeros.

    Source: LeCun et al., Proceedings of the IEEE 86 (1998), there for images.
    """
    return _pool1d("AvgPool1d", _build_avg_pool1d, kernel_size, stride, padding, name)


def _build_global_max(self: Scope, x: Value) -> Value:
    if x.rank < 3:
        raise InvalidArgumentError(
            "GlobalMaxPool takes an input [N, C, ...] with an axis behind the channels, received "
            f"the shape {shape_text(x.shape)}"
        )
    return ops.max(x, axes=tuple(range(2, x.rank)), keepdims=self.options["keepdims"])


def GlobalMaxPool(keepdims: bool = False, *, name: str = "") -> Module:
    """Return the largest element of each channel over all axes behind it: [N, C, ...] -> [N, C].

    Source: Oquab et al., CVPR 2015.
    """
    return layer("GlobalMaxPool", _build_global_max, {"keepdims": keepdims}, name=name)
