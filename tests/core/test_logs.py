"""Loggers that import `logging` late say what those of the standard library say."""

from __future__ import annotations

import logging

import pytest

from frame.core.logs import Logger
from tests.project import checkout

SILENT = """
import sys
from frame.core.logs import Logger
log = Logger("frame.test")
log.debug("one")
log.info("two")
print("logging" in sys.modules)
log.warning("three %s", 3)
"""


@pytest.mark.parametrize("level", ["debug", "info", "warning"])
def test_records_are_those_of_a_logger(caplog: pytest.LogCaptureFixture, level: str) -> None:
    with caplog.at_level(logging.DEBUG, logger="frame"):
        getattr(Logger("frame.some"), level)("%d %s", 1, "two")
    (record,) = caplog.records
    assert (record.name, record.levelname.lower()) == ("frame.some", level)
    assert record.getMessage() == "1 two"
    assert record.filename == "test_logs.py"


def test_levels_count(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="frame"):
        Logger("frame.some").info("not this")
    assert not caplog.records


def test_only_a_warning_imports_logging() -> None:
    result = checkout.run_python("-c", SILENT, folder=checkout.ROOT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["False"]
    assert "three 3" in result.stderr
