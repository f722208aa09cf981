"""Datasets, batches, readers of common files, and the bundled handwritten digits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frame.core.lazy import attribute
from frame.data.bundled import Digits, digits
from frame.data.datasets import Dataset, TensorDataset
from frame.data.loader import DataLoader

if TYPE_CHECKING:  # what __getattr__ below loads at the first use
    from frame.data.archives import npz_dataset as npz_dataset
    from frame.data.cifar import cifar10 as cifar10
    from frame.data.cifar import cifar100 as cifar100
    from frame.data.folders import ImageFolder as ImageFolder
    from frame.data.idx import mnist as mnist
    from frame.data.idx import read_idx as read_idx
    from frame.data.images import ImageDataset as ImageDataset

_PLACES = {
    "ImageDataset": "frame.data.images",
    "ImageFolder": "frame.data.folders",
    "cifar10": "frame.data.cifar",
    "cifar100": "frame.data.cifar",
    "mnist": "frame.data.idx",
    "npz_dataset": "frame.data.archives",
    "read_idx": "frame.data.idx",
}

__all__ = [
    "DataLoader",
    "Dataset",
    "Digits",
    "ImageDataset",
    "ImageFolder",
    "TensorDataset",
    "cifar10",
    "cifar100",
    "digits",
    "mnist",
    "npz_dataset",
    "read_idx",
]


def __getattr__(name: str) -> Any:
    """Load a reader at its first use."""
    return attribute(__name__, _PLACES, name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
