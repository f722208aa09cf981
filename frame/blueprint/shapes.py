"""The rules of each kind of layer, as tables: shape, parameters, multiply-adds, operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from frame.blueprint.layers import MARKERS, NORMS, ArchLayer, LayerKind, Shape
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError

ALIGNMENT = 8
"""`channel_padding` rounds the number of channels up to a multiple of this."""

ShapeRule = Callable[[ArchLayer, Shape], Shape]
Count = Callable[[ArchLayer], int]


def fail(layer: ArchLayer, expected: str, received: str, hint: str) -> InvalidArgumentError:
    """Return the error of a layer that does not fit where it stands."""
    return InvalidArgumentError(f"{layer.where}: expected {expected}, received {received}; {hint}")


# --- shapes ---------------------------------------------------------------------------------------


def _window(layer: ArchLayer, size: Shape) -> tuple[int, int]:
    kernel, stride, padding = layer["kernel"], layer["stride"], layer["padding"]
    height, width = (side + 2 * padding - kernel for side in size[1:3])
    if height < 0 or width < 0:
        raise fail(
            layer,
            f"an input that holds the window {kernel} x {kernel} with padding {padding}",
            str(list(size)),
            "take a smaller window, more padding, fewer strides before it, or larger images",
        )
    return height // stride + 1, width // stride + 1


def _conv(layer: ArchLayer, size: Shape) -> Shape:
    groups = layer["groups"]
    if size[3] % groups:
        raise fail(
            layer,
            f"a number of channels that divides into {groups} groups",
            str(list(size)),
            "change the groups or the layer before",
        )
    return (1, *_window(layer, size), layer["out_channels"])


def _pool(layer: ArchLayer, size: Shape) -> Shape:
    return (1, *_window(layer, size), size[3])


def _softmax(layer: ArchLayer, size: Shape) -> Shape:
    if size != (1, 1, 1, layer["classes"]):
        raise fail(
            layer,
            f"one number for each of {layer['classes']} classes, [1, 1, 1, {layer['classes']}]",
            str(list(size)),
            f"end the blueprint with fc({layer['classes']}, True), or pass another num_classes",
        )
    return size


def _aligned(channels: int) -> int:
    return -(-channels // ALIGNMENT) * ALIGNMENT


def _same(layer: ArchLayer, size: Shape) -> Shape:
    return size


SHAPES: Mapping[LayerKind, ShapeRule] = MappingProxyType(
    {
        LayerKind.CONV: _conv,
        LayerKind.MAX_POOL: _pool,
        LayerKind.AVG_POOL: _pool,
        LayerKind.GAP: lambda layer, size: (1, 1, 1, size[3]),
        LayerKind.FLATTEN: lambda layer, size: (1, 1, 1, math.prod(size)),
        LayerKind.FC: lambda layer, size: (1, 1, 1, layer["out_features"]),
        LayerKind.CHANNEL_PADDING: lambda layer, size: (
            *size[:3],
            -(-size[3] // ALIGNMENT) * ALIGNMENT,
        ),
        LayerKind.SOFTMAX_CE: _softmax,
    }
)
"""The shape that a primitive layer gives; a kind without a row keeps the shape."""

_FEATURES = frozenset({LayerKind.FC, LayerKind.FLATTEN, LayerKind.GAP})
_IMAGES = frozenset({LayerKind.CONV, LayerKind.MAX_POOL, LayerKind.AVG_POOL})


@dataclass(frozen=True, slots=True)
class Flow:
    """What runs from layer to layer: the shape, and whether it is features rather than images."""

    shape: Shape
    features: bool = False


class ShapeWalk:
    """Gives layers their shapes, one after another; branches of an add2 begin at the same shape."""

    def __init__(self, start: Flow) -> None:
        self.now = start
        self._open: list[tuple[Flow, Flow | None]] = []

    def place(self, layer: ArchLayer) -> ArchLayer:
        """Return the layer with its shapes, a batch normalisation with its kind.

        Raises:
            InvalidArgumentError: the layer does not fit; the message names its path.
        """
        before = self.now
        if layer.kind in MARKERS:
            self.now = self._at_marker(layer)
            return layer.with_shapes(before.shape, self.now.shape)
        if layer.kind in NORMS:
            kind = LayerKind.BN1D if before.features else LayerKind.BN2D
            layer = replace(layer, kind=kind)
        shape = SHAPES.get(layer.kind, _same)(layer, before.shape)
        features = layer.kind in _FEATURES or (before.features and layer.kind not in _IMAGES)
        self.now = Flow(shape, features)
        return layer.with_shapes(before.shape, shape)

    def _at_marker(self, layer: ArchLayer) -> Flow:
        if layer.kind is LayerKind.ADD2_START:
            self._open.append((self.now, None))
            return self.now
        wanted_second = layer.kind is LayerKind.ADD2_END
        if not self._open or (self._open[-1][1] is not None) != wanted_second:
            raise fail(
                layer,
                "Add2Start, Add2ShortcutEnd and Add2End in this order",
                f"{layer.kind} out of order",
                "a plan that was written by hand must balance them",
            )
        start, shortcut = self._open.pop()
        if shortcut is None:
            self._open.append((start, self.now))
            return start
        if shortcut.shape != self.now.shape:
            raise fail(
                layer,
                "one shape of both branches",
                f"{list(shortcut.shape)} of the shortcut and {list(self.now.shape)} of the stem",
                "give the shortcut a projection, such as seq(conv(channels, 1, stride), bn())",
            )
        return self.now

    def finish(self) -> None:
        """Raise InvalidArgumentError if an add2 is still open."""
        if self._open:
            raise InvalidArgumentError(
                "a plan that was written by hand must balance Add2Start, Add2ShortcutEnd and "
                f"Add2End, received {len(self._open)} Add2Start without an end"
            )


def deduce(layers: Sequence[ArchLayer], start: Flow) -> tuple[ArchLayer, ...]:
    """Return primitive layers with their shapes.

    Raises:
        InvalidArgumentError: a layer does not fit; the message names its path.
    """
    walk = ShapeWalk(start)
    placed = tuple(walk.place(layer) for layer in layers)
    walk.finish()
    return placed


# --- parameters and operations --------------------------------------------------------------------


def _conv_parameters(layer: ArchLayer) -> int:
    inputs = layer.in_shape[3] // layer["groups"]
    return int(layer["kernel"] ** 2 * inputs * layer["out_channels"])


def _fc_parameters(layer: ArchLayer) -> int:
    features = layer["out_features"]
    return int(math.prod(layer.in_shape) * features + (features if layer["bias"] else 0))


_PARAMETERS: Mapping[LayerKind, Count] = MappingProxyType(
    {
        LayerKind.CONV: _conv_parameters,
        LayerKind.FC: _fc_parameters,
        LayerKind.BN1D: lambda layer: 2 * layer.in_shape[3],
        LayerKind.BN2D: lambda layer: 2 * layer.in_shape[3],
    }
)

_MULTIPLY_ADDS: Mapping[LayerKind, Count] = MappingProxyType(
    {
        LayerKind.CONV: lambda x: math.prod(x.out_shape[1:3]) * _conv_parameters(x),
        LayerKind.FC: lambda x: math.prod(x.in_shape) * x["out_features"],
    }
)


def _elements(layer: ArchLayer) -> int:
    return math.prod(layer.out_shape)


_OTHER_OPERATIONS: Mapping[LayerKind, Count] = MappingProxyType(
    {
        LayerKind.FC: lambda x: x["out_features"] if x["bias"] else 0,
        LayerKind.BN1D: lambda x: 2 * _elements(x),
        LayerKind.BN2D: lambda x: 2 * _elements(x),
        LayerKind.MAX_POOL: lambda x: _elements(x) * x["kernel"] ** 2,
        LayerKind.AVG_POOL: lambda x: _elements(x) * x["kernel"] ** 2,
        LayerKind.GAP: lambda x: math.prod(x.in_shape),
        LayerKind.ADD2_END: _elements,
        **{
            kind: _elements
            for kind in (
                LayerKind.RELU, LayerKind.TANH, LayerKind.SILU, LayerKind.RELU6,
                LayerKind.LEAKY_RELU, LayerKind.HARDSWISH, LayerKind.ELU, LayerKind.SIGMOID,
            )
        },
    }
)  # fmt: skip


def _sum(table: Mapping[LayerKind, Count], layer: ArchLayer) -> int:
    parts = (part for part in layer.primitives() if part.kind in table)
    return sum(table[part.kind](part) for part in parts)


def parameter_count(layer: ArchLayer) -> int:
    """Return the number of trainable parameters; running statistics are not counted."""
    return _sum(_PARAMETERS, layer)


def multiply_adds(layer: ArchLayer) -> int:
    """Return the multiply-adds of convolutions and products for one image."""
    return _sum(_MULTIPLY_ADDS, layer)


def operations(layer: ArchLayer) -> int:
    """Return the floating-point operations of inference for one image.

    A multiply-add counts two; beside them a batch normalisation counts two an element, an
    activation, a sum and a bias one, and a pool one for each element of its windows.
    """
    return 2 * multiply_adds(layer) + _sum(_OTHER_OPERATIONS, layer)
