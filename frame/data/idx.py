"""IDX files, the format of MNIST and its kin (Fashion-MNIST, KMNIST, QMNIST).

Source: LeCun, Cortes, Burges, "The MNIST database of handwritten digits", section "File formats":
two zero bytes, the type, the rank, one big-endian uint32 an axis, then the elements, big-endian.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.data.files import Pathlike, existing_file, existing_folder, opened, unsound
from frame.data.images import ImageDataset, Splits, checked_layout, laid_out

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_WHAT = "an IDX file"
_PARTS = ("train", "t10k")
_CLASSES = 10


def read_idx(path: Pathlike) -> np.ndarray[Any, Any]:
    """Return the array of an IDX file, of any of its types and ranks, in the machine's byte order.

    A file that begins as gzip does is unpacked on the way, whatever its name.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: the file is none of the format, is cut short or has more bytes than
            its header says, or its gzip stream is damaged.
    """
    file = existing_file(path, _WHAT)
    with opened(file, _WHAT) as (stream, most):
        return _array(stream, most, file)


def _array(stream: BinaryIO, most: int, file: Path) -> np.ndarray[Any, Any]:
    head = stream.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _TYPES:
        unsound(_WHAT, file, f"it begins with {head.hex(' ') or 'nothing'}, not 00 00 and a type")
    axes = stream.read(4 * head[3])
    if len(axes) < 4 * head[3]:
        unsound(_WHAT, file, f"it ends within the sizes of its {head[3]} axes")
    shape = tuple(int(size) for size in np.frombuffer(axes, ">u4"))
    element = np.dtype(_TYPES[head[2]])
    size = math.prod(shape) * element.itemsize
    data = stream.read(min(size, most) + 1)
    if len(data) != size:
        has = f"{len(data):,} are there" if len(data) < size else "there are more"
        unsound(_WHAT, file, f"its header says {list(shape)}, {size:,} bytes, and {has}")
    return np.frombuffer(data, element).reshape(shape).astype(element.newbyteorder("="))


def mnist(folder: Pathlike, layout: str = "NCHW") -> Splits:
    """Read MNIST, or a data set in its files, from a folder.

    The files are `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte` and
    `t10k-labels-idx1-ubyte` (or `...images.idx3-ubyte`), each as it is or with `.gz`.

    Args:
        folder: where they are.
        layout: `NCHW` for [rows, 1, height, width], `NHWC` for blueprints.

    Raises:
        NotFoundError: the folder, or a file, is missing.
        InvalidArgumentError: a file is damaged, or they don't belong together.
    """
    place, order = existing_folder(folder, "a folder of MNIST files"), checked_layout(layout)
    return Splits(*(_part(place, part, order) for part in _PARTS))


def _part(folder: Path, part: str, layout: str) -> ImageDataset:
    files = (_find(folder, part, "images", 3), _find(folder, part, "labels", 1))
    images, labels = (read_idx(file) for file in files)
    for array, file, rank in ((images, files[0], 3), (labels, files[1], 1)):
        if array.dtype != np.uint8 or array.ndim != rank or not array.size:
            found = f"it holds {array.dtype}{list(array.shape)}"
            unsound(f"an IDX file of uint8 with {rank} axes", file, found)
    if len(images) != len(labels):
        raise InvalidArgumentError(
            f"expected a label for each image, received {len(images)} images in {files[0]} and "
            f"{len(labels)} labels in {files[1]}"
        )
    if labels.max() >= _CLASSES:
        unsound(f"labels from 0 to {_CLASSES - 1}", files[1], f"it holds {labels.max()}")
    return ImageDataset(laid_out(images[:, None], layout), labels)


def _find(folder: Path, part: str, kind: str, rank: int) -> Path:
    names = [
        f"{part}-{kind}{separator}idx{rank}-ubyte{packed}"
        for packed in ("", ".gz")
        for separator in ("-", ".")
    ]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise NotFoundError(f"expected one of {', '.join(names)} in {folder}, found none of them")
