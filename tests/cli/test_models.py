"""MODEL: factories and files, and what a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from frame.cli import models
from frame.core.errors import FrameError, InvalidArgumentError, NotFoundError, UnimplementedError

SOURCE = """
from frame.core.errors import UnimplementedError
value = 7
def factory():
    return "the model"
def failing():
    return 1 / 0
def refused():
    raise UnimplementedError("not on this machine")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a module into the current folder and return its name."""
    (tmp_path / "user_model_module.py").write_text(SOURCE)
    (tmp_path / "user_broken_module.py").write_text("import no_such_package_at_all\n")
    (tmp_path / "user_wrong_module.py").write_text("raise ValueError('at import')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "user_model_module"


def test_a_factory_of_the_current_folder_is_called(module: str) -> None:
    assert models.load_model(f"{module}:factory") == "the model"
    assert models.load_model(f"{module}:value") == 7


@pytest.mark.parametrize(
    ("reference", "error", "message"),
    [
        ("no_such_module:factory", NotFoundError, "no module 'no_such_module'"),
        ("user_model_module:nothing", NotFoundError, "has no 'nothing'"),
        ("user_broken_module:factory", InvalidArgumentError, "no_such_package_at_all"),
        ("user_wrong_module:factory", InvalidArgumentError, "ValueError: at import"),
        ("user_model_module:failing", InvalidArgumentError, r"ZeroDivisionError.*\nat .*:7"),
        ("user_model_module:refused", UnimplementedError, "not on this machine"),
        ("model.onnx", UnimplementedError, "does not read ONNX"),
        ("spec.json", NotFoundError, "there is no file spec.json"),
        ("missing.txt", NotFoundError, r"no file missing\.txt"),
        ("just-a-word", InvalidArgumentError, "expected package.module:factory"),
        ("a.b:c.d", InvalidArgumentError, "expected package.module:factory"),
        ("os:system('true')", InvalidArgumentError, "expected package.module:factory"),
    ],
)
def test_wrong_references(
    module: str, reference: str, error: type[FrameError], message: str
) -> None:
    with pytest.raises(error, match=message):
        models.load_model(reference)


def test_a_text_that_is_not_utf8_is_refused(module: str, tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidArgumentError, match="UTF-8"):
        models.load_model("graph.txt")


GRAPH = """graph @relu [batch] {
  %0 = input "x" {role=input} : float32[batch, 4]
  %1 = relu(%0) : float32[batch, 4]
  return %1 as "y"
}
"""


def test_the_text_of_a_graph_is_read(tmp_path: Path) -> None:
    (tmp_path / "relu.txt").write_text(GRAPH)
    graph = models.load_model(str(tmp_path / "relu.txt"))
    assert graph.name == "relu" and f"{graph}\n" == GRAPH


def test_an_error_in_the_text_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "relu.txt").write_text(GRAPH.replace("relu(%0)", "relu(%7)"))
    with pytest.raises(InvalidArgumentError, match="line 3"):
        models.load_model(str(tmp_path / "relu.txt"))
