"""The words of the command line that have a grammar of their own: inputs and model references."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from frame.cli.words import CommandError, word
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError, NotFoundError

NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]*$")
DIMENSIONS_BY_X = re.compile(r"^\w+(?:x\w+)*$")
MEMBER = re.compile(r"^(?P<file>.*\.npz):(?P<member>[^/\\:]+)$")


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One `--input` of `frame compile`: a shape, a dtype, and a name unless there is one input."""

    name: str | None
    shape: tuple[Any, ...]
    dtype: Any


@dataclass(frozen=True, slots=True)
class InputFile:
    """One `--input` of `frame run`: an array file, its member for .npz, and a name."""

    name: str | None
    path: Path
    member: str | None = None


def parse_input_spec(text: str) -> InputSpec:
    """Parse `name=1x3x224x224`, `name=batch,784:float32` or either without the name.

    Dimensions are separated by commas, or by `x` where no name holds an x; each is a number, a
    symbol, or a sum of products of them. `scalar` is the shape without dimensions.

    Raises:
        CommandError: with the grammar and the text that does not fit it.
    """
    from frame.core.dtypes import dtype
    from frame.core.shapes import as_shape

    name, rest = _split_name(text, "--input x=1x3x224x224 or --input x=batch,784:float32")
    shape, _, type_name = rest.partition(":")
    words = [] if shape == "scalar" else _dimensions(shape, text)
    with word(f"--input {text}"):
        return InputSpec(name, as_shape(words), dtype(type_name or "float32"))


def _dimensions(shape: str, text: str) -> list[str]:
    separator = "," if "," in shape or not DIMENSIONS_BY_X.match(shape) else "x"
    words = [word.strip() for word in shape.split(separator)]
    if not all(words):
        raise CommandError(
            f"--input {text}: expected dimensions such as 1x3x224x224 or batch,784 (commas where "
            f"a name holds an x), received {shape!r}"
        )
    return words


def parse_input_file(text: str) -> InputFile:
    """Parse `name=image.npy`, `name=images.npz:member` or either without the name.

    Raises:
        CommandError: when the file is neither .npy nor .npz with a member.
    """
    name, rest = _split_name(text, "--input x=image.npy or --input x=images.npz:member")
    found = MEMBER.match(rest)
    if found:
        return InputFile(name, Path(found["file"]), found["member"])
    if not rest.endswith(".npy"):
        raise CommandError(
            f"--input {text}: expected an array file, image.npy or images.npz:member"
        )
    return InputFile(name, Path(rest))


def _split_name(text: str, example: str) -> tuple[str | None, str]:
    name, equals, rest = text.partition("=")
    if not equals:
        name, rest = "", text
    if not rest or (equals and not NAME.match(name)):
        raise CommandError(f"--input {text}: expected {example}")
    return name or None, rest


def load_array(source: InputFile) -> Any:
    """Read the array of an `--input`; files that hold Python objects are refused.

    Raises:
        NotFoundError: no such file, or no such member.
        InvalidArgumentError: the file is damaged, or is not an array file.
    """
    import numpy as np

    if not source.path.is_file():
        raise NotFoundError(f"there is no file {source.path}")
    try:
        loaded = np.load(source.path, allow_pickle=False)
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise _unreadable(source.path, error) from None
    if source.member is None:
        return loaded
    if not isinstance(loaded, np.lib.npyio.NpzFile):
        raise InvalidArgumentError(
            f"{source.path}: expected a .npz file with the member {source.member!r}, received a "
            "file of one array"
        )
    with loaded as archive:
        if source.member not in archive:
            members = ", ".join(archive.files)
            raise NotFoundError(f"{source.path} has no member {source.member!r}; it has {members}")
        try:
            return archive[source.member]
        except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
            raise _unreadable(source.path, error) from None


def _unreadable(path: Path, error: Exception) -> InvalidArgumentError:
    # numpy takes any bytes that it does not know for a pickle, and advises to load them.
    reason = "it is none, or holds Python objects" if "pickle" in str(error) else str(error)
    return InvalidArgumentError(f"{path} is not a readable array file: {reason}")


def check_output(path: str) -> None:
    """Check where results are to go, before the work: the folder, and the end of the name.

    Raises:
        CommandError: the name ends in neither .npy nor .npz.
        NotFoundError: the folder does not exist.
    """
    if not path.endswith((".npy", ".npz")):
        raise CommandError(f"--output {path}: expected a name that ends in .npy or .npz")
    if not Path(path).resolve().parent.is_dir():
        raise NotFoundError(f"--output {path}: there is no folder {Path(path).parent}")


def save_arrays(path: str, arrays: dict[str, Any]) -> None:
    """Write one array to a .npy file, or any number of them to a .npz file by their names.

    A file that is there already stays whole until the new one is.

    Raises:
        CommandError: another kind of file, or several arrays for a .npy file.
        OSError: the file system refuses.
    """
    import numpy as np

    from frame.core.files import atomic_write

    if path.endswith(".npz"):
        atomic_write(path, lambda file: np.savez(file, **arrays))
    elif path.endswith(".npy") and len(arrays) == 1:
        atomic_write(path, lambda file: np.save(file, next(iter(arrays.values()))))
    else:
        expected = ".npy or .npz" if len(arrays) == 1 else f".npz for {_list(list(arrays))}"
        raise CommandError(f"--output {path}: expected a name that ends in {expected}")


def by_name(items: Iterable[Any], names: list[str]) -> dict[str, Any]:
    """Assign `--input` values to the inputs `names`; an item without a name needs a single input.

    Raises:
        CommandError: an unknown, doubled or missing input.
    """
    found: dict[str, Any] = {}
    for item in items:
        name = item.name or _only(names)
        if name not in names:
            raise CommandError(f"there is no input {name!r}; the inputs are {_list(names)}")
        if name in found:
            raise CommandError(f"--input {name} is given twice")
        found[name] = item
    missing = [name for name in names if name not in found]
    if missing:
        raise CommandError(f"missing --input for {_list(missing)}")
    return found


def _only(names: list[str]) -> str:
    if len(names) != 1:
        raise CommandError(f"--input needs a name (name=...) because the inputs are {_list(names)}")
    return names[0]


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"
