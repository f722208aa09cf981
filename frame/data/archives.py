"""Columns out of .npz files."""

from __future__ import annotations

from collections.abc import Sequence

from frame.core.errors import InvalidArgumentError, NotFoundError
from frame.data.datasets import TensorDataset
from frame.data.files import Pathlike, existing_file
from frame.data.images import checked_names


def npz_dataset(path: Pathlike, columns: Sequence[str] = ()) -> TensorDataset:
    """Read the columns of a dataset from an .npz file; nothing in it is ever unpickled.

    Args:
        path: the file.
        columns: the names of the arrays, in the order of the columns; all of them by default, in
            the order of the file.

    Raises:
        NotFoundError: there is no such file, or no array of a name.
        InvalidArgumentError: the file is damaged or holds something else than numbers, or the
            columns have different numbers of rows.
    """
    from frame.interop import npz  # zipfile is not for those who read no archive

    columns = checked_names("columns", columns)
    with existing_file(path, "an npz file").open("rb") as file:
        arrays = npz.read(file, str(path))
    for name in columns:
        if name not in arrays:
            known = ", ".join(list(arrays)[:12]) or "none"
            raise NotFoundError(f"expected an array {name!r} in {path}, found {known}")
    try:
        return TensorDataset([arrays[name] for name in columns or arrays])
    except InvalidArgumentError as problem:
        raise InvalidArgumentError(f"{path}: {problem}") from problem
