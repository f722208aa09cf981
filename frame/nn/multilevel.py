"""Wavelet transforms over several levels: Wavedec1d, Wavedec2d and their inverses.

Each level takes the approximation of the one before apart; the details of every level are results.
Images of all channels stand side by side as a batch, [N * C, 1, H, W], as in `frame.nn.wavelets`.
"""

from __future__ import annotations

from collections.abc import Sequence

from frame import ops
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import Size, shape_text
from frame.ir.graph import Value
from frame.nn.checks import layer, of_shape
from frame.nn.daubechies import moments
from frame.nn.layers import positive
from frame.nn.module import Module, Scope
from frame.nn.wavelets import cut, decomposed, inverse_options, reconstructed, wavelet_options

MOST_LEVELS = 62
_AXES = {"Wavedec1d": (3,), "Wavedec2d": (2, 3), "Waverec1d": (3,), "Waverec2d": (2, 3)}
_FORMS = {1: ("N", "C", "L"), 2: ("N", "C", "H", "W")}


def _images(x: Value, bands: int, dimensions: int) -> Value:
    """Return the subbands of x [N, C * bands, ...] as images [N * C, bands, H, W]."""
    rest = x.shape[2:] if dimensions == 2 else (1, *x.shape[2:])
    channels = x.shape[1]
    if not isinstance(channels, int) or channels % bands:
        raise InvalidArgumentError(
            f"expected details of {bands} subbands of each channel, received the shape "
            f"{shape_text(x.shape)}, whose axis 1 does not divide by {bands}"
        )
    return ops.reshape(x, (x.shape[0] * (channels // bands), bands, *rest))


def _levels(options: dict[str, object], sizes: Sequence[Size]) -> int:
    """Return how many levels there are: given, or as many as keep a window within the signal."""
    given = options["levels"]
    if isinstance(given, int):
        return given
    taps = 2 * moments(str(options["wavelet"]))
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes):
        raise InvalidArgumentError(
            f"levels must be a number where a size is a symbol, received {shape_text(tuple(sizes))}"
        )
    most = (min(known) // (taps - 1)).bit_length() - 1
    if most < 1:
        raise InvalidArgumentError(
            f"no level of {options['wavelet']} fits into {shape_text(tuple(known))}: its windows "
            f"are {taps} wide; pass levels=1 to have one all the same"
        )
    return most


def _build_wavedec(self: Scope, x: Value) -> tuple[Value, ...]:
    options = dict(self.options)
    kind = options.pop("op")
    axes = _AXES[kind]
    of_shape(kind, x, *_FORMS[len(axes)])
    images, batch, details = _images(x, 1, len(axes)), x.shape[0], []
    channels = x.shape[1]
    for _ in range(_levels(options, x.shape[2:])):
        bands = decomposed(kind, images, options, axes)
        rest = bands.shape[4 - len(axes) :]
        some = bands[:, 1:]
        details.append(ops.reshape(some, (batch, channels * (2 ** len(axes) - 1), *rest)))
        images = bands[:, :1]
    low = ops.reshape(images, (batch, channels, *images.shape[4 - len(axes) :]))
    return (low, *reversed(details))


def _build_waverec(self: Scope, low: Value, *details: Value) -> Value:
    options = self.options
    kind = options["op"]
    axes = _AXES[kind]
    of_shape(kind, low, *_FORMS[len(axes)])
    if not details:
        raise InvalidArgumentError(f"{kind} takes an approximation and details, received no detail")
    for some in details:
        of_shape(kind, some, *_FORMS[len(axes)])
        low = cut(kind, low, some.shape[2:])  # one more sample, where the level below was odd
        bands = [_images(low, 1, len(axes)), _images(some, 2 ** len(axes) - 1, len(axes))]
        images = reconstructed(kind, ops.concat(bands, axis=1), options, axes)
        low = ops.reshape(images, (*low.shape[:2], *images.shape[4 - len(axes) :]))
    return cut(kind, low, options["size"])


def _decomposition(kind: str, wavelet: str, mode: str, levels: int | None, name: str) -> Module:
    given = None if levels is None else positive("levels", levels, most=MOST_LEVELS)
    options = {**wavelet_options(wavelet, mode), "levels": given, "op": kind}
    return layer(kind, _build_wavedec, options, name=name)


def Wavedec1d(
    wavelet: str = "haar", mode: str = "symmetric", levels: int | None = None, *, name: str = ""
) -> Module:
    """Return the wavelet decomposition of sequences [N, C, L] over several levels.

    The results are the approximation [N, C, L'] of the last level, then the details [N, C, L'] of
    each level, the coarsest first: those of `pywt.wavedec`. Sources: Mallat, IEEE PAMI 11 (1989);
    Daubechies, CPAM 41 (1988).

    Args:
        wavelet: the wavelet, see Dwt1d.
        mode: how signals go on beyond their ends, see Dwt1d.
        levels: how many levels there are; if left out, as many as have a window that lies within
            its signal, floor(log2(L / (taps - 1))).
        name: the name in the parent.
    """
    return _decomposition("Wavedec1d", wavelet, mode, levels, name)


def Wavedec2d(
    wavelet: str = "haar", mode: str = "symmetric", levels: int | None = None, *, name: str = ""
) -> Module:
    """Return the wavelet decomposition of images [N, C, H, W] over several levels.

    The results are the approximation [N, C, H', W'] of the last level, then the details
    [N, 3 * C, H', W'] of each level, the coarsest first, with LH, HL, HH of a channel side by side:
    those of `pywt.wavedec2`. Arguments and sources are those of Wavedec1d.
    """
    return _decomposition("Wavedec2d", wavelet, mode, levels, name)


def Waverec1d(
    wavelet: str = "haar", mode: str = "symmetric", size: int | None = None, *, name: str = ""
) -> Module:
    """Return the inverse of Wavedec1d: its results -> [N, C, L], as `pywt.waverec`.

    Source: Mallat, IEEE PAMI 11 (1989).

    Args:
        wavelet: the wavelet of the decomposition.
        mode: its mode.
        size: L, where the signal had an odd size; else the result has one sample more.
        name: the name in the parent.
    """
    options = {**inverse_options(wavelet, mode, size, 1), "op": "Waverec1d"}
    return layer("Waverec1d", _build_waverec, options, name=name)


def Waverec2d(
    wavelet: str = "haar",
    mode: str = "symmetric",
    size: int | Sequence[int] | None = None,
    *,
    name: str = "",
) -> Module:
    """Return the inverse of Wavedec2d: its results -> [N, C, H, W], as `pywt.waverec2`.

    Arguments and source are those of Waverec1d; `size` is (H, W), or one number for both.
    """
    options = {**inverse_options(wavelet, mode, size, 2), "op": "Waverec2d"}
    return layer("Waverec2d", _build_waverec, options, name=name)
