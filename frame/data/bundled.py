"""The bundled handwritten digits: 1,797 real images of 8 x 8 pixels.

Source: UCI Machine Learning Repository, "Optical Recognition of Handwritten Digits"; the licence
stands in digits.LICENSE.md beside the data.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from frame.core.errors import NotFoundError

_FILE = Path(__file__).with_name("digits.npz")
_WHITE = 16.0  # the largest pixel value in the file


class Digits(NamedTuple):
    """Images float32 [rows, 1, 8, 8] in [0, 1] (NCHW) and labels int64 [rows] in [0, 10)."""

    train_images: npt.NDArray[np.float32]
    train_labels: npt.NDArray[np.int64]
    test_images: npt.NDArray[np.float32]
    test_labels: npt.NDArray[np.int64]


def digits() -> Digits:
    """Return the digits: the 360 rows whose index is a multiple of 5 are the test rows.

    Raises:
        NotFoundError: the data file is missing from the installation.
    """
    if not _FILE.is_file():
        raise NotFoundError(f"the bundled digits {_FILE} are missing; install frame again")
    with np.load(_FILE, allow_pickle=False) as archive:
        images = archive["images"].astype(np.float32)[:, None] / np.float32(_WHITE)
        labels = archive["labels"].astype(np.int64)
    test = np.arange(len(labels)) % 5 == 0
    return Digits(images[~test], labels[~test], images[test], labels[test])
