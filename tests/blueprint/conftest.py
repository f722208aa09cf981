"""The tests of a file share a cache of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from frame.core import config


@pytest.fixture(autouse=True, scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with config.override(FRAME_CACHE_DIR=str(folder), FRAME_CACHE="1"):
        yield folder
