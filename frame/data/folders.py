"""Folders of image files, one subfolder a class; decoding goes through Pillow, an extra."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from frame.core.arguments import shown
from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.core.shapes import is_count
from frame.data.datasets import Batch
from frame.data.files import Pathlike, existing_folder, unsound
from frame.data.images import ImageDataset, checked_layout, laid_out

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")

# Pillow hands other formats to programs of the system (EPS to Ghostscript): data starts nothing.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
_MODES = {1: "L", 3: "RGB"}
_WIDE = ("I", "F")  # what the names of modes with more than 8 bits a channel begin with
_WHAT = "a sound image file"


class ImageFolder:
    """Images of a folder with a subfolder a class, decoded when a batch asks for them.

    The classes are the subfolders in the order of their names; images may lie deeper within them.
    Files with other suffixes than those of images, and names that begin with a dot, are passed
    over. A batch has float32 in [0, 1] and int64.

    Args:
        folder: the folder of the classes.
        size: (height, width); each image is scaled to cover it, and its middle taken. Without it
            all images must have the size of the first.
        channels: 3 for colours, 1 for grey.
        layout: `NCHW`, or `NHWC` for blueprints.

    Attributes:
        files: the paths of the images.
        labels: int64 [rows].
        classes: the names of the classes.

    Raises:
        NotFoundError: there is no such folder, or the package Pillow is not installed.
        InvalidArgumentError: there are no classes, one has no image, or an argument is wrong; from
            `batch`, too: a file is damaged, has another size, or more than 8 bits a channel.
    """

    def __init__(
        self,
        folder: Pathlike,
        size: tuple[int, int] | None = None,
        channels: int = 3,
        layout: str = "NCHW",
    ) -> None:
        place = existing_folder(folder, "a folder with a subfolder of images for each class")
        self._layout, self._size = checked_layout(layout), _checked_size(size)
        if not is_count(channels, 1) or channels not in _MODES:
            raise InvalidArgumentError(
                f"expected channels to be 1 or 3, received {shown(channels)}"
            )
        self._channels = channels
        self._pillow = _pillow()
        self.classes = tuple(_names(place, os.path.isdir))
        found = [_images(place / name) for name in self.classes]
        if not found:
            raise InvalidArgumentError(
                f"expected a subfolder for each class in {place}, found no subfolder"
            )
        for name, files in zip(self.classes, found, strict=True):
            if not files:
                unsound(f"images ({', '.join(SUFFIXES)}) in each class", place / name, "none")
        self.files = tuple(file for files in found for file in files)
        self.labels = np.repeat(np.arange(len(found)), [len(files) for files in found])
        self._shape = self._size or self._decoded(self.files[0]).shape[:2]

    def __len__(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        height, width = self._shape
        return f"ImageFolder({len(self)} images of {height} x {width}, {len(self.classes)} classes)"

    def batch(self, indices: npt.NDArray[np.int64]) -> Batch:
        """Return the images at `indices`, and their labels."""
        images = np.divide(self._images(indices), np.float32(255), dtype=np.float32)
        return images, np.take(self.labels, indices)

    def in_memory(self) -> ImageDataset:
        """Return all images decoded, one byte a channel, so that no later epoch decodes."""
        images = self._images(np.arange(len(self)))
        return ImageDataset(images, self.labels, self.classes)

    def _images(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        height, width = self._shape
        images = np.empty((len(indices), height, width, self._channels), np.uint8)
        for row, index in enumerate(indices):
            file = self.files[index]
            pixels = self._decoded(file)
            if pixels.shape[:2] != (height, width):
                found = f"it has {pixels.shape[0]} x {pixels.shape[1]}; give size=(height, width)"
                unsound(f"images of {height} x {width}, as {self.files[0]} has", file, found)
            images[row] = pixels
        planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        return laid_out(planes, self._layout)

    def _decoded(self, file: Path) -> npt.NDArray[np.uint8]:
        """Return the pixels of a file [height, width, channels]."""
        image, transforms = self._pillow
        problems = (OSError, SyntaxError, ValueError, EOFError, struct.error)
        try:
            with image.open(file, formats=_FORMATS) as picture:
                if picture.mode.startswith(_WIDE):
                    unsound("8 bits a channel", file, f"its mode is {picture.mode}")
                upright = transforms.exif_transpose(picture).convert(_MODES[self._channels])
        except InvalidArgumentError:
            raise
        except (*problems, image.DecompressionBombError) as problem:
            unsound(_WHAT, file, problem)
        if self._size is not None:
            upright = transforms.fit(upright, self._size[::-1], image.Resampling.BILINEAR)
        return np.asarray(upright, np.uint8).reshape(*upright.size[::-1], self._channels)


def _pillow() -> tuple[Any, Any]:
    """Return the modules PIL.Image and PIL.ImageOps."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise NotFoundError(
            "reading image files needs the package Pillow, which is not installed: "
            "pip install pillow"
        ) from None
    return Image, ImageOps


def _names(folder: Path, wanted: Any) -> list[str]:
    """Return the names in a folder that don't begin with a dot and whose paths are wanted."""
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    return [name for name in names if wanted(folder / name)]


def _images(folder: Path) -> list[Path]:
    """Return the image files below a folder, in the order of their paths; no link is followed."""
    found: list[Path] = []
    for place, inner, names in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        wanted = (n for n in sorted(names) if n.lower().endswith(SUFFIXES) and n[0] != ".")
        found.extend(Path(place, name) for name in wanted)
    return found


def _checked_size(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    pair = isinstance(size, (tuple, list)) and len(size) == 2
    if not pair or not all(is_count(side, 1) for side in size):
        raise InvalidArgumentError(
            f"expected size as (height, width) of at least 1, received {size!r}"
        )
    return int(size[0]), int(size[1])
