"""The data of a spec of version 1: one column an input and one for the target.

Files are data: no pickle, and they lie in the folder of the spec unless the caller allows more.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from frame.core.dataclass import dataclass
from frame.core.dtypes import DType
from frame.core.errors import FrameError, InvalidArgumentError, NotFoundError
from frame.frontend.document import Told, wrong
from frame.frontend.draws import Draws
from frame.frontend.kinds import (
    AnyOf,
    Boolean,
    Choice,
    Field,
    Integer,
    ListOf,
    Number,
    Numbers,
    Tagged,
    Text,
    optional,
)

PATH = Text(1, 4096)
ROWS = Integer(1)

COLUMN = Tagged(
    {
        "inline": (
            Field("values", Numbers(nested=True), "the numbers, one entry a row, or all in a row"),
        ),
        "npy": (Field("path", PATH, "a .npy file, rows along axis 0"),),
        "npz": (
            Field("path", PATH, "a .npz file"),
            Field("array", Text(1, 256), "the name of the array in it"),
        ),
        "csv": (
            Field("path", PATH, "a text of rows"),
            Field(
                "columns",
                ListOf(AnyOf((Integer(0), Text(1, 256)), "a position or a name"), 1, 2**20),
                "the columns to take, by position (from 0) or by name",
            ),
            optional("header", Boolean(), "whether the first row has the names", True),
            optional("delimiter", Choice((",", ";", "\t", "|", " ")), "what separates", ","),
        ),
        "uniform_seeded": (
            Field("range", ListOf(Number(), 2, 2), "[low, high]"),
            Field("rows", ROWS, "how many rows"),
        ),
        "integers_seeded": (
            Field("range", ListOf(Integer(), 2, 2), "[low, high], without high itself"),
            Field("rows", ROWS, "how many rows"),
        ),
    },
    docs={
        "inline": "numbers in the spec",
        "uniform_seeded": "uniform floats of the stream of training.seed",
        "integers_seeded": "uniform integers of the stream of training.seed",
    },
)
"""Where a column comes from."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where files may lie: below `folder`, or anywhere if `outside` is allowed."""

    folder: Path
    outside: bool = False

    def file(self, text: str, path: str) -> Path:
        """Return the file of a field.

        Raises:
            InvalidArgumentError: see `within`.
            NotFoundError: there is no such file.
        """
        found = self.within(text, path, "move it, or allow more (frame train --outside)")
        if not os.path.isfile(found):
            raise NotFoundError(f"{path}: there is no file {found}")
        return found

    def within(self, text: str, path: str, hint: str) -> Path:
        """Return the place that a field names, whether or not there is a file.

        Raises:
            InvalidArgumentError: it is outside of the folder, and that is not allowed, or no file
                can have this name.
        """
        try:
            found = (self.folder / text).resolve()
        except (ValueError, OSError, RuntimeError):  # no letters of names; links in a ring
            wrong(path, "the name of a file", text)
        if not self.outside and not found.is_relative_to(self.folder):
            wrong(path, f"a file in the folder of the spec, {self.folder}", text, hint)
        return found


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a column must be: its dtype and the shape of one row."""

    dtype: DType
    shape: tuple[int, ...]


def columns_of(
    entries: Mapping[str, Mapping[str, Any]],
    wanted: Mapping[str, Wanted],
    place: Place,
    seed: int,
) -> tuple[np.ndarray, ...]:
    """Return the columns, in the order of `wanted`; seeded ones take one stream in that order.

    Raises:
        InvalidArgumentError: a file is damaged, or numbers do not fit; with the path.
        NotFoundError: a file or an array in it does not exist.
    """
    draws = Draws(seed)
    made = []
    for name, want in wanted.items():
        entry, path = entries[name], f"data.{name}"
        array = _READERS[entry["kind"]](entry, want, place, draws, path)
        made.append(_fitting(array, want, path))
    return tuple(made)


# --- readers --------------------------------------------------------------------------------------

Reader = Callable[[Mapping[str, Any], Wanted, Place, Draws, str], np.ndarray]


def _inline(
    entry: Mapping[str, Any], want: Wanted, place: Place, draws: Draws, path: str
) -> np.ndarray:
    try:
        array = np.array(entry["values"])
    except ValueError:
        wrong(f"{path}.values", "arrays of equal lengths", entry["values"])
    if array.ndim == 1:
        size = math.prod(want.shape)
        if not array.size or array.size % size:
            wrong(f"{path}.values", f"a multiple of {size} numbers, a row each", array.size)
        array = array.reshape(-1, *want.shape)
    return array


def _npy(
    entry: Mapping[str, Any], want: Wanted, place: Place, draws: Draws, path: str
) -> np.ndarray:
    file = place.file(entry["path"], f"{path}.path")
    try:
        return np.asarray(np.load(file, allow_pickle=False))
    except (ValueError, EOFError, OSError) as error:
        wrong(f"{path}.path", "a sound .npy file of numbers", entry["path"], str(error))


def _npz(
    entry: Mapping[str, Any], want: Wanted, place: Place, draws: Draws, path: str
) -> np.ndarray:
    from frame.interop import npz

    file = place.file(entry["path"], f"{path}.path")
    try:
        with file.open("rb") as stream:
            arrays = npz.read(stream, str(file))
    except FrameError as error:
        raise InvalidArgumentError(f"{path}.path: {error}") from error
    if entry["array"] not in arrays:
        known = ", ".join(sorted(arrays)[:12])
        wrong(f"{path}.array", f"an array of {entry['path']} ({known})", entry["array"])
    return arrays[entry["array"]]


def _csv(
    entry: Mapping[str, Any], want: Wanted, place: Place, draws: Draws, path: str
) -> np.ndarray:
    file = place.file(entry["path"], f"{path}.path")
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, delimiter=entry["delimiter"])
            rows = [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        wrong(f"{path}.path", "a text of rows in UTF-8", entry["path"], str(error))
    header = rows.pop(0)[1] if entry["header"] and rows else []
    names = [name.strip() for name in header]
    chosen = [
        _position(each, names, f"{path}.columns[{k}]") for k, each in enumerate(entry["columns"])
    ]
    values = [
        [_cell(row, place_, entry["path"], number) for place_ in chosen] for number, row in rows
    ]
    if len(chosen) != math.prod(want.shape):
        expected = f"{math.prod(want.shape)} columns, for rows of the shape {list(want.shape)}"
        wrong(f"{path}.columns", expected, len(chosen))
    if not values:
        wrong(f"{path}.path", "at least one row", entry["path"])
    return np.array(values, np.float64).reshape(-1, *want.shape)


def _position(column: int | str, names: Sequence[str], path: str) -> int:
    if isinstance(column, int):
        return column
    if names.count(column) != 1:
        wrong(path, f"a column of the header ({', '.join(names[:12])}), once in it", column)
    return names.index(column)


def _cell(row: Sequence[str], position: int, file: str, number: int) -> float:
    try:
        return float(row[position])
    except IndexError:
        wrong(f"{file}, line {number}", f"a column {position}", Told(f"{len(row)} columns"))
    except ValueError:
        wrong(f"{file}, line {number}, column {position}", "a number", row[position])


def _uniform(
    entry: Mapping[str, Any], want: Wanted, place: Place, draws: Draws, path: str
) -> np.ndarray:
    low, high = entry["range"]
    if not want.dtype.is_float:
        wrong(f"{path}.kind", f"integers_seeded for {want.dtype}", entry["kind"])
    if not low < high:
        wrong(f"{path}.range", "[low, high] with low below high", [low, high])
    return draws.uniform((entry["rows"], *want.shape), low, high)


def _integers(
    entry: Mapping[str, Any], want: Wanted, place: Place, draws: Draws, path: str
) -> np.ndarray:
    low, high = entry["range"]
    if not low < high:
        wrong(f"{path}.range", "[low, high] with low below high", [low, high])
    return draws.integers((entry["rows"], *want.shape), low, high)


_READERS: Mapping[str, Reader] = {
    "inline": _inline,
    "npy": _npy,
    "npz": _npz,
    "csv": _csv,
    "uniform_seeded": _uniform,
    "integers_seeded": _integers,
}


# --- what every column must meet ------------------------------------------------------------------


def _fitting(array: np.ndarray, want: Wanted, path: str) -> np.ndarray:
    """Return the array as the model takes it: no value may change but by rounding to a float."""
    if array.dtype.kind not in "fiub" and array.dtype != want.dtype.numpy:
        wrong(path, "numbers", Told(f"elements of {array.dtype}"))
    if array.ndim == 0 or array.shape[1:] != want.shape:
        expected = f"rows of the shape {list(want.shape)}"
        wrong(path, expected, Told(f"an array of the shape {list(array.shape)}"))
    if len(array) == 0:
        wrong(path, "at least one row", Told("none"))
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        wrong(path, "finite numbers", Told(f"{_first_odd(array)} in row {row}"))
    with np.errstate(over="ignore", invalid="ignore"):
        made = np.ascontiguousarray(array, want.dtype.numpy)
    if want.dtype.is_float:
        if not np.isfinite(made.astype(np.float64)).all():
            wrong(path, f"numbers that {want.dtype} holds", Told("larger ones"))
    elif not np.array_equal(made.astype(array.dtype), array):
        wrong(path, f"whole numbers that {want.dtype} holds", Told("others"))
    return made


def _first_odd(array: np.ndarray) -> float:
    return float(array[~np.isfinite(array)][0])
