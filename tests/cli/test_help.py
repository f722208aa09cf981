"""The help pages fit a terminal of 80 columns."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from frame.cli.app import COMMANDS, frame_command


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_80_columns(command: str) -> None:
    found = CliRunner().invoke(frame_command, [*command.split(), "--help"], terminal_width=80)
    assert found.exit_code == 0 and "Usage: " in found.output
    assert [line for line in found.output.splitlines() if len(line) > 80] == []
