"""The test ops are registered for every test of the IR."""

from __future__ import annotations

import pytest

from tests.ir.ops import registered


@pytest.fixture(autouse=True)
def test_ops():
    with registered():
        yield
