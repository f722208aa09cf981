"""What tab completion shows: the public names of a package, each of which loads, and no others."""

from __future__ import annotations

import importlib

import pytest

import frame
from frame import ops

PACKAGES = ("", ".blueprint", ".codegen", ".core", ".data", ".interop", ".nn", ".ops", ".runtime")


@pytest.mark.parametrize("name", [f"frame{package}" for package in (*PACKAGES, ".train")])
def test_dir_shows_names_that_are_there_and_public(name: str) -> None:
    package = importlib.import_module(name)
    shown = [each for each in dir(package) if not each.startswith("__")]
    assert shown and all(hasattr(package, each) for each in shown)
    assert not {"Any", "TYPE_CHECKING", "annotations", "importlib", "os", "sys"} & set(shown)
    assert not [each for each in shown if each.startswith("_")]


def test_a_star_import_brings_the_public_names() -> None:
    found: dict[str, object] = {}
    exec("from frame import *", found)
    assert found["nn"] is frame.nn and found["trace"] is frame.trace
    assert not {"Any", "os", "sys", "importlib"} & set(found)


def test_the_names_of_ops_are_those_of_their_functions() -> None:
    assert {"relu", "matmul", "while_loop", "register"} <= set(dir(ops))
    assert "while" not in dir(ops) and "elementwise" not in dir(ops)
