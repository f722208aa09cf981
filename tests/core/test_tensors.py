from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from frame.core import tensors
from frame.core.devices import HOST, Device
from frame.core.dtypes import DTYPES, DType, bfloat16, dtype, float32, float64
from frame.core.errors import DeviceError, InvalidArgumentError
from frame.core.tensors import HostStorage, Storage, Tensor, as_tensor, from_dlpack, from_numpy

EXCHANGEABLE = [row for row in DTYPES.values() if row.bits >= 8]


def readonly(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


class FakeStorage:
    device = Device("fake", 1)
    nbytes = 24


FAR = Tensor(FakeStorage(), (2, 3), float32)


def test_from_numpy_shares_memory_and_keeps_strides_and_flags() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = from_numpy(array.T[::2])
    assert tensor.shape == (2, 3) and tensor.dtype == float32 and tensor.device == HOST
    assert (tensor.ndim, tensor.size, tensor.nbytes, len(tensor)) == (2, 6, 24, 2)
    assert np.shares_memory(tensor.numpy(), array) and tensor.numpy().strides == (8, 16)
    array[0, 0] = 50
    assert tensor.numpy()[0, 0] == 50
    assert not tensor.readonly and from_numpy(readonly(np.zeros(2))).readonly
    assert isinstance(tensor.storage, Storage) and isinstance(FAR.storage, Storage)


def test_copies_are_dense_and_own_their_memory() -> None:
    array = readonly(np.arange(12.0).reshape(3, 4).T)
    for tensor in (from_numpy(array, copy=True), from_numpy(array).copy()):
        assert not np.shares_memory(tensor.numpy(), array)
        assert tensor.numpy().flags.c_contiguous and tensor.numpy().flags.writeable
        assert (tensor.numpy() == array).all()


def unaligned() -> np.ndarray:
    return np.frombuffer(b"\0" + np.arange(4.0).tobytes(), np.uint8)[1:].view(np.float64)


def packed_field() -> np.ndarray:
    return np.array([(0, v) for v in range(4)], np.dtype([("a", "u1"), ("b", "<f8")]))["b"]


@pytest.mark.parametrize(
    "array", [np.arange(4, dtype=">f8"), unaligned(), packed_field()], ids=["big", "una", "packed"]
)
def test_memory_that_generated_code_can_not_read_is_copied(array: np.ndarray) -> None:
    tensor = from_numpy(array)
    assert tensor.dtype == float64 and tensor.numpy().dtype.isnative
    assert tensor.numpy().flags.aligned and tensor.tolist() == [0, 1, 2, 3]
    from_dlpack(tensor)


@pytest.mark.parametrize(
    "bad",
    [
        np.array(["a"]),
        np.array([None]),
        np.zeros(2, complex),
        np.ma.masked_array([1.0, 2.0], [True, False]),
        [[1.0], [1.0, 2.0]],
        np.zeros(2, np.dtype([("a", "f4")])),
    ],
    ids=["text", "object", "complex", "masked", "ragged", "record"],
)
def test_unusable_arrays(bad: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="expected"):
        from_numpy(bad)


def test_empty_scalar_and_array_like_values() -> None:
    assert from_numpy(np.zeros((0, 3))).shape == (0, 3)
    assert from_numpy(np.float32(3)).shape == () and from_numpy(3.5).item() == 3.5
    assert as_tensor([1, 2]).dtype.name == "int64" and as_tensor(FAR) is FAR
    assert as_tensor(np.float32(2)).dtype == float32
    with pytest.raises(InvalidArgumentError, match="one element"):
        from_numpy(np.zeros(2)).item()
    with pytest.raises(TypeError):
        len(from_numpy(3.5))


def test_array_protocol_of_numpy_2() -> None:
    array = np.arange(3, dtype=np.float32)
    tensor = from_numpy(array)
    assert np.asarray(tensor) is array
    assert np.shares_memory(np.array(tensor, copy=False), array)
    assert not np.shares_memory(np.array(tensor), array)
    assert np.asarray(tensor, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="copy"):
        np.array(tensor, np.float64, copy=False)
    assert (np.add(tensor, 1) == [1, 2, 3]).all() and (array + tensor == 2 * array).all()


@pytest.mark.parametrize("row", EXCHANGEABLE, ids=str)
@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1)], ids=str)
def test_dlpack_round_trip_shares_memory(row: DType, version: tuple[int, int] | None) -> None:
    tensor = from_numpy(np.arange(6).reshape(2, 3).T.astype(row.numpy)[:, ::-1])

    class Consumer:
        def __dlpack__(self, **_: Any) -> Any:
            return tensor.__dlpack__(max_version=version)

        def __dlpack_device__(self) -> tuple[int, int]:
            return tensor.__dlpack_device__()

    back = from_dlpack(Consumer())
    assert back.dtype == row and back.shape == (3, 2)
    assert np.shares_memory(back.numpy(), tensor.numpy())
    assert back.numpy().tobytes() == tensor.numpy().tobytes()
    # A capsule from before 1.0 can't say that its memory may be written.
    assert back.readonly == (version is None or version < (1, 0))


@pytest.mark.parametrize("row", [float32, bfloat16], ids=str)
def test_dlpack_honours_read_only_memory(row: DType) -> None:
    tensor = from_numpy(readonly(np.ones(3, row.numpy)))
    assert from_dlpack(tensor).readonly
    with pytest.raises(BufferError, match="readonly"):
        tensor.__dlpack__()
    writable = from_dlpack(tensor, copy=True)
    assert not writable.readonly and not np.shares_memory(writable.numpy(), tensor.numpy())


@pytest.mark.parametrize("copied", [True, False])
def test_a_capsule_is_copied_when_asked_for(copied: bool) -> None:
    array = np.arange(4, dtype=np.float32)
    tensor = from_dlpack(array.__dlpack__(), copy=copied or None)
    assert np.shares_memory(np.asarray(tensor), array) is not copied
    array[:] = 7
    assert (tensor.tolist() == [0, 1, 2, 3]) is copied


def test_dlpack_copy_with_an_old_producer() -> None:
    array = np.arange(3.0)

    class Old:
        def __dlpack__(self, stream: Any = None) -> Any:
            return array.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    assert np.shares_memory(from_dlpack(Old()).numpy(), array) and from_dlpack(Old()).readonly
    owned = from_dlpack(Old(), copy=True)
    assert not np.shares_memory(owned.numpy(), array) and not owned.readonly


def test_dlpack_capsules_are_consumed_once() -> None:
    capsule = np.arange(3.0).__dlpack__()
    assert from_dlpack(capsule).tolist() == [0, 1, 2]
    with pytest.raises(BufferError, match="once"):
        from_dlpack(capsule)


def test_dlpack_keeps_the_memory_alive() -> None:
    capsule = from_numpy(np.full(1000, 7, bfloat16.numpy)).__dlpack__(max_version=(1, 0))
    tensor = from_dlpack(capsule)
    del capsule
    assert (tensor.numpy() == 7).all()
    from_numpy(np.zeros(3, bfloat16.numpy)).__dlpack__()  # an unused capsule frees its struct


def test_dlpack_refuses_what_is_impossible() -> None:
    tensor = from_numpy(np.zeros(2, np.float32))
    for options in ({"stream": 1}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError):
            tensor.__dlpack__(**options)
    with pytest.raises(BufferError, match="int4"):
        from_numpy(np.zeros(2, dtype("int4").numpy)).__dlpack__()
    with pytest.raises(InvalidArgumentError, match="__dlpack__"):
        from_dlpack([1, 2])
    with pytest.raises(InvalidArgumentError, match="complex"):
        from_dlpack(np.zeros(2, complex))

    class Elsewhere:
        def __dlpack__(self, **_: Any) -> Any:
            raise AssertionError("must not be asked")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    class Broken(Elsewhere):
        def __dlpack__(self, **_: Any) -> Any:
            return 3

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    with pytest.raises(BufferError, match=r"received device \(2, 0\)"):
        from_dlpack(Elsewhere())
    with pytest.raises(BufferError, match="capsule"):
        from_dlpack(Broken())


def test_numpy_and_others_read_a_tensor_through_dlpack() -> None:
    tensor = from_numpy(np.arange(3.0))
    assert np.shares_memory(np.from_dlpack(tensor), tensor.numpy())
    assert as_tensor(tensor.storage.array).storage is not tensor.storage


def test_transfer_to_other_devices() -> None:
    host = from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))

    def transfer(tensor: Tensor, device: Device) -> Tensor:
        return host if device == HOST else FAR

    assert host.to("cpu:0") is host
    before = tensors.set_transfer(None)
    try:
        with pytest.raises(DeviceError, match="from cpu:0 to fake:1"):
            host.to("fake:1")
        tensors.set_transfer(transfer)
        assert host.to("fake:1") is FAR and (FAR.numpy() == host.numpy()).all()
        assert np.array(FAR, copy=True).shape == (2, 3)
        assert from_dlpack(FAR.__dlpack__(dl_device=(1, 0))).shape == (2, 3)
        assert (pickle.loads(pickle.dumps(host)).numpy() == host.numpy()).all()
    finally:
        tensors.set_transfer(before)


class ShareableStorage(FakeStorage):
    """Device memory whose backend knows how to share it."""

    def __dlpack__(self, **options: Any) -> Any:
        return "capsule", options

    def __dlpack_device__(self) -> tuple[int, int]:
        return (12, 1)  # kDLExtDev


def test_dlpack_of_device_memory_is_up_to_its_storage() -> None:
    tensor = Tensor(ShareableStorage(), (2, 3), float32)
    assert tensor.__dlpack_device__() == (12, 1)
    capsule, options = tensor.__dlpack__(stream=7, max_version=(1, 0), copy=False)
    assert capsule == "capsule"
    assert options == {"stream": 7, "max_version": (1, 0), "dl_device": None, "copy": False}
    with pytest.raises(BufferError, match=r"received device \(12, 1\)"):
        from_dlpack(tensor)
    with pytest.raises(BufferError, match=r"call \.to\('cpu'\)"):
        tensor.__dlpack__(dl_device=(1, 0), copy=False)
    assert from_numpy(np.zeros(2)).__dlpack_device__() == (1, 0)


def test_a_far_tensor_is_never_copied_silently() -> None:
    for touch in (np.asarray, lambda t: np.array(t, copy=False)):
        with pytest.raises(InvalidArgumentError, match=r"fake:1 .*call \.numpy"):
            touch(FAR)
    with pytest.raises(BufferError, match="fake:1"):
        FAR.__dlpack__()
    with pytest.raises(BufferError, match="fake:1"):
        FAR.__dlpack_device__()
    assert repr(FAR) == "Tensor(shape=(2, 3), dtype=float32, device=fake:1)"
    assert "call .numpy()" in FAR._repr_html_() and not FAR.readonly


def test_storage_must_be_large_enough() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"expected 32 bytes .* received a storage of 24"
    ):
        Tensor(FakeStorage(), (2, 4), float32)
    with pytest.raises(InvalidArgumentError):
        Tensor(HostStorage(np.zeros(3)), (4,), float64)


def test_deepcopy_and_pickle() -> None:
    tensor = from_numpy(np.ones((2, 2), bfloat16.numpy))
    for other in (copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor))):
        assert other.dtype == bfloat16 and (other.numpy() == tensor.numpy()).all()
        assert not np.shares_memory(other.numpy(), tensor.numpy())


def test_text() -> None:
    tensor = from_numpy(np.arange(4, dtype=np.float32).reshape(2, 2))
    assert "shape=(2, 2), dtype=float32, device=cpu:0" in repr(tensor)
    assert len(repr(from_numpy(np.zeros((1000, 1000))))) < 1000


def test_html_is_truncated_and_escaped() -> None:
    html = from_numpy(np.arange(10000).reshape(2, 50, 100))._repr_html_()
    assert html.count("<tr") == 9 and html.count("<td") == 81 and "[0, :, :]" in html
    assert "\u2026" in html and len(html) < 5000
    assert ">2</td>" in from_numpy(np.array([1, 2]))._repr_html_()
    assert ">nan</td>" in from_numpy(np.array(np.nan))._repr_html_()
    assert "no elements" in from_numpy(np.zeros((0, 3)))._repr_html_()

    class Hostile(FakeStorage):
        device = "<script>"  # a plug-in's device is not necessarily a Device

    assert "<script>" not in Tensor(Hostile(), (1,), float32)._repr_html_()


@pytest.mark.parametrize("row", [float32, bfloat16, dtype("bool"), dtype("int64")], ids=str)
def test_exchange_with_torch_shares_memory(row: DType) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.arange(6).reshape(2, 3).to(getattr(torch, row.name))
    ours = from_dlpack(theirs)
    assert ours.dtype == row and ours.shape == (2, 3)
    assert ours.numpy().ctypes.data == theirs.data_ptr()
    assert ours.numpy().astype(float).tolist() == theirs.to(torch.float64).tolist()
    mine = from_numpy(np.ones((3, 2), row.numpy))
    back = torch.from_dlpack(mine)
    assert back.dtype == getattr(torch, row.name) and back.data_ptr() == mine.numpy().ctypes.data
    with pytest.raises(BufferError):
        from_dlpack(torch.ones(2, requires_grad=True))
