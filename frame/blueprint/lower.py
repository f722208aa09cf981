"""Lowering: a plan becomes a Module of `frame.nn`.

The modules nest as the paths do: the layer at `3.0.conv1` is the child `conv1` of the child `0` of
the child `3`, and its weight is the parameter `3.0.conv1.weight`. The data of the DSL is NHWC; one
transpose at the entry makes NCHW of it, one before each flatten and at the end goes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from frame import nn, ops
from frame.blueprint.layers import MARKERS, ArchLayer, LayerKind
from frame.core.dataclass import dataclass
from frame.core.dtypes import DTypeLike
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import numel
from frame.ir.graph import Value
from frame.nn.module import Module, Scope

if TYPE_CHECKING:
    from frame.blueprint.plan import ArchPlan

TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)

Adapter = Callable[[Value], Value]


def lower(plan: ArchPlan, name: str, dtype: DTypeLike) -> Module:
    """Return the Module of a plan: NHWC images (or features) in and out.

    In training and in inference it computes what the layers say. Where the plan is fused, a module
    built for inference multiplies the scale of a batch normalisation into the weights of the
    convolution before it, and adds the shift.
    """
    entries = [
        (layer.path.split("."), layer)
        for layer in plan.primitives
        if layer.kind is not LayerKind.SOFTMAX_CE
    ]
    body = _container(entries, 0, "", plan.fused, dtype)
    channels = plan.input_spec.c
    return Module(
        name, body.specs, body.children, _Network(body.builder, channels), "BluePrint", body.options
    )


@dataclass(frozen=True, slots=True)
class _Network:
    """The builder of the root: checks the input and converts the layout around the layers."""

    body: Callable[..., Any]
    channels: int

    def __call__(self, scope: Scope, x: Value) -> Value:
        if x.rank not in (2, 4) or x.shape[-1] != self.channels:
            raise InvalidArgumentError(
                f"expected [batch, height, width, {self.channels}] or [batch, {self.channels}], "
                f"received {x.type}: the images of a blueprint are NHWC"
            )
        start = ops.transpose(x, TO_NCHW) if x.rank == 4 else x
        result = self.body(scope, start)
        return ops.transpose(result, TO_NHWC) if result.rank == 4 else result


# --- containers -----------------------------------------------------------------------------------

Entry = tuple[Sequence[str], ArchLayer]


@dataclass(frozen=True, slots=True)
class _Fold:
    """The normalisation `norm` that follows a convolution with these attributes."""

    norm: int
    eps: float
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of a container: a marker of an add2, or a child to apply.

    `adapt` brings the value into the form that the child reads. `fold` names a child that is
    folded into this one in inference and follows it in training.
    """

    child: int = -1
    marker: LayerKind | None = None
    adapt: Adapter | None = None
    fold: _Fold | None = None


@dataclass(frozen=True, slots=True)
class _Program:
    """The builder of a container: runs its steps over one value."""

    steps: tuple[_Step, ...]

    def __call__(self, scope: Scope, x: Value) -> Value:
        starts: list[Value] = []
        shortcuts: list[Value] = []
        for step in self.steps:
            if step.marker is LayerKind.ADD2_START:
                starts.append(x)
            elif step.marker is LayerKind.ADD2_SHORTCUT_END:
                shortcuts.append(x)
                x = starts.pop()
            elif step.marker is LayerKind.ADD2_END:
                x = _sum(shortcuts.pop(), x)
            else:
                x = _apply(scope, step, x)
        return x


def _sum(shortcut: Value, stem: Value) -> Value:
    # Where one side is features, the other an image of one pixel, the stem decides.
    return ops.add(_image(shortcut) if stem.rank == 4 else _features(shortcut), stem)


def _apply(scope: Scope, step: _Step, x: Value) -> Value:
    x = x if step.adapt is None else step.adapt(x)
    if step.fold is not None and not scope.training:
        return _folded(scope, step.child, step.fold, x)
    y: Value = scope[step.child](x)
    return y if step.fold is None else scope[step.fold.norm](y)  # type: ignore[no-any-return]


def _folded(scope: Scope, conv: int, fold: _Fold, x: Value) -> Value:
    """Apply a convolution and the normalisation after it as one convolution with a bias."""
    (weight,) = scope.parameters_of(conv)
    gamma, beta, mean, variance = scope.parameters_of(fold.norm)
    scale = ops.div(gamma, ops.sqrt(ops.add(variance, fold.eps)))
    weights = ops.mul(weight, ops.reshape(scale, (*scale.shape, 1, 1, 1)))
    shift = ops.sub(beta, ops.mul(mean, scale))
    y = ops.conv2d(x, weights, **fold.attributes)
    return ops.add(y, ops.reshape(shift, (*shift.shape, 1, 1)))


def _container(
    entries: Sequence[Entry], depth: int, name: str, fold: bool, dtype: DTypeLike
) -> Module:
    """Return the module of consecutive layers whose paths agree up to `depth`."""
    children: list[Module] = []
    steps: list[_Step] = []
    position = 0
    while position < len(entries):
        parts, layer = entries[position]
        group = _group(entries, position, depth)
        position += len(group)
        if len(parts) > depth + 1:
            steps.append(_Step(len(children)))
            children.append(_container(group, depth + 1, parts[depth], fold, dtype))
        elif layer.kind in MARKERS:
            steps.append(_Step(marker=layer.kind))
        elif layer.kind is not LayerKind.IDENTITY:
            steps.append(_Step(len(children), adapt=_ADAPTERS.get(layer.kind)))
            children.append(_leaf(layer, parts[depth], dtype))
    program = _with_folds(steps, children) if fold else tuple(steps)
    return Module(name, (), tuple(children), _Program(program), "Layers")


def _group(entries: Sequence[Entry], start: int, depth: int) -> Sequence[Entry]:
    """Return the consecutive entries that stand below the same part of the path."""
    first = entries[start][0]
    end = start + 1
    while (
        len(first) > depth + 1
        and end < len(entries)
        and len(entries[end][0]) > depth + 1
        and entries[end][0][depth] == first[depth]
    ):
        end += 1
    return entries[start:end]


def _with_folds(steps: Sequence[_Step], children: Sequence[Module]) -> tuple[_Step, ...]:
    """Join each convolution with the normalisation right after it."""
    joined: list[_Step] = []
    for step in steps:
        last = joined[-1] if joined else _Step()
        if _kind(last, children) == "Conv2d" and _kind(step, children) == "BatchNorm2d":
            joined[-1] = replace(last, fold=_fold(children[last.child], step.child, children))
        else:
            joined.append(step)
    return tuple(joined)


def _kind(step: _Step, children: Sequence[Module]) -> str:
    return "" if step.child < 0 or step.fold is not None else children[step.child].kind


def _fold(conv: Module, norm: int, children: Sequence[Module]) -> _Fold:
    options = dict(conv.options)
    attributes = {
        "strides": options["stride"],
        "padding": options["padding"],
        "groups": options["groups"],
    }
    return _Fold(norm, dict(children[norm].options)["eps"], attributes)


# --- leaves ---------------------------------------------------------------------------------------


def _image(x: Value) -> Value:
    """Return NCHW; features become images of one pixel."""
    return x if x.rank == 4 else ops.reshape(x, (*x.shape, 1, 1))


def _features(x: Value) -> Value:
    """Return [N, features]; an image is read in the order H, W, C."""
    if x.rank == 2:
        return x
    rows = ops.transpose(x, TO_NHWC)
    return ops.reshape(rows, (x.shape[0], numel(rows.shape[1:])))


_ADAPTERS: Mapping[LayerKind, Adapter] = {
    LayerKind.CONV: _image,
    LayerKind.MAX_POOL: _image,
    LayerKind.AVG_POOL: _image,
    LayerKind.GAP: _image,
    LayerKind.FC: _features,
    LayerKind.FLATTEN: _features,
}


def _leaf(layer: ArchLayer, name: str, dtype: DTypeLike) -> Module:
    return _LEAVES[layer.kind](layer, dtype).named(name)


def _conv(layer: ArchLayer, dtype: DTypeLike) -> Module:
    return nn.Conv2d(
        layer.in_shape[3],
        layer["out_channels"],
        layer["kernel"],
        layer["stride"],
        layer["padding"],
        groups=layer["groups"],
        bias=False,
        dtype=dtype,
    )


def _norm(layer: ArchLayer, dtype: DTypeLike) -> Module:
    make = nn.BatchNorm1d if layer.kind is LayerKind.BN1D else nn.BatchNorm2d
    return make(layer.in_shape[3], layer["eps"], layer["momentum"], dtype=dtype)


def _linear(layer: ArchLayer, dtype: DTypeLike) -> Module:
    features = math.prod(layer.in_shape)
    return nn.Linear(features, layer["out_features"], layer["bias"], dtype=dtype)


def _pool(make: Callable[..., Module]) -> Callable[[ArchLayer, DTypeLike], Module]:
    return lambda layer, dtype: make(layer["kernel"], layer["stride"], layer["padding"])


def _padding(layer: ArchLayer, dtype: DTypeLike) -> Module:
    added = layer.out_shape[3] - layer.in_shape[3]
    return Module("", (), (), _PadChannels(added), "ChannelPadding", (("added", added),))


@dataclass(frozen=True, slots=True)
class _PadChannels:
    """The builder that appends channels of zeros along axis 1."""

    added: int

    def __call__(self, scope: Scope, x: Value) -> Value:
        rest = (0,) * (x.rank - 2)
        return ops.pad(x, (0, 0, *rest), (0, self.added, *rest)) if self.added else x


def _unchanged(scope: Scope, x: Value) -> Value:
    return x


def _plain(make: Callable[[], Module]) -> Callable[[ArchLayer, DTypeLike], Module]:
    return lambda layer, dtype: make()


_LEAVES: Mapping[LayerKind, Callable[[ArchLayer, DTypeLike], Module]] = {
    LayerKind.CONV: _conv,
    LayerKind.BN1D: _norm,
    LayerKind.BN2D: _norm,
    LayerKind.FC: _linear,
    LayerKind.MAX_POOL: _pool(nn.MaxPool2d),
    LayerKind.AVG_POOL: _pool(nn.AvgPool2d),
    LayerKind.GAP: _plain(nn.GlobalAvgPool2d),
    LayerKind.FLATTEN: _plain(lambda: Module("", (), (), _unchanged, "Flatten")),
    LayerKind.CHANNEL_PADDING: _padding,
    LayerKind.DROPOUT: lambda layer, dtype: nn.Dropout(layer["rate"]),
    LayerKind.RELU: _plain(nn.ReLU),
    LayerKind.TANH: _plain(nn.Tanh),
    LayerKind.SILU: _plain(nn.SiLU),
    LayerKind.RELU6: _plain(nn.ReLU6),
    LayerKind.LEAKY_RELU: _plain(nn.LeakyReLU),
    LayerKind.HARDSWISH: _plain(nn.Hardswish),
    LayerKind.ELU: _plain(nn.ELU),
    LayerKind.SIGMOID: _plain(nn.Sigmoid),
}
