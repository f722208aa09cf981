"""Readers of MNIST, CIFAR and .npz files: what they give, and what they say of a bad file."""

from __future__ import annotations

import gzip
import io
import struct
from pathlib import Path

import numpy as np
import pytest

from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.data import ImageDataset, cifar10, cifar100, mnist, npz_dataset, read_idx

RNG = np.random.default_rng(0)
ELEMENTS = {"u1": 8, "i1": 9, ">i2": 11, ">i4": 12, ">f4": 13, ">f8": 14}


def idx(array: np.ndarray, element: str = "u1") -> bytes:
    """Return an array as the bytes of an IDX file."""
    head = bytes([0, 0, ELEMENTS[element], array.ndim])
    return head + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(element).tobytes()


def write(path: Path, data: bytes) -> Path:
    """Write a file."""
    path.write_bytes(data)
    return path


# --- IDX ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (0, 3)])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_every_type_of_idx_is_read(tmp_path: Path, element: str, shape, pack) -> None:
    array = RNG.integers(-100 if element != "u1" else 0, 100, shape).astype(element)
    found = read_idx(write(tmp_path / "any.name", pack(idx(array, element))))
    np.testing.assert_array_equal(found, array)
    assert found.dtype == np.dtype(element).newbyteorder("=") and found.dtype.isnative


WHOLE = idx(np.arange(12).reshape(3, 4))
# Names of tests come from these bytes, so they hold no time.
PACKED = gzip.compress(WHOLE, mtime=0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it begins with nothing, not 00 00"),
        (b"\x89PNG\r\n", "it begins with 89 50 4e 47, not 00 00"),
        (b"\0\0\x0a\x01" + WHOLE[4:], "it begins with 00 00 0a 01"),
        (WHOLE[:6], "it ends within the sizes of its 2 axes"),
        (WHOLE[:-1], r"its header says \[3, 4\], 12 bytes, and 11 are there"),
        (WHOLE + b"\0", r"12 bytes, and there are more"),
        (b"\0\0\x08\x02" + b"\xff" * 8 + b"ab", "bytes, and 2 are there"),
        (gzip.compress(b"\0\0\x08\x02" + b"\xff" * 8 + b"ab", mtime=0), "bytes, and 2 are there"),
        (PACKED[:-9], "its gzip stream is damaged"),
        (PACKED[:-8] + b"\1\2\3\4" + PACKED[-4:], "its gzip stream is damaged .*CRC"),
        (PACKED[:12] + b"\xff\xff" + PACKED[14:], "its gzip stream is damaged"),
        (gzip.compress(WHOLE[:-2], mtime=0), "and 10 are there"),
    ],
)
def test_a_bad_idx_file_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = write(tmp_path / "x", data)
    with pytest.raises(InvalidArgumentError, match=f"expected an IDX file, received .*{message}"):
        read_idx(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="expected an IDX file, there is no file"):
        read_idx(tmp_path / "none")
    with pytest.raises(InvalidArgumentError, match="which is no file"):
        read_idx(tmp_path)


IMAGES = {"train": RNG.integers(0, 256, (7, 4, 5)), "t10k": RNG.integers(0, 256, (3, 4, 5))}
LABELS = {"train": np.array([0, 9, 1, 2, 3, 4, 5]), "t10k": np.array([9, 0, 7])}


def mnist_folder(folder: Path) -> Path:
    """Write the four files in the four ways in which they are found."""
    write(folder / "train-images-idx3-ubyte", idx(IMAGES["train"]))
    write(folder / "train-labels.idx1-ubyte", idx(LABELS["train"]))
    write(folder / "t10k-images-idx3-ubyte.gz", gzip.compress(idx(IMAGES["t10k"])))
    write(folder / "t10k-labels.idx1-ubyte.gz", gzip.compress(idx(LABELS["t10k"])))
    return folder


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_mnist(tmp_path: Path, layout: str) -> None:
    splits = mnist(mnist_folder(tmp_path), layout)
    for part, found in zip(("train", "t10k"), splits, strict=True):
        images, labels = found.batch(np.array([2, 0]))
        axis = 1 if layout == "NCHW" else 3
        exact = np.expand_dims(IMAGES[part][[2, 0]], axis).astype(np.float32) / np.float32(255)
        np.testing.assert_array_equal(images, exact)
        assert images.dtype == np.float32 and labels.dtype == np.int64
        assert labels.tolist() == LABELS[part][[2, 0]].tolist() and len(found) == len(LABELS[part])
    assert repr(splits.train).startswith("ImageDataset(7 images [")


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train-labels.idx1-ubyte", np.arange(6), "7 images in .* and 6 labels"),
        ("train-labels.idx1-ubyte", np.full(7, 10), "labels from 0 to 9, .* it holds 10"),
        ("train-labels.idx1-ubyte", IMAGES["train"], r"with 1 axes, .* it holds uint8\[7, 4, 5\]"),
        ("train-images-idx3-ubyte", np.zeros((0, 4, 5)), r"with 3 axes, .* uint8\[0, 4, 5\]"),
    ],
)
def test_files_of_mnist_must_belong_together(tmp_path: Path, name, array, message) -> None:
    write(mnist_folder(tmp_path) / name, idx(array))
    with pytest.raises(InvalidArgumentError, match=message):
        mnist(tmp_path)


def test_a_missing_file_of_mnist_is_named(tmp_path: Path) -> None:
    (mnist_folder(tmp_path) / "train-labels.idx1-ubyte").unlink()
    with pytest.raises(NotFoundError, match=r"train-labels-idx1-ubyte.*idx1-ubyte\.gz in .*none"):
        mnist(tmp_path)
    with pytest.raises(NotFoundError, match="a folder of MNIST files, there is no folder"):
        mnist(tmp_path / "none")
    with pytest.raises(InvalidArgumentError, match="layout to be one of NCHW, NHWC"):
        mnist(tmp_path, "CHW")


# --- CIFAR ----------------------------------------------------------------------------------------

BATCHES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


def records(labels: np.ndarray, rows: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Return records with label columns, and their pixels [rows, 3, 32, 32]."""
    pixels = RNG.integers(0, 256, (rows, 3, 32, 32)).astype(np.uint8)
    table = np.concatenate([labels.astype(np.uint8), pixels.reshape(rows, -1)], 1)
    return table, pixels


def cifar10_folder(folder: Path) -> list[np.ndarray]:
    """Write CIFAR-10 with two records a file, labels (i, i + 1); return the pixels of each."""
    folder.mkdir()
    made = [records(np.array([[i], [i + 1]])) for i in range(6)]
    for name, (table, _) in zip(BATCHES, made, strict=True):
        write(folder / name, table.tobytes())
    write(folder / "batches.meta.txt", "\n".join("abcdefghij").encode() + b"\n\n")
    return [pixels for _, pixels in made]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_cifar10(tmp_path: Path, layout: str) -> None:
    pixels = cifar10_folder(tmp_path / "cifar-10-batches-bin")
    train, test = cifar10(tmp_path, layout)
    axes = (0, 1, 2, 3) if layout == "NCHW" else (0, 2, 3, 1)
    np.testing.assert_array_equal(train.images, np.concatenate(pixels[:5]).transpose(axes))
    np.testing.assert_array_equal(test.images, pixels[5].transpose(axes))
    assert (
        train.labels.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5] and train.images.flags.c_contiguous
    )
    assert test.labels.tolist() == [5, 6] and test.classes == tuple("abcdefghij")


@pytest.mark.parametrize(("labels", "expected"), [("fine", [7, 99]), ("coarse", [19, 0])])
def test_cifar100(tmp_path: Path, labels: str, expected: list[int]) -> None:
    table, pixels = records(np.array([[19, 7], [0, 99]]))
    for name in ("train.bin", "test.bin"):
        write(tmp_path / name, table.tobytes())
    for part in cifar100(tmp_path, labels):
        assert part.labels.tolist() == expected and part.classes == ()
        np.testing.assert_array_equal(part.images, pixels)


def test_bad_files_of_cifar(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    cifar10_folder(folder)
    whole = (folder / BATCHES[2]).read_bytes()
    cases = [
        (whole[:-1], "6,145 bytes are no whole number of records of 3,073 bytes: it is cut short"),
        (b"", "0 bytes are no whole number"),
        (whole[:3073] + b"\x0a" + whole[3074:], "record 1 has the label 10, expected 0 to 9"),
    ]
    for data, message in cases:
        write(folder / BATCHES[2], data)
        with pytest.raises(
            InvalidArgumentError, match=f"file of CIFAR-10, .*batch_3.bin: {message}"
        ):
            cifar10(folder)
    (folder / BATCHES[2]).unlink()
    with pytest.raises(NotFoundError, match=r"there is no file .*data_batch_3\.bin"):
        cifar10(folder)
    write(folder / BATCHES[2], whole)
    write(folder / "batches.meta.txt", b"a\nb\n")
    with pytest.raises(InvalidArgumentError, match=r"10 names of classes, .*it has 2"):
        cifar10(folder)
    with pytest.raises(InvalidArgumentError, match="labels to be one of coarse, fine"):
        cifar100(folder, "medium")


# --- npz ------------------------------------------------------------------------------------------


def npz(**arrays: object) -> bytes:
    """Return the bytes of an archive."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def test_columns_of_an_npz_file(tmp_path: Path) -> None:
    path = write(tmp_path / "d.npz", npz(b=np.arange(6).reshape(3, 2), a=np.ones(3), c=np.zeros(3)))
    first = npz_dataset(path)
    assert [column.shape for column in first.columns] == [(3, 2), (3,), (3,)]
    chosen = npz_dataset(path, ("c", "b"))
    assert [column.dtype.name for column in chosen.columns] == ["float64", "int64"]


def test_bad_npz_files(tmp_path: Path) -> None:
    good = npz(a=np.ones(3), b=np.ones(4))
    cases = [
        (good[:-30], (), "a sound npz file"),
        (b"\0\0\x08\x01", (), "a sound npz file"),
        (npz(a=np.array([{}], object)), (), "expected numbers"),
        (good, (), r"d\.npz: expected columns with equal numbers of rows"),
        (npz(), (), r"d\.npz: expected at least one column"),
        (good, "a", "columns as a sequence of names, received 'a'"),
    ]
    for data, columns, message in cases:
        with pytest.raises(InvalidArgumentError, match=message):
            npz_dataset(write(tmp_path / "d.npz", data), columns)
    with pytest.raises(NotFoundError, match="an array 'x' in .*, found a, b"):
        npz_dataset(write(tmp_path / "d.npz", good), ("a", "x"))


# --- ImageDataset ---------------------------------------------------------------------------------


def test_rows_of_images_stay_together() -> None:
    data = ImageDataset(np.arange(10 * 4, dtype=np.uint8).reshape(10, 1, 2, 2), np.arange(10))
    first, second = data.split(0.3, seed=1)
    assert len(first) == 3 and sorted([*first.labels, *second.labels]) == list(range(10))
    for part in (first, second):
        assert (part.images[:, 0, 0, 0] == part.labels * 4).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((2, 1, 2, 2)), [0, 1]), r"uint8 of rank 4, received float64\[2, 1, 2, 2\]"),
        ((np.zeros((2, 2, 2), np.uint8), [0, 1]), r"uint8\[2, 2, 2\]"),
        ((np.zeros((2, 1, 2, 2), np.uint8), [0.0, 1.0]), "labels, an integer for each of 2"),
        ((np.zeros((2, 1, 2, 2), np.uint8), [0]), r"each of 2 image\(s\), .*int64\[1\]"),
        ((np.zeros((0, 1, 2, 2), np.uint8), np.zeros(0, int)), "at least one"),
        ((np.zeros((2, 1, 2, 2), np.uint8), [0, 3], ("a", "b", "c")), "labels from 0 to 2"),
    ],
)
def test_bad_images(arguments, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ImageDataset(*arguments)
