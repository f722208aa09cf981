"""The import contract: who may import whom, at the top of a file or inside a function."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from tests.project import checkout

FOUNDATION = ("core", "ir", "ops", "hal", "nn", "interop", "data", "compiler")

# layer -> the other layers that it may import
ALLOWED: dict[str, frozenset[str]] = {
    "core": frozenset(),
    "ir": frozenset({"core"}),
    "ops": frozenset({"core", "ir"}),
    "hal": frozenset({"core", "ir"}),
    "nn": frozenset({"core", "ir", "ops"}),
    "interop": frozenset({"core"}),
    "data": frozenset({"core", "interop"}),
    "compiler": frozenset({"core", "ir", "ops", "hal"}),
    "runtime": frozenset(FOUNDATION),
    "blueprint": frozenset({"core", "ir", "ops", "nn"}),
    "train": frozenset({*FOUNDATION, "runtime", "blueprint"}),
    # A model spec declares a training run: the frontend stands above the layer that trains.
    "frontend": frozenset({*FOUNDATION, "runtime", "blueprint", "train", "codegen", "frame"}),
    "cli": frozenset(
        {*FOUNDATION, "runtime", "blueprint", "frontend", "train", "codegen", "frame"}
    ),
    "codegen": frozenset({"core", "ir", "ops"}),
    "backends": frozenset(),
    "frame": frozenset({*FOUNDATION, "runtime", "blueprint", "frontend", "train", "cli", "frame"}),
}
OF_A_BACKEND = frozenset({"core", "ir", "hal", "ops", "codegen"})

# The version is a leaf without imports that every layer may stamp into what it writes.
LEAVES = frozenset({"frame._version"})

# ir loads the op table by name when a graph is parsed before anybody imported the ops.
BOOTSTRAP = ("frame.ir.graph", "frame.ops")

# Only these layers may touch a package that is slow to import or drives a device.
LLVM_LAYERS = ("codegen", "backends:")

# os.environ has one reader, so that one table lists every variable.
ENVIRONMENT_READER = "frame.core.config"

# A model file is data, and no path of the product starts a compiler. The demo shows a second
# process, and long code is compiled in several: all are frame's own.
FORBIDDEN_MODULES = {"pickle", "shelve", "subprocess", "multiprocessing"}
MAY_START_FRAME = {"frame.cli.demo", "frame.backends.cpu.objects"}


def layer(name: str) -> str:
    """Return the layer of a dotted module name; a backend is `backends:its_name`."""
    parts = name.split(".")
    if parts[:2] == ["frame", "backends"] and len(parts) > 2:
        return f"backends:{parts[2]}"
    in_a_layer = len(parts) > 1 and parts[1] in ALLOWED and parts[1] != "frame"
    return parts[1] if in_a_layer else "frame"


def allowed(importer: str, imported: str) -> bool:
    if imported in LEAVES or (importer, imported) == BOOTSTRAP:
        return True
    source, target = layer(importer), layer(imported)
    permitted = OF_A_BACKEND if source.startswith("backends:") else ALLOWED[source]
    return source == target or target in permitted


def violations(found: list[checkout.Module]) -> list[str]:
    known = frozenset(module.name for module in found)
    return [
        f"{module.where}:{each.line}: {layer(module.name)} imports {each.name}"
        for module in found
        for each in checkout.imports(module, known)
        if each.name.split(".")[0] == "frame" and not allowed(module.name, each.name)
    ]


def test_every_import_follows_the_contract() -> None:
    assert violations(checkout.modules()) == []


def test_every_folder_under_frame_is_a_layer() -> None:
    folders = {
        path.name for path in (checkout.ROOT / "frame").iterdir() if (path / "__init__.py").exists()
    }
    assert folders <= set(ALLOWED), "name the new folder in ALLOWED and in the design"


@pytest.mark.parametrize(
    ("importer", "line", "legal"),
    [
        ("frame/ir/graph.py", "from frame.core import shapes", True),
        ("frame/ir/verify.py", "from frame import ops", False),
        ("frame/ir/verify.py", "from ..ops import record", False),
        ("frame/ir/graph.py", "def f():\n    import frame.runtime.cache", False),
        ("frame/core/config.py", "from frame._version import __version__", True),
        ("frame/core/config.py", "import frame", False),
        ("frame/runtime/registry.py", "f = import_module('frame.backends')", False),
        ("frame/runtime/registry.py", "from frame import compiler, nn, data", True),
        ("frame/runtime/registry.py", "import frame.codegen.emit", False),
        ("frame/train/fitting.py", "from frame.codegen import loops", False),
        ("frame/cli/inspect.py", "from frame.codegen import loops", True),
        ("frame/cli/inspect.py", "import frame.backends.cpu", False),
        ("frame/__init__.py", "import frame.backends", False),
        ("codegen/emit/llvm.py", "from frame.hal import backend", False),
        ("codegen/emit/llvm.py", "from frame.codegen.loops import ir", True),
        ("backends/cuda/driver.py", "from frame.backends.cpu import pool", False),
        ("backends/cuda/driver.py", "from frame.backends.cuda import pool", True),
        ("backends/cuda/driver.py", "from frame.runtime import cache", False),
        ("backends/cuda/driver.py", "from ..cpu import pool", False),
    ],
)  # fmt: skip
def test_the_contract_can_fail(tmp_path: Path, importer: str, line: str, legal: bool) -> None:
    for name in ("ops", "compiler", "nn", "data", "core"):
        package = tmp_path / "frame" / name / "__init__.py"
        package.parent.mkdir(parents=True, exist_ok=True)
        package.touch()
    path = tmp_path / importer
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line)
    found = checkout.modules(tmp_path)
    known = frozenset(module.name for module in found)
    [module] = [module for module in found if module.path == path]
    verdicts = [
        allowed(module.name, each.name)
        for each in checkout.imports(module, known)
        if each.name.split(".")[0] == "frame"
    ]
    assert verdicts and all(verdicts) == legal


def _third_party() -> list[tuple[checkout.Module, checkout.Import, str]]:
    found = checkout.modules()
    known = frozenset(module.name for module in found)
    named = [
        (module, each, each.name.split(".")[0])
        for module in found
        for each in checkout.imports(module, known)
    ]
    return [entry for entry in named if entry[2] not in {"frame", *sys.stdlib_module_names}]


def test_every_third_party_import_is_declared() -> None:
    project = tomllib.loads((checkout.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {_distribution(line) for group in groups for line in group}
    declared |= {"_cffi_backend", "yaml", "PIL"}  # the module below cffi, of PyYAML, of Pillow
    missing = [
        f"{module.where}:{each.line}: {each.name}"
        for module, each, top in _third_party()
        if top.lower().replace("_", "-") not in declared and top not in declared
    ]
    assert missing == []


def _distribution(line: str) -> str:
    name = line
    for mark in " <>=!~;[":
        name = name.split(mark)[0]
    return name.lower().replace("_", "-")


def test_only_code_generation_imports_llvmlite() -> None:
    wrong = [
        f"{module.where}:{each.line}"
        for module, each, top in _third_party()
        if top == "llvmlite" and not layer(module.name).startswith(LLVM_LAYERS)
    ]
    assert wrong == []


def test_nothing_imports_pickle_or_starts_processes() -> None:
    found = checkout.modules()
    known = frozenset(module.name for module in found)
    wrong = [
        f"{module.where}:{each.line}: {each.name}"
        for module in found
        for each in checkout.imports(module, known)
        if each.name.split(".")[0] in FORBIDDEN_MODULES and module.name not in MAY_START_FRAME
    ]
    assert wrong == []


def test_only_config_reads_the_environment() -> None:
    names = ("os.environ", "os.getenv", "from os import environ", "from os import getenv")
    wrong = [
        module.where
        for module in checkout.modules()
        if module.name != ENVIRONMENT_READER
        and any(name in module.path.read_text("utf-8") for name in names)
    ]
    assert wrong == []
