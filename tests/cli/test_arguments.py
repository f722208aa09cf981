"""`--input` in its two grammars, and the array files that it names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from frame.cli import arguments
from frame.core.dtypes import float32, int64
from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.core.shapes import Dim

BATCH = Dim.symbol("batch")


@pytest.mark.parametrize(
    ("text", "name", "shape", "element"),
    [
        ("x=1x3x224x224", "x", (1, 3, 224, 224), float32),
        ("x=batch,784:int64", "x", (BATCH, 784), int64),
        ("x=batchx784", "x", (BATCH, 784), float32),
        ("2*batch + 1,4", None, (BATCH * 2 + 1, 4), float32),
        ("784", None, (784,), float32),
        ("scalar:int64", None, (), int64),
        ("x=scalar", "x", (), float32),
        ("mlp.x=3", "mlp.x", (3,), float32),
        ("x=0x4", "x", (0, 4), float32),
    ],
)
def test_input_specs(text: str, name: str | None, shape: tuple, element: object) -> None:
    found = arguments.parse_input_spec(text)
    assert (found.name, found.shape, found.dtype) == (name, shape, element)


@pytest.mark.parametrize(
    "text",
    ["", "x=", "=3", "x=1xx2", "x=1,,2", "x=max", "x=-1", "x=3:float3", "1 2=3", "x=3:object"],
)
def test_wrong_input_specs_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="expected"):
        arguments.parse_input_spec(text)


@pytest.mark.parametrize(
    ("text", "name", "path", "member"),
    [
        ("x=image.npy", "x", "image.npy", None),
        ("folder/image.npy", None, "folder/image.npy", None),
        ("x=digits.npz:images", "x", "digits.npz", "images"),
    ],
)
def test_input_files(text: str, name: str | None, path: str, member: str | None) -> None:
    assert arguments.parse_input_file(text) == arguments.InputFile(name, Path(path), member)


@pytest.mark.parametrize("text", ["x=image.png", "x=digits.npz", "x", "=a.npy", ""])
def test_wrong_input_files_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="expected"):
        arguments.parse_input_file(text)


def test_arrays_are_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    np.savez(tmp_path / "b.npz", rows=np.arange(4))
    plain = arguments.load_array(arguments.InputFile(None, tmp_path / "a.npy"))
    member = arguments.load_array(arguments.InputFile(None, tmp_path / "b.npz", "rows"))
    assert plain.tolist() == [0, 1, 2] and member.tolist() == [0, 1, 2, 3]


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no file .*missing\.npy"):
        arguments.load_array(arguments.InputFile(None, tmp_path / "missing.npy"))
    np.savez(tmp_path / "b.npz", rows=np.arange(4))
    with pytest.raises(NotFoundError, match=r"no member 'columns'; it has rows"):
        arguments.load_array(arguments.InputFile(None, tmp_path / "b.npz", "columns"))


def test_python_objects_and_torn_files_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "torn.npy").write_bytes(b"\x93NUMPY\x01\x00v")
    (tmp_path / "empty.npy").touch()
    for name in ("objects.npy", "torn.npy", "empty.npy"):
        with pytest.raises(InvalidArgumentError, match="not a readable array file"):
            arguments.load_array(arguments.InputFile(None, tmp_path / name))


def _spec(name: str | None) -> arguments.InputSpec:
    return arguments.InputSpec(name, (1,), float32)


def test_inputs_are_assigned_by_name() -> None:
    assert list(arguments.by_name([_spec("b"), _spec("a")], ["a", "b"])) == ["b", "a"]
    assert list(arguments.by_name([_spec(None)], ["x"])) == ["x"]


@pytest.mark.parametrize(
    ("given", "names", "message"),
    [
        (["c"], ["a", "b"], "there is no input 'c'; the inputs are a, b"),
        (["a", "a"], ["a"], "given twice"),
        (["a"], ["a", "b"], "missing --input for b"),
        ([None], ["a", "b"], "needs a name"),
        ([None], [], "the inputs are none"),
    ],
)
def test_wrong_assignments_are_refused(given: list, names: list[str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        arguments.by_name(map(_spec, given), names)
