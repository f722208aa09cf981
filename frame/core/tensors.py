"""Tensors: a shape and a dtype over memory that a device owns.

On the host a tensor is a numpy array of native byte order, zero-copy in both directions. What lies
on another device is a storage that only its backend can read; `Tensor.to` and `Tensor.numpy` move
it through the transfer function that the runtime installs. Nothing else copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from frame.core import dlpack
from frame.core.dataclass import dataclass
from frame.core.devices import HOST, Device
from frame.core.dtypes import DType, dtype
from frame.core.errors import DeviceError, InvalidArgumentError
from frame.core.shapes import numel, shape_text

Array: TypeAlias = np.ndarray[Any, Any]


@runtime_checkable
class Storage(Protocol):
    """Memory that holds the elements of a tensor. A backend's storage adds what it needs."""

    @property
    def device(self) -> Device:
        """The device that owns the memory."""

    @property
    def nbytes(self) -> int:
        """The size of the memory in bytes."""


@runtime_checkable
class DeviceExport(Protocol):
    """What a storage of another device adds where its memory can be shared through DLPack.

    The shape and dtype are those of the tensor that the storage was made for. Both methods are
    those of the Python array API; `Tensor` hands its own calls on to them.
    """

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True, eq=False)
class HostStorage:
    """A numpy array in process memory; its strides and its write flag are those of the array."""

    array: Array

    @property
    def device(self) -> Device:
        """Always the host."""
        return HOST

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return int(self.array.nbytes)


Transfer: TypeAlias = "Callable[[Tensor, Device], Tensor]"

_transfer: Transfer | None = None


def set_transfer(function: Transfer | None) -> Transfer | None:
    """Install the function that copies a tensor to another device; return the one before."""
    global _transfer
    before, _transfer = _transfer, function
    return before


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tensor:
    """A tensor: `storage` seen as elements of `dtype` in `shape`.

    Make one with `from_numpy`, `from_dlpack` or `as_tensor`. The object never changes; the elements
    change where they share memory with an array that somebody writes.
    """

    storage: Storage
    shape: tuple[int, ...]
    dtype: DType

    def __post_init__(self) -> None:
        needed = int(numel(self.shape)) * self.dtype.itemsize  # type: ignore[arg-type]
        if self.storage.nbytes < needed:
            raise InvalidArgumentError(
                f"expected {needed} bytes for a tensor of shape {shape_text(self.shape)} and "
                f"dtype {self.dtype}, received a storage of {self.storage.nbytes}"
            )

    @property
    def device(self) -> Device:
        """The device that owns the memory."""
        return self.storage.device

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(numel(self.shape))  # type: ignore[arg-type]

    @property
    def nbytes(self) -> int:
        """The bytes that the elements take when dense."""
        return self.size * self.dtype.itemsize

    @property
    def readonly(self) -> bool:
        """True where the memory is on the host and must not be written."""
        array = self._host_array()
        return array is not None and not array.flags.writeable

    def numpy(self) -> Array:
        """Return the elements as a numpy array: the memory itself on the host, else a copy.

        Raises:
            DeviceError: the device's memory can't be read.
        """
        array = self._host_array()
        return array if array is not None else self.to(HOST).numpy()

    def to(self, device: Device | str) -> Tensor:
        """Return this tensor on `device`: itself where it is there already, else a copy.

        Raises:
            InvalidArgumentError: the text names no device.
            DeviceError: there is no way to that device.
        """
        target = Device.parse(device)
        if target == self.device:
            return self
        if _transfer is None:
            raise DeviceError(
                f"can't copy a tensor from {self.device} to {target}: no transfer function is "
                "installed; import frame.runtime first"
            )
        return _transfer(self, target)

    def copy(self) -> Tensor:
        """Return a dense host tensor with memory of its own."""
        return from_numpy(self.numpy(), copy=True)

    def item(self) -> Any:
        """Return the only element as a Python scalar.

        Raises:
            InvalidArgumentError: the tensor does not have exactly one element.
        """
        if self.size != 1:
            raise InvalidArgumentError(
                f"expected a tensor of one element, received shape {shape_text(self.shape)}"
            )
        return self.numpy().item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python scalars."""
        return self.numpy().tolist()

    def _host_array(self) -> Array | None:
        return self.storage.array if isinstance(self.storage, HostStorage) else None

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor of rank 0 has no length")
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self._host_array()
        if array is None:
            if not copy:
                raise InvalidArgumentError(
                    f"this tensor lives on {self.device} and can't be seen as an array without a "
                    "copy; call .numpy()"
                )
            return np.asarray(self.numpy(), dtype)
        return np.array(array, dtype=dtype, copy=copy)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        array, to_host = self._host_array(), tuple(dl_device or ()) == dlpack.HOST_DEVICE
        if array is None and not to_host and isinstance(self.storage, DeviceExport):
            return self.storage.__dlpack__(
                stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
            )
        if stream is not None:
            raise BufferError(f"host memory has no streams: expected None, received {stream!r}")
        if dl_device is not None and not to_host:
            raise BufferError(f"can't export to DLPack device {dl_device}; call .to() first")
        if array is None:
            if dl_device is None or copy is False:
                raise BufferError(f"can't export memory of {self.device}; call .to('cpu') first")
            array = self.numpy()
        return dlpack.export_array(array, self.dtype, max_version, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        if isinstance(self.storage, DeviceExport):
            return self.storage.__dlpack_device__()
        if self._host_array() is None:
            raise BufferError(f"{self.device} has no DLPack device number; call .to('cpu') first")
        return dlpack.HOST_DEVICE

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.numpy(), str(self.device)))

    def _summary(self) -> str:
        return f"shape={shape_text(self.shape)}, dtype={self.dtype}, device={self.device}"

    def __repr__(self) -> str:
        array = self._host_array()
        if array is None:
            return f"Tensor({self._summary()})"
        text = np.array2string(array, separator=", ", threshold=100, edgeitems=3, prefix="Tensor(")
        return f"Tensor({text}, {self._summary()})"

    def _repr_html_(self) -> str:
        """Return the notebook's view: a caption and a table of at most 8 x 8 elements."""
        caption = f"Tensor({self._summary()})"
        array = self._host_array()
        if array is None:
            body = f"<p>the elements are on {_escape(str(self.device))}; call .numpy()</p>"
            return f"<div><code>{_escape(caption)}</code>{body}</div>"
        plane, position = _last_plane(array)
        note = f" &nbsp; showing {_escape(position)}" if position else ""
        head = f"<div><code>{_escape(caption)}</code>{note}"
        return f"{head}{_html_table(plane)}</div>"


def _escape(text: str) -> str:
    import html  # only notebooks need it

    return html.escape(text)


_EDGE = 4  # rows and columns shown at each end of a longer axis


def _last_plane(array: Array) -> tuple[Array, str]:
    """Return the first matrix of an array, and the text of its index where there are others."""
    leading = max(array.ndim - 2, 0)
    position = f"[{', '.join(['0'] * leading + [':', ':'])}]" if leading else ""
    if array.size == 0:
        return np.empty((0, 0), array.dtype), ""
    return np.atleast_2d(array[(0,) * leading]), position


def _shown(length: int) -> Iterator[int | None]:
    """Yield the indices to show, with None for what is left out."""
    if length <= 2 * _EDGE:
        return iter(range(length))
    return itertools.chain(range(_EDGE), [None], range(length - _EDGE, length))


def _html_table(plane: Array) -> str:
    if plane.size == 0:
        return "<p>no elements</p>"
    from frame.core import views  # only notebooks need it

    columns = list(_shown(plane.shape[1]))
    rows = [[_text(plane, row, column) for column in columns] for row in _shown(plane.shape[0])]
    return views.table((), rows, "r" * len(columns))


def _text(plane: Array, row: int | None, column: int | None) -> str:
    if row is None or column is None:
        return "\u2026"
    value = plane[row, column].item()
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _rebuild(array: Array, device: str) -> Tensor:
    return from_numpy(array).to(device)


def from_numpy(array: Any, copy: bool = False) -> Tensor:
    """Return a host tensor over a numpy array, or over what `numpy.asarray` makes of a value.

    The memory is shared, strides and write flag included, unless `copy` is True or generated code
    could not read it: foreign byte order and unaligned elements are copied. A copy is dense.

    Raises:
        InvalidArgumentError: the array is masked, or frame has no such element type.
    """
    # np.ma loads on first use: asking for the attribute keeps it unloaded.
    if isinstance(array, np.ndarray) and hasattr(array, "mask"):
        raise InvalidArgumentError(
            "expected an array without a mask; call .filled(value) on the masked array first"
        )
    try:
        plain = np.asarray(array)
    except ValueError as problem:
        raise InvalidArgumentError(
            f"expected an array, received a {type(array).__name__}: {problem}"
        ) from problem
    element = dtype(plain.dtype)
    return _host_tensor(_readable(plain, element, copy), element)


def over_result(array: Array, element: DType) -> Tensor:
    """Return what `from_numpy` does, at once, for a dense native array that frame itself made."""
    tensor, storage = _new(Tensor), _new(HostStorage)
    _set_array(storage, array)
    _set_storage(tensor, storage)
    _set_shape(tensor, array.shape)
    _set_dtype(tensor, element)
    return tensor


# The slots themselves: what a frozen class forbids on objects that others have seen.
_new: Callable[[type], Any] = object.__new__
_set_array = HostStorage.__dict__["array"].__set__
_set_storage, _set_shape, _set_dtype = (
    Tensor.__dict__[name].__set__ for name in ("storage", "shape", "dtype")
)


def from_dlpack(source: Any, *, copy: bool | None = None) -> Tensor:
    """Return a host tensor over the memory of an object with `__dlpack__`, or of a capsule.

    Read-only memory stays read-only. `copy=True` always copies; None and False share the memory.

    Raises:
        InvalidArgumentError: the object does not speak DLPack, or frame has no such element type.
        BufferError: the memory can't be shared, for example because it is on another device.
    """
    is_capsule = type(source).__name__ == "PyCapsule"
    if not is_capsule and not hasattr(source, "__dlpack__"):
        raise InvalidArgumentError(
            f"expected an object with __dlpack__, received a {type(source).__name__}"
        )
    array = dlpack.import_array(source, copy)
    element = dtype(array.dtype)
    return _host_tensor(array, element)


def as_tensor(value: Any) -> Tensor:
    """Return a tensor of a Tensor (itself), a numpy array, a DLPack producer or an array-like.

    Raises:
        InvalidArgumentError: numpy can't make an array of it, or its element type is not frame's.
        BufferError: a DLPack producer can't share its memory.
    """
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, (np.ndarray, np.generic)) and hasattr(value, "__dlpack__"):
        return from_dlpack(value)
    return from_numpy(value)


def _readable(array: Array, element: DType, copy: bool) -> Array:
    aligned = all(stride % element.itemsize == 0 for stride in array.strides)
    if copy or not array.dtype.isnative or not array.flags.aligned or not aligned:
        return np.array(array, dtype=element.numpy, order="C", copy=True)
    return array


def _host_tensor(array: Array, element: DType) -> Tensor:
    return Tensor(HostStorage(array), tuple(array.shape), element)


def require_targets(outputs: Sequence[np.ndarray]) -> None:
    """Check arrays to write into together.

    Raises:
        InvalidArgumentError: two of them share memory, so that one result would be lost, or one has
            masked elements, which would hide results.
    """
    for i, one in enumerate(outputs):
        if type(one) is not np.ndarray and hasattr(one, "mask") and np.ma.is_masked(one):
            raise InvalidArgumentError(
                f"output {i} is a masked array: expected one without masked elements, which would "
                "hide results; pass its .data"
            )
    for (i, one), (k, other) in itertools.combinations(enumerate(outputs), 2):
        if np.may_share_memory(one, other):
            raise InvalidArgumentError(
                f"outputs {i} and {k} share memory: expected an array of its own for each output, "
                "or one result would overwrite the other; pass separate arrays"
            )
