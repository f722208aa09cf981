"""FRAME_DUMP_DIR: every stage of a compilation as a text file."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

import frame
from frame import nn, ops
from frame.core import config
from frame.ir.parser import parse_graph
from tests.runtime.support import forget_programs, model, numbers


def _stages(folder: Path) -> list[str]:
    return [path.stem for path in sorted(folder.iterdir())]


def test_every_stage_is_written_from_the_graph_to_the_assembly(tmp_path) -> None:
    net = nn.Sequential("net", [nn.Linear(4, 8), nn.ReLU()])
    x = numbers(3, 4)
    want = frame.compile(net, [frame.spec(("n", 4))])(x)
    forget_programs()
    with config.override(FRAME_DUMP_DIR=str(tmp_path / "dump")):
        made = frame.compile(net, [frame.spec(("n", 4))])  # in the cache, and yet compiled
    assert made(x).tobytes() == want.tobytes()
    (folder,) = (tmp_path / "dump").iterdir()
    assert folder.name.startswith("net-")
    stages = _stages(folder)
    assert stages[0] == "00-declared" and [s[:2] for s in stages] == sorted(s[:2] for s in stages)
    words = " ".join(stages)
    for stage in ("operator_fusion", "run-loop", "run-llvm", "run-assembly", "load-loop"):
        assert stage in words
    declared = parse_graph((folder / "00-declared.txt").read_text())
    assert str(declared) == str(made.graph)
    fused = next(folder.glob("*operator_fusion.txt")).read_text()
    assert "group" in fused and fused != str(declared)
    assert "define" in next(folder.glob("*run-llvm.txt")).read_text()


def test_names_of_the_user_do_not_leave_the_folder(tmp_path) -> None:
    graph = frame.trace(lambda x: ops.relu(x), (3,), name="../../<b>/x y")
    with config.override(FRAME_DUMP_DIR=str(tmp_path / "dump")):
        frame.compile(graph)
    (folder,) = (tmp_path / "dump").iterdir()
    assert folder.name.startswith("_.._b_x_y-") and _stages(folder)[0] == "00-declared"
    assert [p.name for p in tmp_path.iterdir() if p.name != "cache"] == ["dump"]


def test_a_folder_that_can_not_be_written_costs_one_warning(tmp_path, caplog) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    x = numbers(3, 4)
    with config.override(FRAME_DUMP_DIR=str(blocked)), caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(model()(x, x), np.maximum(3 * x, 0))
    (record,) = caplog.records
    assert "FRAME_DUMP_DIR: can't write" in record.getMessage()
