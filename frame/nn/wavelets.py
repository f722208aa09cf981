"""Discrete wavelet transforms as layers without parameters: Dwt1d, Dwt2d and their inverses.

A pass runs the two filters of a wavelet over one axis with a stride of two; the images of all
channels stand side by side as a batch, so that a pass is one convolution of one channel:

    x [N * C, 1, H, W] -> extended at its ends by the mode -> [N * C, 2, H, W / 2]

Haar's filters, of two taps, run over both axes of an image in one convolution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Size, exact_divide, known, shape_text
from frame.ir.graph import Value
from frame.nn.checks import choice, layer, of_shape
from frame.nn.daubechies import filters, moments
from frame.nn.layers import pair, positive
from frame.nn.module import Module, Scope

# The modes of PyWavelets that repeat samples -> those of numpy.pad.
_REPEATED: Mapping[str, str] = {
    "constant": "edge",
    "symmetric": "symmetric",
    "reflect": "reflect",
    "periodic": "wrap",
}
_COMBINED = ("smooth", "antisymmetric", "antireflect")  # those that weigh samples
MODES = ("zero", *_REPEATED, *_COMBINED, "periodization", "valid")
"""How a signal goes on beyond its ends; "valid" lets no window leave it."""

JOINT = 2
"""Filters of up to so many taps run over both axes of an image at once."""

Axes = tuple[int, ...]


def _kernels(wavelet: str, axes: Axes, like: Value) -> Value:
    """Return the filters of a pass [2 ** axes, 1, height, width], the low ones first."""
    pair = filters(wavelet)
    if len(axes) == 2:
        # Subband 2 * h + v: h is high along the rows, v from row to row.
        planes = np.einsum("hx,vy->hvyx", pair, pair).reshape(4, *(pair.shape[1],) * 2)
    else:
        planes = np.expand_dims(pair, 2 if axes == (2,) else 1)
    return ops.constant(planes[:, None], like.dtype)


def _passes(taps: int, axes: Axes) -> tuple[Axes, ...]:
    return (axes,) if taps <= JOINT else tuple((axis,) for axis in reversed(axes))


# --- decomposition --------------------------------------------------------------------------------


def _known(kind: str, x: Value, axis: int) -> int:
    size = x.shape[axis]
    if not isinstance(size, int) or size < 1:
        raise InvalidArgumentError(
            f"{kind} needs axes of known size of 1 or more behind the channels, received "
            f"{shape_text(x.shape)}; the mode 'valid' takes any"
        )
    return size


def _beyond(size: int, taps: int, mode: str) -> tuple[int, int]:
    """Return how many samples a pass reads before and behind a signal (of even size for
    periodization)."""
    if mode == "valid":
        return 0, 0
    if mode == "periodization":
        return (taps // 2 - 1,) * 2
    return taps - 2, taps - 2 + size % 2


def _extended(kind: str, x: Value, axis: int, taps: int, mode: str) -> Value:
    """Return x with the samples that a pass over `axis` reads beyond its ends."""
    if mode == "valid":
        return x
    size = _known(kind, x, axis)
    before, behind = _beyond(size, taps, mode)
    if mode == "zero":
        low, high = ([0] * x.rank for _ in range(2))
        low[axis], high[axis] = before, behind
        return ops.pad(x, tuple(low), tuple(high)) if before or behind else x
    if mode in _COMBINED:
        return _with_combined_ends(x, axis, size, before, behind, mode)
    places = np.arange(size)
    if mode == "periodization":
        places = np.append(places, places[-1:]) if size % 2 else places
        places = np.pad(places, (before, behind), "wrap")
    else:
        places = np.pad(places, (before, behind), _REPEATED[mode])  # type: ignore[call-overload]
    return _taken(x, places, axis)


def _combined(size: int, before: int, behind: int, mode: str) -> np.ndarray:
    """Return the weights [before + size + behind, size] of the samples that a signal goes on with.

    "smooth" is a line through the last two samples, "antisymmetric" the mirror image with the other
    sign, "antireflect" the image in the last sample as a point.
    """
    own, around = np.eye(size), ((before, behind), (0, 0))
    if size == 1 and mode != "antisymmetric":
        return np.pad(own, around, "edge")
    if mode == "antireflect":
        return np.pad(own, around, "reflect", reflect_type="odd")
    if mode == "antisymmetric":
        images = np.arange(-before, size + behind) // size
        signs = np.where(images % 2, -1.0, 1.0)[:, None]
        return np.pad(own, around, "symmetric") * signs
    steps = np.arange(1, max(before, behind) + 1)[:, None]
    low = own[0] + steps[:before][::-1] * (own[0] - own[1])
    high = own[-1] + steps[:behind] * (own[-1] - own[-2])
    return np.concatenate([low, own, high])


def _with_combined_ends(
    x: Value, axis: int, size: int, before: int, behind: int, mode: str
) -> Value:
    """Return x with samples before and behind it that are sums of weighted ones of its own."""
    # The ends of a long signal depend on as many samples as they have, and one more.
    read = min(size, max(before, behind, 1) + 1)
    weights = _combined(read, before, behind, mode)
    ends = (
        (0, weights[:before]),
        (size - read, weights[before + read :]),
    )
    low, high = (_weighed(x, axis, start, start + read, rows) for start, rows in ends)
    return ops.concat([*low, x, *high], axis=axis)


def _weighed(x: Value, axis: int, start: int, stop: int, weights: np.ndarray) -> list[Value]:
    """Return the sums of samples `start` to `stop` by each row of weights; none for no row."""
    if not len(weights):
        return []
    starts, stops = [0] * x.rank, list(x.shape)
    starts[axis], stops[axis] = start, stop
    part = ops.slice(x, tuple(starts), tuple(stops))
    rows = ops.constant(weights, x.dtype)
    if axis == x.rank - 1:
        return [ops.matmul(part, rows, transpose_b=True)]
    return [ops.matmul(rows, part)]


def _taken(x: Value, places: np.ndarray, axis: int) -> Value:
    if np.array_equal(places, np.arange(known(x.shape[axis]))):
        return x
    return ops.gather(x, ops.constant(places.astype(np.int64)), axis=axis)


def _strides(axes: Axes) -> tuple[int, int]:
    return (2 if 2 in axes else 1), (2 if 3 in axes else 1)


def decomposed(kind: str, images: Value, options: Mapping[str, str], axes: Axes) -> Value:
    """Return the subbands of images [M, 1, H, W]: [M, 2 ** axes, H', W']."""
    wavelet, mode = options["wavelet"], options["mode"]
    taps = 2 * moments(wavelet)
    batch = images.shape[0]
    for some in _passes(taps, axes):
        for axis in some:
            images = _extended(kind, images, axis, taps, mode)
        kernels = _kernels(wavelet, some, images)
        images = ops.conv2d(images, kernels, strides=_strides(some))
        rows = images.shape[0] * images.shape[1]
        images = ops.reshape(images, (rows, 1, *images.shape[2:]))
    return ops.reshape(images, (batch, 2 ** len(axes), *images.shape[2:]))


def _build_dwt1d(self: Scope, x: Value) -> Value:
    batch, channels, size = of_shape("Dwt1d", x, "N", "C", "L").shape
    images = ops.reshape(x, (batch * channels, 1, 1, size))
    y = decomposed("Dwt1d", images, self.options, (3,))
    return ops.reshape(y, (batch, channels * 2, y.shape[3]))


def _build_dwt2d(self: Scope, x: Value) -> Value:
    batch, channels, height, width = of_shape("Dwt2d", x, "N", "C", "H", "W").shape
    images = ops.reshape(x, (batch * channels, 1, height, width))
    y = decomposed("Dwt2d", images, self.options, (2, 3))
    return ops.reshape(y, (batch, channels * 4, *y.shape[2:]))


def wavelet_options(wavelet: str, mode: str) -> dict[str, str]:
    """Return the checked options that all transforms share."""
    moments(wavelet)
    return {"wavelet": wavelet, "mode": choice("mode", mode, MODES)}


def Dwt1d(wavelet: str = "haar", mode: str = "symmetric", *, name: str = "") -> Module:
    """Return the discrete wavelet transform [N, C, L] -> [N, 2 * C, L'], one level.

    Channel 2 * c of the result is the approximation of channel c, the next one its detail; both
    are those of `pywt.dwt`. L' = floor((L + taps - 1) / 2); ceil(L / 2) for "periodization", where
    the transform is an orthogonal matrix; floor((L - taps) / 2) + 1 for "valid". It has no
    parameters. Sources: Haar, Mathematische Annalen 69 (1910); Mallat, IEEE PAMI 11 (1989);
    Daubechies, CPAM 41 (1988).

    Args:
        wavelet: "haar", or "db1" to "db38" with the meaning of PyWavelets: dbN has N vanishing
            moments and 2 * N taps. Where a text numbers wavelets by taps, its "db4" (also D4, the
            four taps (1 + r, 3 + r, 3 - r, 1 - r) / (4 * sqrt(2)) with r = sqrt(3)) is "db2" here.
        mode: how x goes on beyond its ends, as in PyWavelets: "zero", "constant", "symmetric",
            "reflect", "periodic", "smooth", "antisymmetric", "antireflect" or "periodization"; or
            "valid": it does not, the windows are those of a convolution without padding.
        name: the name in the parent.
    """
    return layer("Dwt1d", _build_dwt1d, wavelet_options(wavelet, mode), name=name)


def Dwt2d(wavelet: str = "haar", mode: str = "symmetric", *, name: str = "") -> Module:
    """Return the discrete wavelet transform of images: [N, C, H, W] -> [N, 4 * C, H', W'].

    Channels 4 * c to 4 * c + 3 of the result are the subbands of channel c: LL, LH, HL, HH, which
    `pywt.dwt2` calls cA, cH, cV, cD. LH is high from row to row (horizontal edges), HL along the
    rows. Arguments, sizes and sources are those of Dwt1d.
    """
    return layer("Dwt2d", _build_dwt2d, wavelet_options(wavelet, mode), name=name)


# --- reconstruction -------------------------------------------------------------------------------


def _crop(taps: int, mode: str) -> tuple[int, int]:
    """Return how many coefficients are repeated at each end, and how many samples of the
    transposed convolution are cropped there."""
    if mode == "valid":
        return 0, 0
    if mode == "periodization":
        repeated = taps // 4
        return repeated, taps // 2 - 1 + 2 * repeated
    return 0, taps - 2


def reconstructed(kind: str, images: Value, options: Mapping[str, str], axes: Axes) -> Value:
    """Return images [M, 1, H, W] of their subbands [M, 2 ** axes, H', W']."""
    wavelet, mode = options["wavelet"], options["mode"]
    taps = 2 * moments(wavelet)
    repeated, crop = _crop(taps, mode)
    for some in reversed(_passes(taps, axes)):
        bands = 2 ** len(some)
        rows = exact_divide(images.shape[0] * images.shape[1], bands)
        images = ops.reshape(images, (rows, bands, *images.shape[2:]))
        for axis in some if repeated else ():
            places = np.pad(np.arange(_known(kind, images, axis)), repeated, "wrap")
            images = _taken(images, places, axis)
        padding = tuple(crop if axis in some else 0 for axis in (2, 2, 3, 3))
        kernels = _kernels(wavelet, some, images)
        images = ops.conv_transpose2d(images, kernels, strides=_strides(some), padding=padding)
    return images


def cut(kind: str, y: Value, sizes: Sequence[Size] | None) -> Value:
    """Return y cut to the sizes of the signal, one less than its own where that was odd."""
    if sizes is None:
        return y
    found = y.shape[2:]
    pairs = list(zip(sizes, found, strict=True))
    if any(isinstance(own, int) and size not in (own, own - 1) for size, own in pairs):
        raise InvalidArgumentError(
            f"size of {kind} must be {shape_text(found)}, or one less for an odd size, got "
            f"{shape_text(tuple(sizes))}"
        )
    return ops.slice(y, (0,) * y.rank, (*y.shape[:2], *sizes))


def _channels(kind: str, x: Value, bands: int) -> int:
    channels = x.shape[1]
    if not isinstance(channels, int) or channels % bands:
        raise InvalidArgumentError(
            f"{kind} takes {bands} subbands of each channel side by side, received "
            f"{shape_text(x.shape)}, whose axis 1 does not divide by {bands}"
        )
    return channels // bands


def _build_idwt1d(self: Scope, x: Value) -> Value:
    batch, _, size = of_shape("Idwt1d", x, "N", "C", "L").shape
    channels = _channels("Idwt1d", x, 2)
    images = ops.reshape(x, (batch * channels, 2, 1, size))
    y = reconstructed("Idwt1d", images, self.options, (3,))
    return cut("Idwt1d", ops.reshape(y, (batch, channels, y.shape[3])), self.options["size"])


def _build_idwt2d(self: Scope, x: Value) -> Value:
    batch, _, height, width = of_shape("Idwt2d", x, "N", "C", "H", "W").shape
    channels = _channels("Idwt2d", x, 4)
    images = ops.reshape(x, (batch * channels, 4, height, width))
    y = reconstructed("Idwt2d", images, self.options, (2, 3))
    return cut("Idwt2d", ops.reshape(y, (batch, channels, *y.shape[2:])), self.options["size"])


def inverse_options(
    wavelet: str, mode: str, size: int | Sequence[int] | None, dimensions: int
) -> dict[str, Any]:
    """Return the options of an inverse transform: those of the wavelet, and the sizes to cut to."""
    sizes: tuple[int, ...] | None = None
    if size is not None and dimensions == 1:
        sizes = (positive("size", size),)  # type: ignore[arg-type]
    elif size is not None:
        sizes = pair("size", size)
    return {**wavelet_options(wavelet, mode), "size": sizes}


def Idwt1d(
    wavelet: str = "haar", mode: str = "symmetric", size: int | None = None, *, name: str = ""
) -> Module:
    """Return the inverse of Dwt1d: [N, 2 * C, L'] -> [N, C, L], as `pywt.idwt`.

    L = 2 * L' - taps + 2, and 2 * L' for "periodization". After "valid" the taps - 2 samples at
    each end, which too few windows read, come out incomplete: it is then the transposed transform.
    Source: Mallat, IEEE PAMI 11 (1989).

    Args:
        wavelet: the wavelet of the decomposition.
        mode: its mode.
        size: L, where the signal had an odd size; else the result has one sample more.
        name: the name in the parent.
    """
    options = inverse_options(wavelet, mode, size, 1)
    return layer("Idwt1d", _build_idwt1d, options, name=name)


def Idwt2d(
    wavelet: str = "haar",
    mode: str = "symmetric",
    size: int | Sequence[int] | None = None,
    *,
    name: str = "",
) -> Module:
    """Return the inverse of Dwt2d: [N, 4 * C, H', W'] -> [N, C, H, W], as `pywt.idwt2`.

    Arguments and source are those of Idwt1d; `size` is (H, W), or one number for both.
    """
    options = inverse_options(wavelet, mode, size, 2)
    return layer("Idwt2d", _build_idwt2d, options, name=name)
