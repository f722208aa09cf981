"""The checkout as the project tests see it: files, modules, and what each module imports."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"frame": "frame", "codegen": "frame.codegen", "backends": "frame.backends"}


@dataclass(frozen=True, slots=True)
class Module:
    """One source file of the three packages."""

    name: str
    path: Path
    is_package: bool

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text("utf-8"), str(self.path))

    @property
    def where(self) -> str:
        return str(self.path.relative_to(ROOT))


@dataclass(frozen=True, slots=True)
class Import:
    """One imported dotted name, wherever in the file it is imported."""

    name: str
    line: int


def modules(root: Path = ROOT) -> list[Module]:
    """Return every module of the three packages in the order of their paths."""
    found = []
    for folder, package in PACKAGES.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            below = parts[:-1] if is_package else parts
            found.append(Module(".".join((package, *below)), path, is_package))
    return found


def imports(module: Module, known: frozenset[str]) -> Iterator[Import]:
    """Yield what a module imports: statements anywhere, and import_module with a literal name.

    `from package import name` counts as `package.name` where that is a module in `known`.
    """
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from _from_names(module, node, known)
        elif isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__"}:
            yield from _literal_names(module, node)


def _from_names(module: Module, node: ast.ImportFrom, known: frozenset[str]) -> Iterator[Import]:
    base = node.module or ""
    if node.level:
        package = module.name.split(".") + ([""] if module.is_package else [])
        base = ".".join((*package[: -node.level], *filter(None, [base])))
    for alias in node.names:
        deeper = f"{base}.{alias.name}"
        yield Import(deeper if deeper in known else base, node.lineno)


def _called(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _literal_names(module: Module, node: ast.Call) -> Iterator[Import]:
    for value in node.args[:1]:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            name = value.value
            yield Import(f"{module.name}{name}" if name.startswith(".") else name, node.lineno)


def text_files() -> list[Path]:
    """Return the tracked files, or every file of an unpacked archive, that hold UTF-8 text."""
    found = []
    for path in _tracked() or _walked():
        try:
            path.read_text("utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        found.append(path)
    return found


def _tracked() -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        output = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        return []
    return [ROOT / name for name in output.split("\0") if name]


def _walked() -> list[Path]:
    skipped = {"build", "dist", "__pycache__"}
    inside = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [
        ROOT / path
        for path in inside
        if not skipped & set(path.parts) and not any(part.startswith(".") for part in path.parts)
    ]


def run_python(
    *arguments: str, folder: Path, path: Path | str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter in `folder` with `path` as the only PYTHONPATH; return its output."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path is not None:
        clean["PYTHONPATH"] = str(path)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
