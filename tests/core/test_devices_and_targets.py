from __future__ import annotations

import dataclasses

import pytest

from frame.core.devices import HOST, Device
from frame.core.dtypes import bool_, float16, float32, float64
from frame.core.errors import InvalidArgumentError
from frame.core.targets import TargetDescription


def test_device_text_round_trip() -> None:
    assert str(HOST) == "cpu:0" and Device.parse("cpu") == HOST
    assert Device.parse("intel_npu:2") == Device("intel_npu", 2)
    assert Device.parse(str(Device("cuda", 3))) == Device("cuda", 3)
    assert Device.parse(HOST) is HOST


@pytest.mark.parametrize("text", ["", "cpu:", "cpu:-1", "CPU", "cpu:x", "a b", "cpu:0:1", 3, None])
def test_bad_devices(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="device"):
        Device.parse(text)


def test_bad_device_fields() -> None:
    for backend, index in (("cpu", -1), ("cpu", 1.0), ("", 0), ("cpu:0", 0)):
        with pytest.raises(InvalidArgumentError):
            Device(backend, index)  # type: ignore[arg-type]


TARGET = TargetDescription(
    name="cpu",
    triple="x86_64-unknown-linux-gnu",
    cpu="znver3",
    features=("fma", "avx2"),
    vector_bits=256,
    fma=True,
    half="convert",
)


def test_lanes() -> None:
    assert [TARGET.lanes(t) for t in (float64, float32, float16, bool_)] == [4, 8, 16, 32]
    assert dataclasses.replace(TARGET, vector_bits=32).lanes(float64) == 1


def test_text_is_canonical_and_covers_every_field() -> None:
    assert TARGET.text() == dataclasses.replace(TARGET, features=("avx2", "fma")).text()
    changes = {
        "name": "x",
        "triple": "x",
        "cpu": "x",
        "features": ("avx",),
        "vector_bits": 512,
        "vector_registers": 32,
        "l1": 1,
        "l2": 1,
        "l3": 1,
        "cache_line": 128,
        "fma": False,
        "fma_units": 2,
        "fma_latency": 5,
        "half": "native",
        "symbols": False,
        "intrinsics": frozenset({"a"}),
    }
    assert set(changes) == {field.name for field in dataclasses.fields(TARGET)}
    texts = {dataclasses.replace(TARGET, **{k: v}).text() for k, v in changes.items()}
    assert len(texts | {TARGET.text()}) == len(changes) + 1


@pytest.mark.parametrize("change", [{"vector_bits": 0}, {"l1": -1}, {"half": "maybe"}])
def test_bad_targets(change: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match="target cpu: expected"):
        dataclasses.replace(TARGET, **change)  # type: ignore[arg-type]
