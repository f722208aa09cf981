"""`import frame` and `frame --help` load little: counted in modules, not in time."""

from __future__ import annotations

import json

import pytest

from tests.project import checkout

# What an import must not load: code generation, device SDKs, the command line, files of weights.
HEAVY = {
    "llvmlite", "ml_dtypes", "cffi", "_cffi_backend", "safetensors", "platformdirs", "click",
    "rich", "torch", "onnx", "openvino", "pyopencl", "dpctl", "cuda", "importlib.metadata",
    "tomllib", "multiprocessing", "subprocess", "sqlite3", "http",
}  # fmt: skip
BUDGET = 10

COUNT = """
import json, sys
import numpy
before = set(sys.modules)
{statement}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def _loaded(statement: str) -> list[str]:
    code = COUNT.format(statement=statement)
    result = checkout.run_python("-c", code, folder=checkout.ROOT)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def _heavy(names: list[str]) -> set[str]:
    return {name for name in names if name in HEAVY or name.split(".")[0] in HEAVY}


def test_import_frame_loads_nothing_heavy() -> None:
    loaded = _loaded("import frame")
    assert _heavy(loaded) == set()
    assert len(loaded) <= BUDGET, loaded


def test_import_frame_loads_no_backend_and_no_code_generation() -> None:
    loaded = _loaded("import frame")
    assert [name for name in loaded if name.startswith(("frame.backends", "frame.codegen"))] == []


@pytest.mark.parametrize("arguments", [["--help"], ["doctor", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    loaded = _loaded(f"from frame.cli import main; assert main({arguments}) == 0")
    assert {name.split(".")[0] for name in _heavy(loaded)} <= {"click"}
    assert [name for name in loaded if name.startswith(("frame.runtime", "frame.nn"))] == []
