"""Fused plans: runs of layers that are known blocks become one layer each.

A block is known by its whole structure: kinds, kernel sizes, strides, padding, groups and numbers
of channels. The layer keeps the layers that it stands for as its parts, so nothing is lost: paths
of parameters, momentum and eps of each normalisation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from frame.blueprint.layers import ArchLayer, LayerKind, make_layer
from frame.core.dataclass import dataclass

Layers = Sequence[ArchLayer]

CONV, BN, RELU, RELU6 = LayerKind.CONV, LayerKind.BN2D, LayerKind.RELU, LayerKind.RELU6
START, MIDDLE, END = LayerKind.ADD2_START, LayerKind.ADD2_SHORTCUT_END, LayerKind.ADD2_END


@dataclass(frozen=True, slots=True)
class Found:
    """A known block at the front of a run: what it becomes, and how many layers it takes."""

    kind: LayerKind
    name: str
    options: tuple[object, ...]
    length: int


Rule = Callable[[Layers], Found | None]


def merge(layers: Layers) -> tuple[ArchLayer, ...]:
    """Return the layers with every known block as one layer."""
    merged: list[ArchLayer] = []
    position = 0
    while position < len(layers):
        rest = layers[position : position + LONGEST]
        found = next((each for rule in RULES if (each := rule(rest)) is not None), None)
        if found is None:
            merged.append(layers[position])
            position += 1
        else:
            merged.append(_fused(found, rest[: found.length]))
            position += found.length
    return tuple(merged)


def _fused(found: Found, parts: Layers) -> ArchLayer:
    layer = make_layer(found.kind, found.name, _common_path(parts), *found.options)
    shaped = layer.with_shapes(parts[0].in_shape, parts[-1].out_shape)
    return replace(shaped, parts=tuple(parts))


def _common_path(parts: Layers) -> str:
    """Return the place that all parts share, or the path of the first where they share none."""
    paths = [part.path.split(".") for part in parts]
    shared = []
    for names in zip(*paths, strict=False):
        if len(set(names)) != 1:
            break
        shared.append(names[0])
    return ".".join(shared) or parts[0].path


# --- what a run begins with -----------------------------------------------------------------------


def _kinds(layers: Layers, *kinds: LayerKind) -> bool:
    return tuple(layer.kind for layer in layers[: len(kinds)]) == kinds


def _is_conv(layer: ArchLayer, kernel: int, stride: int = 1, groups: int = 1) -> bool:
    wanted = {"kernel": kernel, "stride": stride, "padding": kernel // 2, "groups": groups}
    return all(layer[name] == value for name, value in wanted.items())


@dataclass(frozen=True, slots=True)
class _Branch:
    """The shortcut of an add2: how many layers it has, and its stride; 0 layers: no add2."""

    length: int
    projects: bool
    stride: int


def _shortcut(layers: Layers) -> _Branch | None:
    if _kinds(layers, START, LayerKind.IDENTITY, MIDDLE):
        return _Branch(3, False, 1)
    if _kinds(layers, START, CONV, BN, MIDDLE) and _is_conv(layers[1], 1, layers[1]["stride"]):
        return _Branch(4, True, layers[1]["stride"])
    return None


def _bottleneck(layers: Layers) -> Found | None:
    branch = _shortcut(layers)
    if branch is None:
        return None
    stem = layers[branch.length :]
    if not _kinds(stem, CONV, BN, RELU, CONV, BN, RELU, CONV, BN, END, RELU):
        return None
    first, second, third = stem[0], stem[3], stem[6]
    middle, out = first["out_channels"], third["out_channels"]
    fits = _is_conv(first, 1) and _is_conv(second, 3, branch.stride) and _is_conv(third, 1)
    if not fits or second["out_channels"] != middle:
        return None
    options, length = (middle, out, branch.stride), branch.length + 10
    if not branch.projects:
        return Found(LayerKind.BOTTLENECK_IDENTITY, "bottleneck_id", options, length)
    name = "bottleneck_proj" if branch.stride == 1 else "bottleneck_proj_ds"
    return Found(LayerKind.BOTTLENECK_PROJECTION, name, options, length)


def _basic(layers: Layers) -> Found | None:
    branch = _shortcut(layers)
    if branch is None:
        return None
    stem = layers[branch.length :]
    if not _kinds(stem, CONV, BN, RELU, CONV, BN, END, RELU):
        return None
    first, second = stem[0], stem[3]
    same = first["out_channels"] == second["out_channels"]
    if not (same and _is_conv(first, 3, branch.stride) and _is_conv(second, 3)):
        return None
    options, length = (second["out_channels"], branch.stride), branch.length + 7
    if not branch.projects:
        return Found(LayerKind.BASIC_IDENTITY, "basicblock_id", options, length)
    name = "basicblock_proj" if branch.stride == 1 else "basicblock_ds"
    return Found(LayerKind.BASIC_PROJECTION, name, options, length)


def _inverted_stem(layers: Layers) -> tuple[int, int, int, int] | None:
    """Return (expanded, out, stride, length) of an inverted residual's stem."""
    widened = _kinds(layers, CONV, BN, RELU6) and _is_conv(layers[0], 1)
    for skip in (3, 0) if widened else (0,):
        stem = layers[skip:]
        if not _kinds(stem, CONV, BN, RELU6, CONV, BN):
            continue
        wide, narrow = stem[0], stem[3]
        expanded, stride = wide["out_channels"], wide["stride"]
        depthwise = wide.in_shape[3] == expanded and _is_conv(wide, 3, stride, expanded)
        if depthwise and _is_conv(narrow, 1):
            return expanded, narrow["out_channels"], stride, skip + 5
    return None


def _inverted_with_shortcut(layers: Layers) -> Found | None:
    branch = _shortcut(layers)
    if branch is None or branch.projects:
        return None
    stem = _inverted_stem(layers[branch.length :])
    if stem is None:
        return None
    expanded, out, stride, length = stem
    end = branch.length + length
    if stride != 1 or not _kinds(layers[end:], END):
        return None
    return Found(LayerKind.INVERTED_IDENTITY, "invres_id", (expanded, out, 1), end + 1)


def _inverted_without_shortcut(layers: Layers) -> Found | None:
    stem = _inverted_stem(layers)
    if stem is None:
        return None
    expanded, out, stride, length = stem
    name = "invres_noshortcut" if stride == 1 else "invres_noshortcut_ds"
    return Found(LayerKind.INVERTED_NO_SHORTCUT, name, (expanded, out, stride), length)


def _cbr(layers: Layers) -> Found | None:
    if not _kinds(layers, CONV, BN, RELU):
        return None
    options = (value for layer in layers[:2] for _, value in layer.options)
    return Found(LayerKind.CBR, "cbr", tuple(options), 3)


def _gap_fc(layers: Layers) -> Found | None:
    if not _kinds(layers, LayerKind.GAP, LayerKind.FC):
        return None
    options = tuple(value for _, value in layers[1].options)
    return Found(LayerKind.GAP_FC, "gap_fc", options, 2)


RULES: tuple[Rule, ...] = (
    _bottleneck,
    _basic,
    _inverted_with_shortcut,
    _inverted_without_shortcut,
    _cbr,
    _gap_fc,
)
"""In this order: the first that fits takes the layers."""

LONGEST = 14
"""The number of layers of the longest known block, a bottleneck with a projection."""
