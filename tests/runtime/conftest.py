"""Every test of the runtime has a cache of its own, and starts without fallbacks counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from frame.core import config
from frame.runtime.fallback import reset_fallback_stats


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "cache"
    reset_fallback_stats()
    with config.override(FRAME_CACHE_DIR=str(folder), FRAME_CACHE="1"):
        yield folder
