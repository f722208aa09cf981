"""Folders of images: decoded through Pillow, which is an extra."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.data import ImageFolder

RNG = np.random.default_rng(0)


def pixels(height: int = 6, width: int = 8, channels: int = 3) -> np.ndarray:
    """Return random pixels."""
    return RNG.integers(0, 256, (height, width, channels)).astype(np.uint8)


def save(path: Path, array: np.ndarray, **options: object) -> np.ndarray:
    """Write an image file, and return its pixels."""
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(array.squeeze()).save(path, **options)
    return array


@pytest.fixture
def folder(tmp_path: Path) -> tuple[Path, list[np.ndarray]]:
    """A folder of two classes with three images, one of them deeper, and files to pass over."""
    made = [
        save(tmp_path / "b" / "1.PNG", pixels()),
        save(tmp_path / "a" / "2.bmp", pixels()),
        save(tmp_path / "a" / "x" / "1.png", pixels()),
    ]
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / "a" / ".hidden.png").write_bytes(b"")
    (tmp_path / ".git").mkdir()
    (tmp_path / "readme.png").write_bytes(b"")
    return tmp_path, [made[1], made[2], made[0]]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_folder_is_a_dataset(folder, layout: str) -> None:
    path, arrays = folder
    data = ImageFolder(path, layout=layout)
    assert (data.classes, data.labels.tolist()) == (("a", "b"), [0, 0, 1])
    images, labels = data.batch(np.array([2, 0, 1]))
    exact = np.stack([arrays[2], arrays[0], arrays[1]])
    exact = exact if layout == "NHWC" else exact.transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(images, exact.astype(np.float32) / np.float32(255))
    assert labels.tolist() == [1, 0, 0] and images.dtype == np.float32
    assert repr(data) == "ImageFolder(3 images of 6 x 8, 2 classes)"
    held = data.in_memory()
    np.testing.assert_array_equal(held.batch(np.array([2, 0, 1]))[0], images)
    assert held.classes == data.classes


def test_grey_images(tmp_path: Path) -> None:
    grey = save(tmp_path / "a" / "1.png", pixels(channels=1))
    found = ImageFolder(tmp_path, channels=1).in_memory().images
    np.testing.assert_array_equal(found[0, 0], grey[..., 0])


def test_sizes_are_covered_from_the_middle(tmp_path: Path) -> None:
    wide = save(tmp_path / "a" / "1.png", pixels(4, 8))
    save(tmp_path / "a" / "2.png", pixels(16, 8))
    data = ImageFolder(tmp_path, size=(4, 4), layout="NHWC")
    images = data.in_memory().images
    assert images.shape == (2, 4, 4, 3)
    np.testing.assert_array_equal(images[0], wide[:, 2:6])
    with pytest.raises(InvalidArgumentError, match=r"images of 4 x 8, as .*1\.png.*2\.png: it has"):
        ImageFolder(tmp_path).in_memory()


def test_the_orientation_of_a_photograph_is_followed(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    exif = image.Exif()
    exif[0x0112] = 6  # rotated by a quarter, clockwise to be shown
    array = save(tmp_path / "a" / "1.png", pixels(), exif=exif)
    found = ImageFolder(tmp_path, layout="NHWC").in_memory().images[0]
    np.testing.assert_array_equal(found, np.rot90(array, -1))


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "deep"])
def test_a_bad_image_is_named_by_the_batch(folder, damage: str) -> None:
    path, _ = folder
    file = path / "b" / "1.PNG"
    data = file.read_bytes()
    if damage == "deep":
        save(path / "b" / "1.PNG", RNG.integers(0, 65536, (6, 8)).astype(np.uint16))
    else:
        file.write_bytes(
            {"cut": data[: len(data) // 2], "empty": b"", "text": b"GIF or so"}[damage]
        )
    expected = "8 bits a channel" if damage == "deep" else "a sound image file"
    with pytest.raises(InvalidArgumentError, match=rf"expected {expected}, received .*1\.PNG: "):
        ImageFolder(path).batch(np.array([0, 2]))


def test_no_file_reaches_a_program_of_the_system(folder) -> None:
    """Pillow would hand EPS to Ghostscript."""
    path, _ = folder
    (path / "b" / "1.PNG").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 6\n")
    with pytest.raises(InvalidArgumentError, match="a sound image file"):
        ImageFolder(path).batch(np.array([2]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": (0, 4)}, r"size as \(height, width\) of at least 1, received \(0, 4\)"),
        ({"size": 4}, r"size as \(height, width\)"),
        ({"channels": 4}, "channels to be 1 or 3, received 4"),
        ({"layout": "HWC"}, "layout to be one of NCHW, NHWC"),
    ],
)
def test_bad_options(folder, options, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ImageFolder(folder[0], **options)


def test_bad_folders(folder) -> None:
    path, _ = folder
    (path / "empty").mkdir()
    with pytest.raises(InvalidArgumentError, match=r"in each class, received .*empty: none"):
        ImageFolder(path)
    with pytest.raises(InvalidArgumentError, match="found no subfolder"):
        ImageFolder(path / "b")
    with pytest.raises(NotFoundError, match="there is no folder"):
        ImageFolder(path / "none")


def test_the_package_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(NotFoundError, match="pip install pillow"):
        ImageFolder(tmp_path)
