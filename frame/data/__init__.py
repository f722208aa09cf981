"""In-memory datasets, batches, and the bundled handwritten digits."""

from __future__ import annotations

from frame.data.bundled import Digits, digits
from frame.data.datasets import Dataset, TensorDataset
from frame.data.loader import DataLoader

__all__ = ["DataLoader", "Dataset", "Digits", "TensorDataset", "digits"]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
