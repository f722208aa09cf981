from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frame
from frame import nn
from frame.core.dtypes import DTYPES, bfloat16
from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.core.files import atomic_write
from frame.core.tensors import from_numpy
from frame.interop import (
    dump_safetensors,
    load_metadata,
    load_weights,
    parse_safetensors,
    save_weights,
)

SUFFIXES = [".safetensors", ".npz", ".onnx"]


def arrays_of_all_kinds() -> dict[str, np.ndarray]:
    rows = [row for row in DTYPES.values() if row.bits >= 8]
    arrays = {f"x.{row}": np.arange(6).reshape(2, 3).astype(row.numpy) for row in rows}
    arrays["scalar"] = np.float32(3.5).reshape(())
    arrays["empty"] = np.zeros((0, 4), np.float64)
    arrays["strided"] = np.arange(24.0).reshape(4, 6).T[::2, 1:]
    arrays["big"] = np.arange(4, dtype=">i4")
    arrays["mlp/层.0.weight"] = np.full((3, 1, 2), np.nan, bfloat16.numpy)
    return arrays


def assert_equal(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype.newbyteorder("="), name
        assert actual[name].shape == array.shape, name
        same = array.astype(array.dtype.newbyteorder("="))
        assert actual[name].tobytes() == same.tobytes(), name


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip(tmp_path: Path, suffix: str) -> None:
    path, arrays = tmp_path / f"w{suffix}", arrays_of_all_kinds()
    save_weights(path, arrays, {"epoch": "3", "名": "π"})
    loaded = load_weights(path)
    assert_equal(loaded, arrays)
    assert load_metadata(path) == {"epoch": "3", "名": "π"}
    assert all(array.flags.writeable and array.flags.aligned for array in loaded.values())
    first = path.read_bytes()
    save_weights(path, dict(reversed(arrays.items())), {"名": "π", "epoch": "3"})
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_empty_collections_and_tensors(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"w{suffix}"
    save_weights(str(path), {})
    assert load_weights(path) == {} and load_metadata(path) == {}
    save_weights(path, {"t": from_numpy(np.ones(2, np.float32)), "list": [1, 2]})
    assert load_weights(path)["t"].tolist() == [1, 1]


def test_int4_goes_into_npz_only(tmp_path: Path) -> None:
    array = np.arange(4).astype(DTYPES["int4"].numpy)
    save_weights(tmp_path / "w.npz", {"q": array})
    assert_equal(load_weights(tmp_path / "w.npz"), {"q": array})
    with pytest.raises(InvalidArgumentError, match="'q': safetensors has no type for int4"):
        save_weights(tmp_path / "w.safetensors", {"q": array})
    assert not (tmp_path / "w.safetensors").exists()


def test_onnx_has_no_int4(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="'q': expected an element type of ONNX .*int4"):
        save_weights(tmp_path / "w.onnx", {"q": np.arange(4).astype(DTYPES["int4"].numpy)})
    assert not list(tmp_path.iterdir())


def test_a_model_goes_through_onnx(tmp_path: Path) -> None:
    """Saved, loaded and saved again the bytes are the same, and so is what the model computes."""
    net = nn.Sequential("mlp", [nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    first, second = (frame.compile(net, [frame.spec((2, 3))], seed=seed) for seed in (1, 2))
    assert not np.array_equal(first(x), second(x))
    save_weights(tmp_path / "one.onnx", first.params)
    second.load_params(tmp_path / "one.onnx")
    np.testing.assert_array_equal(second(x), first(x))
    save_weights(tmp_path / "two.onnx", second.params)
    assert (tmp_path / "two.onnx").read_bytes() == (tmp_path / "one.onnx").read_bytes()


def field(number: int, content: bytes) -> bytes:
    """A field of a message of protocol buffers that has a length below 128."""
    return bytes([number << 3 | 2, len(content)]) + content


def onnx_of(*tensors: bytes, more: bytes = b"") -> bytes:
    """A model whose graph has a node beside its initializers."""
    node = field(1, field(4, b"Relu"))
    graph = field(7, node + b"".join(field(5, each) for each in tensors))
    return b"\x08\x08" + more + field(8, b"\x10\x0d") + graph


NAMED = field(8, b"w")
FLOATS = struct.pack("<2f", 1.5, -2.0)
TENSORS = {
    # type, dims, and the list or bytes that hold the elements
    "floats": (b"\x10\x01" + b"\x08\x02" + field(4, FLOATS), "float32", [1.5, -2.0]),
    "single floats": (
        b"\x10\x01\x08\x02" + b"\x25" + FLOATS[:4] + b"\x25" + FLOATS[4:],
        "float32",
        [1.5, -2.0],
    ),
    "packed dims": (b"\x10\x01" + field(1, b"\x02\x01") + field(9, FLOATS), "float32", None),
    "int64": (b"\x10\x07\x08\x02" + field(7, b"\x05" + b"\xff" * 9 + b"\x01"), "int64", [5, -1]),
    "int32": (b"\x10\x06\x08\x01" + b"\x28" + b"\xfe" + b"\xff" * 8 + b"\x01", "int32", [-2]),
    "float16": (b"\x10\x0a\x08\x01" + field(5, b"\x80\x78"), "float16", [1.0]),
    "doubles": (b"\x10\x0b\x08\x01" + field(10, struct.pack("<d", 0.1)), "float64", [0.1]),
    "nothing": (b"\x10\x01\x08\x00", "float32", []),
}


@pytest.mark.parametrize("case", TENSORS)
def test_the_lists_that_other_programs_write_into_onnx(tmp_path: Path, case: str) -> None:
    tensor, kind, values = TENSORS[case]
    (tmp_path / "w.onnx").write_bytes(onnx_of(tensor + NAMED, more=field(3, b"other")))
    (array,) = load_weights(tmp_path / "w.onnx").values()
    assert array.dtype == np.dtype(kind) and array.flags.writeable
    assert array.ravel().tolist() == (values if values is not None else [1.5, -2.0])
    assert array.shape == ((2, 1) if values is None else (len(values),))


BAD_ONNX = {
    "no graph": (b"\x08\x08", "it has 0 graphs"),
    "a group": (b"\x0b", "wire type 3"),
    "a long number": (b"\x08" + b"\xff" * 10 + b"\x01", "more than 64 bits"),
    "elements": (onnx_of(b"\x10\x01\x08\x03" + field(9, FLOATS) + NAMED), "has 2 elements"),
    "a huge shape": (
        onnx_of(b"\x10\x01" + (b"\x08" + b"\xff" * 8 + b"\x7f") * 3 + NAMED),
        "has the shape",
    ),
    "half a float": (onnx_of(b"\x10\x01\x08\x01" + field(9, FLOATS[:3]) + NAMED), "3 bytes"),
    "strings": (onnx_of(b"\x10\x08\x08\x01" + NAMED), "element type 8"),
    "another file": (onnx_of(b"\x10\x01\x70\x01" + NAMED), "file of its own"),
    "twice": (onnx_of(*[b"\x10\x01\x08\x00" + NAMED] * 2), "'w' occurs twice"),
    "no name": (onnx_of(b"\x10\x01\x08\x00"), "array name"),
    "a name of bytes": (onnx_of(b"\x10\x01\x08\x00" + field(8, b"\xff")), "no text in UTF-8"),
    "a bool": (onnx_of(b"\x10\x09\x08\x01" + field(9, b"\x02") + NAMED), "neither 0 nor 1"),
}


@pytest.mark.parametrize("case", BAD_ONNX)
def test_bad_onnx(tmp_path: Path, case: str) -> None:
    content, message = BAD_ONNX[case]
    (tmp_path / "w.onnx").write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=f"expected a sound ONNX file.*{message}"):
        load_weights(tmp_path / "w.onnx")


def test_the_onnx_library_reads_and_writes_the_same_files(tmp_path: Path) -> None:
    library = pytest.importorskip("onnx")
    helper = pytest.importorskip("onnx.numpy_helper")
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array([-1, 2])}
    save_weights(tmp_path / "w.onnx", arrays, {"k": "v"})
    model = library.load(tmp_path / "w.onnx")
    assert_equal({t.name: helper.to_array(t) for t in model.graph.initializer}, arrays)
    library.save(model, tmp_path / "again.onnx")
    assert_equal(load_weights(tmp_path / "again.onnx"), arrays)
    assert load_metadata(tmp_path / "again.onnx") == {"k": "v"}


def test_the_reference_library_reads_and_writes_the_same_files(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.arange(3, dtype=np.int64),
        "flag": np.array([True, False, True]),
    }
    path = tmp_path / "w.safetensors"
    save_weights(path, arrays, {"k": "v"})
    assert_equal(dict(library.load_file(path)), arrays)
    assert_equal(parse_safetensors(library.save(arrays)), arrays)
    library.save_file(arrays, path, metadata={"k": "w"})
    assert_equal(load_weights(path), arrays)
    assert load_metadata(path) == {"k": "w"}


def test_numpy_reads_and_writes_the_same_files(tmp_path: Path) -> None:
    arrays = {"a": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "b": np.array(True)}
    save_weights(tmp_path / "w.npz", arrays)
    with np.load(tmp_path / "w.npz", allow_pickle=False) as archive:
        assert_equal(dict(archive), arrays)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "n.npz", **arrays)
        assert_equal(load_weights(tmp_path / "n.npz"), arrays)
    np.savez_compressed(tmp_path / "zeros.npz", z=np.zeros(1 << 20))
    assert load_weights(tmp_path / "zeros.npz")["z"].shape == (1 << 20,)


def test_bytes_are_views() -> None:
    data = dump_safetensors({"a": np.arange(3.0), "b": np.arange(3, dtype=np.int8)})
    arrays = parse_safetensors(data)
    assert np.shares_memory(arrays["a"], np.frombuffer(data, np.uint8))
    assert not arrays["a"].flags.writeable
    shifted = memoryview(b"x" + data)[1:]
    assert parse_safetensors(shifted)["a"].tolist() == [0, 1, 2]
    assert parse_safetensors(shifted)["a"].flags.aligned


# --- bad files ------------------------------------------------------------------------------------


def container(header: Any, data: bytes = b"", size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


BAD_SAFETENSORS = {
    "empty file": b"",
    "header length above file": container({"a": entry()}, b"0" * 8, size=1 << 40),
    "header length 0": container(b"", size=0),
    "header is a list": container([1]),
    "not json": container(b"{'a': 1}"),
    "not utf-8": container(b'{"\xff": 1}'),
    "deep nesting": container(b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}"),
    "duplicate name": container(
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"0",
    ),
    "missing bytes": container({"a": entry()}, b"0" * 7),
    "bytes of nobody": container({"a": entry()}, b"0" * 9),
    "hole": container({"a": entry(), "b": entry(offsets=(9, 17))}, b"0" * 17),
    "overlap": container({"a": entry(), "b": entry(offsets=(4, 12))}, b"0" * 12),
    "offsets reversed": container({"a": entry(offsets=(8, 0))}, b"0" * 8),
    "negative offset": container({"a": entry(offsets=(-8, 0))}, b""),
    "size mismatch": container({"a": entry(shape=(3,))}, b"0" * 8),
    "negative size": container({"a": entry(shape=(-2,))}, b"0" * 8),
    "product overflow": container({"a": entry(shape=(2**40, 2**40))}, b"0" * 8),
    "float size": container({"a": entry(shape=(2.0,))}, b"0" * 8),
    "bool size": container({"a": entry(dtype="U8", shape=(True,), offsets=(0, 1))}, b"0"),
    "too many axes": container({"a": entry(shape=[1] * 65, offsets=(0, 4))}, b"0" * 4),
    "unknown type": container({"a": entry(dtype="C64")}, b"0" * 8),
    "type is a list": container({"a": entry(dtype=[])}, b"0" * 8),
    "entry is a number": container({"a": 3}),
    "unknown field": container({"a": {**entry(), "x": 1}}, b"0" * 8),
    "bad name": container({"a\n": entry()}, b"0" * 8),
    "bad metadata": container({"__metadata__": {"a": 1}}),
}


@pytest.mark.parametrize("case", BAD_SAFETENSORS)
def test_bad_safetensors(tmp_path: Path, case: str) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(BAD_SAFETENSORS[case])
    with pytest.raises(InvalidArgumentError, match=r"expected a sound safetensors.*w\.safetensors"):
        load_weights(path)
    with pytest.raises(InvalidArgumentError, match="received bytes"):
        parse_safetensors(BAD_SAFETENSORS[case], "bytes")


def zip_of(entries: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return buffer.getvalue()


def npy(array: Any, allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=allow_pickle)
    return buffer.getvalue()


def npy_header(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()


class Bomb:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("/nonexistent/should-never-run",))


BAD_NPZ = {
    "empty file": b"",
    "not a zip": b"hello" * 100,
    "not an array": zip_of([("a.txt", b"x")]),
    "no magic": zip_of([("a.npy", b"x" * 100)]),
    "empty entry": zip_of([("a.npy", b"")]),
    "pickled objects": zip_of([("a.npy", npy(np.array([Bomb()], object), True))]),
    "pickle": pickle.dumps(Bomb()),
    "text array": zip_of([("a.npy", npy(["x"]))]),
    "complex array": zip_of([("a.npy", npy([1j]))]),
    "record array": zip_of([("a.npy", npy(np.zeros(2, [("a", "f4")])))]),
    "short": zip_of([("a.npy", npy(np.zeros(4))[:-1])]),
    "long": zip_of([("a.npy", npy(np.zeros(4)) + b"0")]),
    "shape is code": zip_of([("a.npy", npy(np.zeros(4)).replace(b"(4,)", b"(9**9**9,)"))]),
    "huge shape": zip_of([("a.npy", npy_header((2**60,)) + bytes(8))]),
    "overflow": zip_of([("a.npy", npy_header((2**40, 2**40)) + bytes(8))]),
    "negative size": zip_of([("a.npy", npy_header((-1,)) + bytes(8))]),
    "untyped": zip_of([("a.npy", npy(np.zeros(2, "V2")))]),
    "bad table": zip_of([("__dtypes__.npy", npy(np.frombuffer(b"{", np.uint8)))]),
    "table of nobody": zip_of(
        [("__dtypes__.npy", npy(np.frombuffer(b'{"a":"bfloat16"}', np.uint8)))]
    ),
    "table of another type": zip_of(
        [
            ("__dtypes__.npy", npy(np.frombuffer(b'{"a":"bfloat16"}', np.uint8))),
            ("a.npy", npy(np.zeros(2))),
        ]
    ),
    "bad name": zip_of([("a\n.npy", npy(np.zeros(2)))]),
    "lzma": zip_of([("a.npy", npy(np.zeros(2)))], zipfile.ZIP_LZMA),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_bad_npz(tmp_path: Path, case: str) -> None:
    path = tmp_path / "w.npz"
    path.write_bytes(BAD_NPZ[case])
    with pytest.raises(InvalidArgumentError, match=r"expected a sound npz file.*w\.npz"):
        load_weights(path)


def test_duplicate_zip_entries(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    with pytest.warns(UserWarning, match="Duplicate"):
        path.write_bytes(zip_of([("a.npy", npy(np.zeros(1))), ("a.npy", npy(np.ones(1)))]))
    with pytest.raises(InvalidArgumentError, match="twice"):
        load_weights(path)


def test_a_size_that_deflate_can_not_reach_takes_no_memory(tmp_path: Path) -> None:
    data = bytearray(zip_of([("a.npy", npy(np.zeros(4)))]))
    central = data.index(b"PK\x01\x02")
    data[central + 24 : central + 28] = struct.pack("<I", 0xFFFFFFF0)
    (tmp_path / "w.npz").write_bytes(data)
    with pytest.raises(InvalidArgumentError, match="claims 4294967280 bytes"):
        load_weights(tmp_path / "w.npz")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damage_is_an_error_or_harmless_and_never_a_crash(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"w{suffix}"
    save_weights(path, {"a": np.arange(3.0), "b": np.ones(2, bfloat16.numpy)}, {"k": "v"})
    whole = path.read_bytes()
    for length in range(0, len(whole), 3):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidArgumentError):
            load_weights(path)
    random = np.random.default_rng(0)
    for position in random.permutation(len(whole))[:300]:
        damaged = bytearray(whole)
        damaged[position] ^= int(random.integers(1, 256))
        path.write_bytes(damaged)
        try:
            load_weights(path)
        except InvalidArgumentError:
            continue


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (zip_of([("a.npy", b"")]), "zip archive"),
        (pickle.dumps({}), "a pickle, which frame never reads"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "git lfs pull"),
        (b"<html><body>404</body></html>", "web page"),
    ],
)
def test_foreign_files_are_recognised(tmp_path: Path, start: bytes, kind: str) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(start)
    with pytest.raises(InvalidArgumentError, match=kind):
        load_weights(path)


# --- bad arguments --------------------------------------------------------------------------------


def test_bad_paths(tmp_path: Path) -> None:
    for name in ("w.pt", "w", "w.bin", "w.pkl"):
        with pytest.raises(InvalidArgumentError, match=r"\.safetensors or \.npz or \.onnx"):
            load_weights(tmp_path / name)
        with pytest.raises(InvalidArgumentError, match="convert them to safetensors"):
            save_weights(tmp_path / name, {})
    with pytest.raises(NotFoundError, match=r"no weight file .*w\.npz"):
        load_weights(tmp_path / "w.npz")
    with pytest.raises(NotFoundError, match="folder .*missing does not exist"):
        save_weights(tmp_path / "missing" / "w.npz", {})
    (tmp_path / "d.npz").mkdir()
    with pytest.raises(InvalidArgumentError, match="no file"):
        load_weights(tmp_path / "d.npz")
    with pytest.raises(InvalidArgumentError, match="folder"):
        save_weights(tmp_path / "d.npz", {})


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", ["", "a\0b", "a\n", "x" * 1025, "__metadata__", "__dtypes__", 3])
def test_bad_names(tmp_path: Path, suffix: str, name: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="array name"):
        save_weights(tmp_path / f"w{suffix}", {name: np.zeros(1)})
    assert not list(tmp_path.iterdir())


def test_bad_values(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    save_weights(path, {"a": np.ones(1)})
    for bad in (np.array(["x"]), np.zeros(1, complex), np.array([Bomb()])):
        with pytest.raises(InvalidArgumentError, match="dtypes"):
            save_weights(path, {"a": bad})
    with pytest.raises(InvalidArgumentError, match="text to text"):
        save_weights(path, {}, {"a": 1})  # type: ignore[dict-item]
    for suffix in (".npz", ".onnx", ".safetensors"):
        with pytest.raises(InvalidArgumentError, match="UTF-8"):
            save_weights(path.with_suffix(suffix), {}, {"a": "\ud800"})
    assert load_weights(path)["a"].tolist() == [1]


# --- atomic writes --------------------------------------------------------------------------------


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic_write(path, lambda file: file.write(b"old"))

    def fail(file: Any) -> None:
        file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        atomic_write(path, fail)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_atomic_writes_follow_links_and_the_umask(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    link.symlink_to(real)
    before = os.umask(0o027)
    try:
        atomic_write(link, lambda file: file.write(b"new"))
    finally:
        os.umask(before)
    assert link.is_symlink() and real.read_bytes() == b"new"
    assert real.stat().st_mode & 0o777 == 0o640
