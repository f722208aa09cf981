from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from frame import core
from frame.core import dtypes
from frame.core.dtypes import DTYPES, DType, dtype
from frame.core.errors import InvalidArgumentError

STORAGE_ONLY = {"float8_e4m3fn", "float8_e5m2", "int4", "uint4"}


@pytest.mark.parametrize("row", DTYPES.values(), ids=str)
def test_every_row_agrees_with_its_numpy_dtype(row: DType) -> None:
    assert row.numpy.name == row.name
    assert row.numpy.itemsize == row.itemsize
    assert dtype(row.name) is row
    assert dtype(row.numpy) is row
    assert dtype(row.numpy.type) is row
    assert row.storage_only == (row.name in STORAGE_ONLY)
    assert pickle.loads(pickle.dumps(row)) is row
    assert copy.deepcopy(row) is row


def test_kinds() -> None:
    assert dtypes.bfloat16.is_float and dtypes.bfloat16.is_signed
    assert dtypes.int8.is_integer and dtypes.int8.is_signed
    assert dtypes.uint8.is_integer and not dtypes.uint8.is_signed
    assert dtypes.bool_.is_bool and not dtypes.bool_.is_integer and str(dtypes.bool_) == "bool"
    assert dtypes.int4.itemsize == 1 and dtypes.int4.bits == 4


def test_python_types_and_byte_orders() -> None:
    assert dtype(bool) is dtypes.bool_
    assert dtype(int) is dtypes.int64
    assert dtype(float) is dtypes.float64
    assert dtype(np.dtype(">f4")) is dtypes.float32


@pytest.mark.parametrize(
    "bad",
    ["float33", "", "complex64", np.dtype("complex64"), np.dtype("U4"), object, str, None, 3, []],
    ids=repr,
)
def test_unknown_dtypes_are_named_in_the_error(bad: object) -> None:
    with pytest.raises(InvalidArgumentError, match="expected one of the dtypes float64"):
        dtype(bad)  # type: ignore[arg-type]


def test_a_dtype_is_not_its_name() -> None:
    assert dtypes.float32 != "float32"
    assert {dtypes.float32: 1}[dtype("float32")] == 1


def test_core_needs_only_numpy() -> None:
    code = (
        "import sys, frame.core as c; c.dtype('float32').numpy; c.Dim; c.TargetDescription\n"
        "bad = {'ml_dtypes', 'platformdirs', 'llvmlite', 'safetensors'} & set(sys.modules)\n"
        "sys.exit(repr(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_lazy_names_are_the_type_checkers_names() -> None:
    for name in core.__all__:
        assert getattr(core, name) is not None and name in dir(core)
    source = Path(core.__file__).read_text("utf-8")
    block = source[source.index("if TYPE_CHECKING") : source.index("_MODULES")]
    declared = {part for part in re.findall(r"[A-Za-z_0-9]+", re.sub(r"from \S+", "", block))}
    assert declared - {"if", "TYPE_CHECKING", "import"} == set(core.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        core.nothing  # noqa: B018
