"""What a user gets: the built wheel, and frame started in the checkout after a plain install."""

from __future__ import annotations

import configparser
import io
import json
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from frame.runtime.backends import OWN
from tests.project import checkout

BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
BUILD_FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel from a copy of the checkout that has the rests of an older build in it."""
    source = tmp_path_factory.mktemp("source")
    for name in checkout.PACKAGES:
        shutil.copytree(
            checkout.ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in BUILD_FILES:
        shutil.copy(checkout.ROOT / name, source / name)
    stale = source / "build" / "lib" / "frame" / "deleted_module.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    output = tmp_path_factory.mktemp("wheel")
    built = checkout.run_python("-c", BUILD, str(output), folder=source)
    assert built.returncode == 0, built.stderr
    [path] = output.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the wheel into a folder, which is what a plain install does with it."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def _names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_wheel_holds_every_module_and_no_other(wheel: Path) -> None:
    expected = set()
    for module in checkout.modules():
        below = "/".join(module.name.split("."))
        expected.add(f"{below}/__init__.py" if module.is_package else f"{below}.py")
    packed = {name for name in _names(wheel) if name.endswith(".py")}
    assert packed == expected


@pytest.mark.parametrize(
    "name",
    [
        "frame/py.typed",
        "frame/ops/__init__.pyi",
        "frame/data/digits.npz",
        "frame/data/digits.LICENSE.md",
        "frame/frontend/schemas/spec-0.json",
        "frame/frontend/schemas/spec-1.json",
        "frame/codegen/__init__.py",
        "frame/backends/__init__.py",
    ],
)
def test_wheel_holds(wheel: Path, name: str) -> None:
    assert name in _names(wheel)


def test_nothing_generic_at_the_top_level(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in _names(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"frame"}


def test_wheel_is_the_same_on_every_system(wheel: Path) -> None:
    assert wheel.name.startswith("frame_compiler-") and wheel.name.endswith("-py3-none-any.whl")


def test_entry_points(wheel: Path) -> None:
    [name] = [name for name in _names(wheel) if name.endswith("entry_points.txt")]
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.read_file(io.StringIO(zipfile.ZipFile(wheel).read(name).decode()))
    assert dict(parser["console_scripts"]) == {"frame": "frame.cli:main"}
    assert {"cpu", "intel_npu"} <= set(parser["frame.backends"])
    for key, value in parser["frame.backends"].items():
        assert value.startswith(f"frame.backends.{key}:")
    assert dict(parser["frame.backends"]) == dict(OWN)


def test_metadata_of_the_wheel(wheel: Path) -> None:
    [name] = [name for name in _names(wheel) if name.endswith("METADATA")]
    text = zipfile.ZipFile(wheel).read(name).decode()
    assert "License-Expression: Apache-2.0" in text
    assert "Requires-Python: >=3.11" in text
    extras = {"cuda", "opencl", "sycl", "openvino", "onnx", "torch", "bench", "test", "docs"}
    assert extras <= {
        line[16:] for line in text.splitlines() if line.startswith("Provides-Extra: ")
    }


def test_digits_in_the_wheel_are_the_real_ones(site: Path) -> None:
    with np.load(site / "frame" / "data" / "digits.npz", allow_pickle=False) as digits:
        images, labels = digits["images"], digits["labels"]
    assert images.shape == (1797, 8, 8) and images.dtype == np.uint8
    assert images.min() == 0 and images.max() == 16
    # The counts that UCI publishes for optdigits.tes.
    published = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(labels).tolist() == published


WHERE = """
import json, sys
import frame, frame.codegen, frame.backends
from importlib.metadata import entry_points
print(json.dumps({
    "frame": frame.__file__, "codegen": frame.codegen.__file__, "backends": frame.backends.__file__,
    "keys": sorted(point.name for point in entry_points(group="frame.backends")),
    "doubles": [name for name in sys.modules if name.startswith(("codegen", "backends"))],
}))
"""


@pytest.mark.parametrize("inside", [True, False], ids=["in the checkout", "elsewhere"])
def test_the_three_packages_come_from_one_place(site: Path, tmp_path: Path, inside: bool) -> None:
    folder = checkout.ROOT if inside else tmp_path
    result = checkout.run_python("-c", WHERE, folder=folder, path=site)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    root = checkout.ROOT if inside else site
    mapped = root if inside else root / "frame"
    assert Path(found["frame"]).parent == root / "frame"
    assert Path(found["codegen"]).parent == mapped / "codegen"
    assert Path(found["backends"]).parent == mapped / "backends"
    assert {"cpu", "intel_npu"} <= set(found["keys"])
    assert found["doubles"] == []


@pytest.mark.parametrize("inside", [True, False], ids=["in the checkout", "elsewhere"])
def test_python_m_frame_works_after_a_plain_install(
    site: Path, tmp_path: Path, inside: bool
) -> None:
    folder = checkout.ROOT if inside else tmp_path
    result = checkout.run_python("-m", "frame", "--version", folder=folder, path=site)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("frame ")
    listed = checkout.run_python("-m", "frame", "backends", "--json", folder=folder, path=site)
    assert listed.returncode == 0, listed.stderr
    assert {"cpu", "intel_npu"} <= {entry["name"] for entry in json.loads(listed.stdout)}


def test_the_interpreter_is_new_enough() -> None:
    assert sys.version_info >= (3, 11)
