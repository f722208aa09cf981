"""The digest of a tree of Python files: what it sees, and what it must not stumble over."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from frame.core import sources
from frame.core.sources import tree_digest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A package of two modules."""
    folder = tmp_path / "package"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.py").write_text("A = 1\n")
    (folder / "inner" / "b.py").write_text("B = 1\n")
    return folder


IGNORED: dict[str, Callable[[Path], object]] = {
    "a text": lambda root: (root / "notes.txt").write_text("x"),
    "what Python compiled": lambda root: _written(root / "__pycache__" / "a.pyc"),
    "the lock of an editor": lambda root: (root / ".#a.py").symlink_to("user@host.17:1"),
    "a pipe": lambda root: os.mkfifo(root / "pipe.py"),
    "a folder named as a module": lambda root: (root / "folder.py").mkdir(),
}


def _written(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", IGNORED)
def test_what_is_no_code_changes_nothing_and_does_no_harm(root: Path, name: str) -> None:
    before = tree_digest([root])
    IGNORED[name](root)
    assert tree_digest([root]) == before


@pytest.mark.parametrize("name", ["c.py", "c.pyc", "c.so", "inner/c.py"])
def test_code_of_every_form_is_seen(root: Path, name: str) -> None:
    digests = {tree_digest([root])}
    for text in ("C = 1\n", "C = 2\n"):
        _written(root / name, text)
        digests.add(tree_digest([root]))
    assert len(digests) == 3


def test_linked_folders_are_seen_and_loops_end(root: Path) -> None:
    other = root.parent / "other"
    module = _written(other / "c.py", "C = 1\n")
    digests = {tree_digest([root])}
    (root / "linked").symlink_to(other)
    (other / "back").symlink_to(root)
    (root / "self").symlink_to(".")
    digests.add(tree_digest([root]))
    module.write_text("C = 2\n")
    digests.add(tree_digest([root]))
    assert len(digests) == 3


def test_an_archive_is_seen(root: Path) -> None:
    archive = root.parent / "application.zip"
    folders = [archive / "package", archive / "package" / "inner"]
    digests = {tree_digest(folders)}
    for text in ("A = 1\n", "A = 2\n"):
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("package/a.py", text)
        digests.add(tree_digest(folders))
    assert len(digests) == 3


def test_a_module_that_is_one_file_is_seen(root: Path) -> None:
    first = tree_digest([root / "a.py"])
    (root / "a.py").write_text("A = 2\n")
    assert tree_digest([root / "a.py"]) != first


class _Memo(dict):
    def put(self, key: str, data: bytes) -> None:
        self[key] = data


@pytest.mark.parametrize("memo", [None, lambda: _Memo()], ids=["no memo", "memo"])
def test_a_file_that_goes_away_meanwhile(
    root: Path, memo: Callable[[], _Memo] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor that saves a file replaces it between the look at the folder and the one at it."""
    find = sources._python_files

    def find_and_lose(roots: Iterable[str]) -> sources.Files:
        files = find(roots)
        (root / "a.py").unlink(missing_ok=True)
        return files

    before = tree_digest([root])
    monkeypatch.setattr(sources, "_find_memo", memo)
    monkeypatch.setattr(sources, "_python_files", find_and_lose)
    assert tree_digest([root]) != before
