"""Layers that mix channels frequency by frequency: spectral convolutions and Fourier operators.

Complex numbers are pairs (real, imaginary) along the last axis. One mode is one complex matrix over
the channels; all modes are one batched product of real matrices of twice the size:

    (re, im) @ [[W_re, W_im], [-W_im, W_re]] = (re W_re - im W_im, re W_im + im W_re)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from frame import ops
from frame.core.dtypes import DTypeLike, float32
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import shape_text
from frame.ir.graph import Value
from frame.nn.checks import choice, layer, of_shape
from frame.nn.common import Conv1d
from frame.nn.layers import Conv2d, items_of, positive
from frame.nn.module import Module, Scope
from frame.nn.parameters import Initialiser, ParamSpec, normal, param, uniform

Complex = tuple[Value, Value]


def _sizes(kind: str, x: Value) -> tuple[int, ...]:
    """Return the sizes behind the channels, which must be known."""
    found = tuple(size for size in x.shape[2:] if isinstance(size, int))
    if len(found) != x.rank - 2:
        raise InvalidArgumentError(
            f"{kind} needs known sizes behind the channels, received {shape_text(x.shape)}"
        )
    return found


def _check_modes(kind: str, what: str, modes: int, most: int, size: int) -> None:
    if modes > most:
        raise InvalidArgumentError(
            f"{kind} keeps {modes} modes of {what}, but a size of {size} has {most}"
        )


def _mixed(z: Value, real: Value, imaginary: Value) -> Value:
    """Return the modes z [N, I, M, 2], each times its matrix [I, O]: [N, O, M, 2]."""
    batch, inputs, modes, _ = z.shape
    outputs = real.shape[2]
    upper = ops.concat([real, imaginary], axis=2)
    lower = ops.concat([-imaginary, real], axis=2)
    rows = ops.reshape(ops.transpose(z, (2, 0, 3, 1)), (modes, batch, 2 * inputs))
    y = ops.matmul(rows, ops.concat([upper, lower], axis=1))
    return ops.transpose(ops.reshape(y, (modes, batch, 2, outputs)), (1, 3, 0, 2))


def _padded(x: Value, axis: int, size: int) -> Value:
    """Return x with zeros behind its end along an axis, up to a size."""
    high = [0] * x.rank
    high[axis] = size - int(x.shape[axis])  # type: ignore[arg-type]
    return ops.pad(x, (0,) * x.rank, tuple(high)) if any(high) else x


def _weights(
    modes: Sequence[int], inputs: int, outputs: int, dtype: DTypeLike, init: Initialiser | None
) -> list[ParamSpec]:
    start = init or uniform(0.0, 1.0 / (inputs * outputs))
    shape = (*modes, inputs, outputs)
    return [param(shape, start, dtype=dtype, name=f"weight_{part}") for part in ("re", "im")]


# --- one axis -------------------------------------------------------------------------------------


def _build_spectral1d(self: Scope, x: Value) -> Value:
    modes = self.options["modes"]
    of_shape("SpectralConv1d", x, "N", self.options["in_channels"], "L")
    (size,) = _sizes("SpectralConv1d", x)
    _check_modes("SpectralConv1d", "the length", modes, size // 2 + 1, size)
    y = _mixed(ops.rfft(x, count=modes), self.weight_re, self.weight_im)
    return ops.irfft(y, n=size)


def SpectralConv1d(
    in_channels: int,
    out_channels: int,
    modes: int,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
    init: Initialiser | None = None,
) -> Module:
    """Return the spectral convolution [N, in_channels, L] -> [N, out_channels, L].

    The lowest `modes` frequencies of x, from the mean on, are each multiplied by a complex matrix;
    all others become zero. The parameters weight_re and weight_im are [modes, in_channels,
    out_channels] and begin uniform in [0, 1 / (in_channels * out_channels)), as the authors' do.
    They don't depend on L, which must have as many frequencies: modes <= L // 2 + 1. Source: Li et
    al., "Fourier Neural Operator", ICLR 2021, arXiv 2010.08895.

    Args:
        in_channels: channels of x.
        out_channels: channels of the result.
        modes: how many frequencies are kept.
        name: the name in the parent.
        dtype: the dtype of the parameters.
        init: the initialiser of both parameters.
    """
    options = {
        "in_channels": positive("in_channels", in_channels),
        "out_channels": positive("out_channels", out_channels),
        "modes": positive("modes", modes),
    }
    specs = _weights((modes,), in_channels, out_channels, dtype, init)
    return layer("SpectralConv1d", _build_spectral1d, options, specs, name=name)


def _build_filter(self: Scope, x: Value) -> Value:
    size = self.options["size"]
    of_shape("FourierFilter1d", x, "N", self.options["channels"], size)
    re, im = _parts(ops.rfft(x))
    real, imaginary = self.weight_re, self.weight_im
    y = re * real - im * imaginary, re * imaginary + im * real
    return ops.irfft(ops.stack(y, axis=-1), n=size)


def _parts(z: Value) -> Complex:
    return z[..., 0], z[..., 1]


def FourierFilter1d(
    channels: int,
    size: int,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
    init: Initialiser | None = None,
) -> Module:
    """Return a learned filter of each channel in the frequency domain: [N, channels, size].

    irfft(rfft(x) * w), a circular convolution with a filter as long as the sequence. The parameters
    weight_re and weight_im are [channels, size // 2 + 1] and begin normal with the deviation 0.02.
    Source: Rao et al., "Global Filter Networks", NeurIPS 2021, arXiv 2107.00645.

    Args:
        channels: channels of x.
        size: the length of the sequences.
        name: the name in the parent.
        dtype: the dtype of the parameters.
        init: the initialiser of both parameters.
    """
    shape = (positive("channels", channels), positive("size", size) // 2 + 1)
    start = init or normal(0.0, 0.02)
    specs = [param(shape, start, dtype=dtype, name=f"weight_{part}") for part in ("re", "im")]
    options = {"channels": channels, "size": size}
    return layer("FourierFilter1d", _build_filter, options, specs, name=name)


# --- two axes -------------------------------------------------------------------------------------


def _joined(parts: Complex) -> Value:
    return ops.stack(parts, axis=-1)


def _rows_of_spectrum(z: Value, modes: int) -> Value:
    """Return the modes of the complex transform over the last axis of z [..., 2, H], which holds
    real and imaginary parts: [..., 2 * modes, 2], frequencies 0 to modes - 1, then -modes to -1."""
    found = ops.rfft(z, count=modes + 1)
    (a, b), (c, d) = _parts(found[..., 0, :, :]), _parts(found[..., 1, :, :])
    # With A and B the transforms of the parts, Z[k] = A[k] + i B[k], and Z[-k] is the same of their
    # conjugates.
    above = _joined((a - d, b + c))[..., :modes, :]
    below = _joined((a + d, c - b))[..., 1 : modes + 1, :]
    return ops.concat([above, ops.flip(below, axes=(below.rank - 2,))], axis=below.rank - 2)


def _signal_of_rows(z: Value, size: int) -> Value:
    """Return the inverse of `_rows_of_spectrum` where all other frequencies are zero."""
    axis, modes = z.rank - 2, int(z.shape[-2]) // 2  # type: ignore[arg-type]
    above, below = z[..., :modes, :], ops.flip(z[..., modes:, :], axes=(axis,))
    highest = below[..., modes - 1 :, :]
    # The middle frequency of an even size is its own negative, as 0 is.
    above, below = (
        ops.concat([above, highest], axis=axis) if 2 * modes == size else above,
        ops.concat([above[..., :1, :], below], axis=axis),
    )
    (a, b), (c, d) = (_parts(_padded(part, axis, modes + 1)) for part in (above, below))
    # The real part of the signal has the spectrum (Z[k] + conj Z[-k]) / 2, the imaginary part
    # (Z[k] - conj Z[-k]) / 2i.
    parts = _joined((a + c, b - d)), _joined((b + d, c - a))
    return ops.irfft(ops.stack(parts, axis=z.rank - 2) * 0.5, n=size)


def _build_spectral2d(self: Scope, x: Value) -> Value:
    rows, columns = self.options["modes"]
    kind = "SpectralConv2d"
    of_shape(kind, x, "N", self.options["in_channels"], "H", "W")
    height, width = _sizes(kind, x)
    _check_modes(kind, "the height", rows, height // 2, height)
    _check_modes(kind, "the width", columns, width // 2 + 1, width)
    along = ops.transpose(ops.rfft(x, count=columns), (0, 1, 3, 4, 2))  # [N, I, columns, 2, H]
    z = _rows_of_spectrum(along, rows)
    batch, inputs = x.shape[:2]
    modes = columns * 2 * rows
    weights = (ops.reshape(w, (modes, *w.shape[2:])) for w in (self.weight_re, self.weight_im))
    y = _mixed(ops.reshape(z, (batch, inputs, modes, 2)), *weights)
    y = ops.reshape(y, (batch, y.shape[1], columns, 2 * rows, 2))
    back = ops.transpose(_signal_of_rows(y, height), (0, 1, 4, 2, 3))  # [N, O, H, columns, 2]
    return ops.irfft(back, n=width)


def SpectralConv2d(
    in_channels: int,
    out_channels: int,
    modes: int | Sequence[int],
    *,
    name: str = "",
    dtype: DTypeLike = float32,
    init: Initialiser | None = None,
) -> Module:
    """Return the spectral convolution of images [N, in_channels, H, W] -> [N, out_channels, H, W].

    Of the two-dimensional transform, columns 0 to modes[1] - 1 of the rows -modes[0] to
    modes[0] - 1 are each multiplied by a complex matrix; all others become zero. The parameters
    weight_re and weight_im are [modes[1], 2 * modes[0], in_channels, out_channels], the rows in the
    order 0, 1, ..., -modes[0], ..., -1; they begin as those of SpectralConv1d. An image must have
    these frequencies: 2 * modes[0] <= H, modes[1] <= W // 2 + 1. Source: Li et al., "Fourier Neural
    Operator", ICLR 2021, arXiv 2010.08895.

    Args:
        in_channels: channels of x.
        out_channels: channels of the result.
        modes: how many frequencies are kept, a number or (rows, columns).
        name: the name in the parent.
        dtype: the dtype of the parameters.
        init: the initialiser of both parameters.
    """
    rows, columns = items_of("modes", modes, {2: "(rows, columns)"})
    options = {
        "in_channels": positive("in_channels", in_channels),
        "out_channels": positive("out_channels", out_channels),
        "modes": (positive("modes", rows), positive("modes", columns)),
    }
    specs = _weights((columns, 2 * rows), in_channels, out_channels, dtype, init)
    return layer("SpectralConv2d", _build_spectral2d, options, specs, name=name)


# --- blocks of the Fourier neural operator --------------------------------------------------------

_ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "gelu": lambda x: ops.gelu(x),
    "relu": lambda x: ops.relu(x),
    "silu": lambda x: ops.silu(x),
    "tanh": lambda x: ops.tanh(x),
    "none": lambda x: x,
}


def _build_fno(self: Scope, x: Value) -> Value:
    activation = _ACTIVATIONS[self.options["activation"]]
    return activation(self.spectral(x) + self.bypass(x))


def _fno(kind: str, spectral: Module, bypass: Module, activation: str, name: str) -> Module:
    options = {"activation": choice("activation", activation, tuple(_ACTIVATIONS))}
    children = {"spectral": spectral, "bypass": bypass}
    return layer(kind, _build_fno, options, (), children, name)


def Fno1dBlock(
    in_channels: int,
    out_channels: int,
    modes: int,
    activation: str = "gelu",
    *,
    name: str = "",
    dtype: DTypeLike = float32,
) -> Module:
    """Return a block of the Fourier neural operator: [N, in_channels, L] -> [N, out_channels, L].

    activation(spectral(x) + bypass(x)): a SpectralConv1d of `modes` frequencies and a convolution
    of width 1 with a bias. Source: Li et al., ICLR 2021, arXiv 2010.08895.

    Args:
        in_channels: channels of x.
        out_channels: channels of the result.
        modes: how many frequencies the spectral convolution keeps.
        activation: "gelu", "relu", "silu", "tanh", or "none" for the last block.
        name: the name in the parent.
        dtype: the dtype of the parameters.
    """
    spectral = SpectralConv1d(in_channels, out_channels, modes, dtype=dtype)
    bypass = Conv1d(in_channels, out_channels, 1, dtype=dtype)
    return _fno("Fno1dBlock", spectral, bypass, activation, name)


def Fno2dBlock(
    in_channels: int,
    out_channels: int,
    modes: int | Sequence[int],
    activation: str = "gelu",
    *,
    name: str = "",
    dtype: DTypeLike = float32,
) -> Module:
    """Return a block of the Fourier neural operator over images [N, in_channels, H, W].

    activation(spectral(x) + bypass(x)): a SpectralConv2d and a 1 x 1 convolution with a bias.
    Arguments and source are those of Fno1dBlock; `modes` is a number or (rows, columns).
    """
    spectral = SpectralConv2d(in_channels, out_channels, modes, dtype=dtype)
    bypass = Conv2d(in_channels, out_channels, 1, dtype=dtype)
    return _fno("Fno2dBlock", spectral, bypass, activation, name)
