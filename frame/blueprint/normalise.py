"""Normalisation: equal networks become equal lists of layers, however they were written.

Each step takes and returns primitive layers. `Identity` stands where a shortcut is empty and
nowhere else; `Flatten` stands only where it changes something, or where an fc reads an image whose
number of channels is no multiple of 8; `SoftmaxCE` stands at the end of a classifier.
"""

from __future__ import annotations

from collections.abc import Sequence

from frame.blueprint.layers import ELEMENTWISE, ArchLayer, LayerKind, make_layer
from frame.blueprint.shapes import ALIGNMENT, Flow, deduce
from frame.core.errors import InvalidArgumentError

Layers = Sequence[ArchLayer]


def normalise(layers: Layers, start: Flow, classes: int | None) -> tuple[ArchLayer, ...]:
    """Return the normal form with shapes.

    Args:
        layers: what the expansion gave.
        start: the input.
        classes: the number of classes of a classifier, None for any other network.

    Raises:
        InvalidArgumentError: a stem is empty, or the result is not one number a class.
    """
    found = deduce(normal_identities(layers), start)
    found = deduce(_without_idle_flattens(found, classes is not None), start)
    found = deduce(_with_flattens(found, classes is not None), start)
    if classes is not None:
        softmax = make_layer(LayerKind.SOFTMAX_CE, "softmax_ce", "softmax_ce", classes)
        found = deduce([*found, softmax], start)
    return found


# --- identity -------------------------------------------------------------------------------------


def normal_identities(layers: Layers) -> list[ArchLayer]:
    """Drop every Identity, then put one where a shortcut is empty.

    Raises:
        InvalidArgumentError: a stem is empty.
    """
    kept: list[ArchLayer] = []
    dropped: ArchLayer | None = None  # the Identity since the last layer that was kept
    for layer in layers:
        if layer.kind is LayerKind.IDENTITY:
            dropped = dropped or layer
            continue
        before = kept[-1].kind if kept else None
        if layer.kind is LayerKind.ADD2_SHORTCUT_END and before is LayerKind.ADD2_START:
            kept.append(dropped or _missing_identity(layer))
        if layer.kind is LayerKind.ADD2_END and before is LayerKind.ADD2_SHORTCUT_END:
            raise InvalidArgumentError(
                f"{layer.where}: expected layers in the stem, received identity() alone; the "
                "shortcut is the first argument of add2, the stem the second"
            )
        kept.append(layer)
        dropped = None
    return kept


def _missing_identity(end: ArchLayer) -> ArchLayer:
    place = end.path.removesuffix("add2_sc_end")
    return make_layer(LayerKind.IDENTITY, "identity", f"{place}identity")


# --- flatten --------------------------------------------------------------------------------------


def _without_idle_flattens(layers: Layers, classifier: bool) -> list[ArchLayer]:
    """Drop the Flattens that change nothing: of features, and before an fc, which flattens."""
    return [
        layer
        for index, layer in enumerate(layers)
        if layer.kind is not LayerKind.FLATTEN or not _is_idle(layers, index, classifier)
    ]


def _is_idle(layers: Layers, index: int, classifier: bool) -> bool:
    flow_in = _is_features(layers, index)
    following = (layer for layer in layers[index + 1 :] if layer.kind not in ELEMENTWISE)
    reader = next(following, None)
    if reader is None:
        return flow_in or classifier  # a classifier gets its Flatten where one is needed
    return flow_in or reader.kind in (LayerKind.FC, LayerKind.FLATTEN)


def _is_features(layers: Layers, index: int) -> bool:
    """Tell whether layer `index` reads features that a layer before it made."""
    for layer in reversed(layers[:index]):
        if layer.kind in (LayerKind.FC, LayerKind.GAP, LayerKind.FLATTEN):
            return True
        if layer.kind not in ELEMENTWISE and layer.kind is not LayerKind.BN1D:
            return False
    return False


def _with_flattens(layers: Layers, classifier: bool) -> list[ArchLayer]:
    found: list[ArchLayer] = []
    for layer in layers:
        if layer.kind is LayerKind.FC and _unaligned(layer):
            found.append(_flatten(f"{layer.path}_flatten"))
        found.append(layer)
    if classifier and layers and layers[-1].out_shape[1:3] != (1, 1):
        found.append(_flatten("flatten"))
    return found


def _unaligned(layer: ArchLayer) -> bool:
    _, height, width, channels = layer.in_shape
    return height * width > 1 and channels % ALIGNMENT != 0


def _flatten(path: str) -> ArchLayer:
    return make_layer(LayerKind.FLATTEN, "flatten_1", path, 1)
