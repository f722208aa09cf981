"""Copying tensors between devices: what `Tensor.to` and `Tensor.numpy` do."""

from __future__ import annotations

from typing import Any

from frame.core.devices import HOST, Device
from frame.core.errors import DeviceError
from frame.core.tensors import Tensor, from_numpy
from frame.runtime.backends import backend


class DeviceStorage:
    """Memory of a backend behind a Tensor."""

    __slots__ = ("device", "nbytes", "storage")

    def __init__(self, storage: Any, device: Device, nbytes: int) -> None:
        self.storage, self.device, self.nbytes = storage, device, nbytes


def transfer(tensor: Tensor, device: Device) -> Tensor:
    """Return a copy of a tensor on another device.

    Raises:
        NotFoundError: there is no such backend.
        DeviceError: the backend does not see that device, or failed.
    """
    if tensor.device == HOST:
        return _upload(tensor, device)
    if not isinstance(tensor.storage, DeviceStorage):
        raise DeviceError(f"the memory of this tensor on {tensor.device} is not the runtime's")
    owner = backend(tensor.device.backend)
    stream = owner.stream(tensor.device)
    if device == HOST:
        array = owner.download(tensor.storage.storage, stream)
        stream.synchronize()
        return from_numpy(array)
    if device.backend == tensor.device.backend:
        moved = owner.copy(tensor.storage.storage, device, stream)
        stream.synchronize()
        return Tensor(DeviceStorage(moved, device, tensor.nbytes), tensor.shape, tensor.dtype)
    return _upload(transfer(tensor, HOST), device)


def _upload(tensor: Tensor, device: Device) -> Tensor:
    owner = backend(device.backend)
    if device not in tuple(owner.devices()):
        seen = ", ".join(map(str, owner.devices())) or "none"
        raise DeviceError(f"there is no device {device}; the devices of its backend are: {seen}")
    stream = owner.stream(device)
    storage = owner.upload(tensor.numpy(), device, stream)
    stream.synchronize()
    return Tensor(DeviceStorage(storage, device, tensor.nbytes), tensor.shape, tensor.dtype)
