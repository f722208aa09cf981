"""`.frame` files: a compiled model as one file of data.

    magic (8 bytes) | header length (8, little-endian) | SHA-256 of the header (32) | header
    sections, each at the offset, with the length and the SHA-256 that the header gives

The header is JSON: names, entries, how each graph becomes a training step, and the table of
sections. Sections hold the declared graph of each entry as text, its constants and the weights as
safetensors, and for the target that the model was compiled for its manifests, load results and
machine code. A digest stops damage, not malice: machine code is run with `trust=True` alone, and is
otherwise taken from the cache or made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from frame._version import __version__
from frame.core.dataclass import dataclass
from frame.core.errors import FrameError, InvalidArgumentError, NotFoundError
from frame.core.files import atomic_write
from frame.core.logs import Logger
from frame.interop.checks import json_object
from frame.interop.weights import dump_safetensors, parse_safetensors
from frame.ir.graph import Graph, Location
from frame.ir.parser import parse_graph
from frame.ir.printer import constant_pool, print_graph
from frame.runtime.backends import backend
from frame.runtime.entry import Entry
from frame.runtime.loading import Declared, Loaded, Transform, load_program_key
from frame.runtime.manifest import Manifest, build_program, signature_to_data
from frame.runtime.model import INFER, CompiledModel
from frame.runtime.pass_texts import pass_texts

_LOG = Logger("frame.runtime")
MAGIC = b"FRAMEF1\n"
FORMAT = 1
MAX_HEADER = 64 << 20
_FIXED = struct.Struct("<8sQ32s")
_ALIGNMENT = 64


# --- writing --------------------------------------------------------------------------------------


class _Sections:
    """The sections of a file being written."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.data: list[bytes] = []
        self._end = 0

    def add(self, name: str, data: bytes) -> str:
        """Add a section and return its name."""
        if all(row[0] != name for row in self.rows):
            padding = -self._end % _ALIGNMENT
            self.data.append(b"\0" * padding + data)
            digest = hashlib.sha256(data).hexdigest()
            self.rows.append([name, self._end + padding, len(data), digest])
            self._end += padding + len(data)
        return name


def save(model: CompiledModel, path: str | os.PathLike[str], objects: bool = True) -> None:
    """Write a model to a file, atomically.

    The entry for inference is always in the file, the other entries where they were compiled. With
    `objects` the machine code of the entries is, too.

    Raises:
        InvalidArgumentError: the model was compiled with passes or a target of the user's code,
            which a file of data can't hold.
        NotFoundError: the folder does not exist.
    """
    model.entry(INFER)
    sections = _Sections()
    with model.store.reading():
        arrays = {name: model.store.array(name) for name in model.store}
        weights = dump_safetensors(arrays)
        counter = [int(word) for word in model.counter.words]
        derived = {name: _derived_results(entry) for name, entry in model.entries.items()}
    found = (
        _entry_row(name, entry, sections, derived[name] if objects else None)
        for name, entry in model.entries.items()
    )
    rows = [row for row in found if row is not None]
    header = {
        "format": FORMAT,
        "frame": __version__,
        "name": model.name,
        "counter": counter,
        "parameters": list(model.params),
        "weights": sections.add("weights", weights),
        "entries": rows,
        "sections": sections.rows,
    }
    _write(path, header, sections)


def _write(path: str | os.PathLike[str], header: Mapping[str, Any], sections: _Sections) -> None:
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    text += b" " * (-(len(text) + _FIXED.size) % _ALIGNMENT)
    fixed = _FIXED.pack(MAGIC, len(text), hashlib.sha256(text).digest())
    atomic_write(path, lambda file: file.writelines([fixed, text, *sections.data]))


def _entry_row(
    name: str, entry: Entry, sections: _Sections, derived: bytes | None
) -> dict[str, Any] | None:
    declared = entry.declared
    transform = declared.transform
    if transform is not None and transform.data is None:
        _LOG.warning(
            "the entry %s is not saved: its optimizer is not one of frame's, and a file holds no "
            "code; compile it again after loading",
            name,
        )
        return None
    graph = declared.graph
    row: dict[str, Any] = {
        "name": name,
        "graph": sections.add(f"graph/{name}", print_graph(graph).encode()),
        "constants": sections.add(f"constants/{name}", dump_safetensors(constant_pool(graph))),
        "modules": _module_paths(graph),
        "transform": None if transform is None else transform.data,
        "backend": declared.backend,
        "target": _target_name(declared),
        "passes": pass_texts(declared.passes),
        "options": _plain_options(declared.options),
        "signature": signature_to_data(entry.signature),
    }
    if derived is not None:
        row["objects"] = [_object_row(name, entry, sections, derived)]
    return row


def _module_paths(graph: Graph) -> list[str]:
    return [graph.location(node).module for node in graph.nodes]


def _target_name(declared: Declared) -> str | None:
    """The name of the target; None for the machine that reads the file."""
    target = declared.target
    if target is None:
        return None
    if backend(declared.backend).target(target.name).text() != target.text():
        raise InvalidArgumentError(
            f"a .frame file names its target, and {target.name!r} is not the name of this "
            "description: compile with target=None or a name such as 'x86-64-v3'"
        )
    return target.name


def _plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in options.items():
        if not isinstance(value, (str, int, float, bool, type(None))):
            raise InvalidArgumentError(
                f"a .frame file holds options that are numbers and texts; {name!r} is {value!r:.60}"
            )
    return dict(options)


def _object_row(name: str, entry: Entry, sections: _Sections, derived: bytes) -> dict[str, Any]:
    """The machine code of an entry: the manifest, and the artefact of each piece by its key."""
    manifest, programs = entry.loaded.manifest, [entry.loaded.run]
    plans = [manifest.run]
    if manifest.load is not None and entry.loaded.load is not None:
        plans.append(manifest.load)
        programs.append(entry.loaded.load)
    artifacts = {}
    for plan, program in zip(plans, programs, strict=True):
        for piece, compiled in zip(plan.pieces, program.pieces, strict=True):
            data = compiled.executable.serialize()
            artifacts[piece.key] = sections.add(f"object/{piece.key}", data)
    return {
        "target": entry.declared.on.text(),
        "source": backend(entry.declared.backend).source_hash(),
        "manifest": sections.add(f"manifest/{name}", manifest.to_bytes()),
        "artifacts": artifacts,
        "derived": sections.add(f"derived/{name}", derived) if derived else None,
        "derived_key": load_program_key(manifest) if derived else None,
    }


def _derived_results(entry: Entry) -> bytes:
    """The load results for the weights as they are now, as safetensors; empty where none is."""
    arrays = entry.current_derived()
    return dump_safetensors({f"derived{i}": a for i, a in enumerate(arrays)}) if arrays else b""


# --- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FrameFile:
    """The checked header of a file, and where its sections are."""

    path: Path
    header: Mapping[str, Any]
    table: Mapping[str, tuple[int, int, str]]
    start: int

    @property
    def name(self) -> str:
        """The name of the model."""
        return str(self.header["name"])

    @property
    def entries(self) -> tuple[Mapping[str, Any], ...]:
        """The rows of the entries."""
        return tuple(self.header["entries"])

    def section(self, name: str) -> bytes:
        """Return a section after its digest has been checked.

        Raises:
            InvalidArgumentError: there is no such section, or it is damaged.
        """
        if name not in self.table:
            _fail(self.path, f"it names the section {name!r:.80}, which it does not have")
        offset, length, digest = self.table[name]
        with self.path.open("rb") as file:
            file.seek(self.start + offset)
            data = file.read(length)
        if hashlib.sha256(data).hexdigest() != digest:
            _fail(self.path, f"its section {name!r:.80} is damaged (the digest differs)")
        return data


def read_header(path: str | os.PathLike[str]) -> FrameFile:
    """Read and check the header of a `.frame` file; no section is read.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: it is not a `.frame` file, is damaged, or has another format.
    """
    place = Path(path)
    if not place.is_file():
        raise NotFoundError(f"there is no file {place}")
    with place.open("rb") as file:
        text, start = _header_text(file, place)
    header = json_object(text, "its header", partial(_fail, place))
    if header.get("format") != FORMAT:
        _fail(place, f"its format is {header.get('format')!r:.20}, this frame reads {FORMAT}")
    table = _section_table(header, place.stat().st_size - start, place)
    _check_fields(header, place)
    return FrameFile(place, header, table, start)


def _header_text(file: BinaryIO, path: Path) -> tuple[bytes, int]:
    fixed = file.read(_FIXED.size)
    if len(fixed) < _FIXED.size or not fixed.startswith(MAGIC):
        _fail(path, "it does not begin as such a file does" if fixed else "it is empty")
    _, length, digest = _FIXED.unpack(fixed)
    if length > MAX_HEADER:
        _fail(path, f"its header would have {length} bytes, more than {MAX_HEADER}")
    text = file.read(length)
    if len(text) < length:
        _fail(path, f"it ends inside its header, after {_FIXED.size + len(text)} bytes")
    if hashlib.sha256(text).digest() != digest:
        _fail(path, "its header is damaged (the digest differs)")
    return text, _FIXED.size + length


def _section_table(
    header: Mapping[str, Any], length: int, path: Path
) -> dict[str, tuple[int, int, str]]:
    """Return the sections after a check that they lie in the file, in order, without overlap."""
    table: dict[str, tuple[int, int, str]] = {}
    end = 0
    rows = header.get("sections")
    for row in rows if isinstance(rows, list) else _fail(path, "it has no table of sections"):
        if not (isinstance(row, list) and [type(x) for x in row] == [str, int, int, str]):
            _fail(path, f"a row of its table of sections is {row!r:.80}")
        name, offset, size, digest = row
        if name in table:
            _fail(path, f"it has two sections named {name!r:.80}")
        if offset < end or size < 0:
            _fail(path, f"its section {name!r:.80} overlaps the one before it")
        end = offset + size
        if end > length:
            _fail(path, f"its section {name!r:.80} ends at byte {end} of {length}: it is truncated")
        table[name] = (offset, size, digest)
    if end != length:
        _fail(path, f"its sections end at byte {end}, the file at {length}")
    return table


_FIELDS = {"name": str, "counter": list, "parameters": list, "weights": str, "entries": list}
_ENTRY_FIELDS = {
    "name": str, "graph": str, "constants": str, "modules": list, "transform": (dict, type(None)),
    "backend": str, "target": (str, type(None)), "passes": (list, type(None)), "options": dict,
    "objects": list,
}  # fmt: skip


def _check_fields(header: Mapping[str, Any], path: Path) -> None:
    _check_types(header, _FIELDS, "header", path)
    names = []
    for row in header["entries"]:
        if not isinstance(row, dict):
            _fail(path, f"an entry is {row!r:.60}")
        _check_types({"objects": [], **row}, _ENTRY_FIELDS, "entry", path)
        names.append(row["name"])
    if len(set(names)) != len(names) or INFER not in names:
        _fail(path, f"its entries are {names!r:.80}: expected {INFER!r} once, and others once")
    words = header["counter"]
    if len(words) != 2 or not all(type(w) is int and 0 <= w < 1 << 64 for w in words):
        _fail(path, f"its random counter is {words!r:.80}")


def _check_types(row: Mapping[str, Any], fields: Mapping[str, Any], what: str, path: Path) -> None:
    for name, kind in fields.items():
        if not isinstance(row.get(name), kind):
            _fail(path, f"the field {name!r} of its {what} is {row.get(name)!r:.60}")


def load(path: str | os.PathLike[str], trust: bool = False) -> CompiledModel:
    """Return the model in a `.frame` file.

    Args:
        path: the file.
        trust: run the machine code in the file, where it is for this machine and this version of
            frame. A file can't prove who made it: say so for your own files alone. Otherwise the
            code is taken from the cache, or made again.

    Raises:
        NotFoundError: there is no such file, or its backend is not installed.
        InvalidArgumentError: it is not a `.frame` file, or is damaged.
    """
    file = read_header(path)
    weights = _safetensors(file, str(file.header["weights"]))
    parameters = [str(name) for name in file.header["parameters"]]
    missing = [name for name in parameters if name not in weights]
    if missing:
        _fail(file.path, f"the parameter {missing[0]!r:.80} is not among its weights")
    declared = {str(r["name"]): cache(partial(_declared, file, r)) for r in file.entries}
    model = CompiledModel(
        file.name,
        declared,
        {name: weights[name] for name in parameters},
        state={name: array for name, array in weights.items() if name not in parameters},
    )
    model.counter.words[:] = np.array(file.header["counter"], np.uint64)
    for row in file.entries:
        if found := _matching(declared[str(row["name"])](), row):
            _adopt(model, file, str(row["name"]), found, trust)
    model.entry(INFER)
    return model


def _safetensors(file: FrameFile, name: str) -> dict[str, np.ndarray]:
    return parse_safetensors(file.section(name), f"section {name!r} of {file.path}")


def _declared(file: FrameFile, row: Mapping[str, Any]) -> Declared:
    try:
        text = file.section(row["graph"]).decode()
        graph = parse_graph(text, _safetensors(file, row["constants"]))
    except (UnicodeDecodeError, FrameError) as error:
        _fail(file.path, f"the graph of its entry {row['name']!r:.60}: {error}")
    transform: Transform | None = None
    if row["transform"] is not None:
        from frame.runtime.training import transform_from_data

        transform = transform_from_data(graph, row["transform"])
    owner = backend(row["backend"])
    target = None if row["target"] is None else owner.target(row["target"])
    passes = None if row["passes"] is None else [str(text) for text in row["passes"]]
    placed = replace(graph, locations=_locations(graph, row["modules"]))
    return Declared(placed, owner.name, target, transform, passes, dict(row["options"]))


def _locations(graph: Graph, modules: list[Any]) -> tuple[Location, ...]:
    """The module paths of the nodes, by origin; the parser numbers origins by node."""
    places = list(graph.locations)
    for node, path in zip(graph.nodes, modules, strict=False):
        if node.origin is not None and 0 <= node.origin < len(places):
            places[node.origin] = Location(str(path), "", node.op)
    return tuple(places)


def _adopt(
    model: CompiledModel, file: FrameFile, name: str, found: Mapping[str, Any], trust: bool
) -> None:
    """Take over what the file holds compiled for this machine: code if trusted, load results."""
    if trust and (loaded := _trusted(file, found)) is not None:
        model.adopt(name, model.declaration(name), loaded)
    if found.get("derived") is not None and (trust or name == INFER):
        _adopt_derived(model.entry(name), file, found)


def _matching(declared: Declared, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The objects of an entry that fit this machine and the code of its backend."""
    target, source = declared.on.text(), backend(declared.backend).source_hash()
    for item in row.get("objects") or ():
        if isinstance(item, dict) and (item.get("target"), item.get("source")) == (target, source):
            return item
    return None


class _FileStore:
    """The artefacts of a trusted file, as a backend sees them."""

    def __init__(self, file: FrameFile, names: Mapping[str, str]) -> None:
        self._file, self._names = file, names

    def get(self, key: str) -> bytes | None:
        """Return an artefact of the file, else of the cache."""
        from frame.runtime.cache import default_cache

        if key in self._names:
            return self._file.section(self._names[key])
        return default_cache().artifacts().get(key)

    def put(self, key: str, data: bytes) -> None:
        """Keep an artefact in the cache."""
        from frame.runtime.cache import default_cache

        default_cache().artifacts().put(key, data)


def _trusted(file: FrameFile, row: Mapping[str, Any]) -> Loaded | None:
    manifest = Manifest.from_bytes(file.section(str(row.get("manifest"))))
    names = row.get("artifacts")
    store = _FileStore(file, names if isinstance(names, dict) else {})
    run = build_program(manifest.run, store)
    load_program = None if manifest.load is None else build_program(manifest.load, store)
    if run is None or (manifest.load is not None and load_program is None):
        _LOG.warning("%s lacks machine code that it names: it is made again", file.path)
        return None
    return Loaded(manifest, run, load_program, True, False)


def _adopt_derived(entry: Entry, file: FrameFile, row: Mapping[str, Any]) -> None:
    """Use the load results of a file if its load program is the one that would make them."""
    if row.get("derived_key") != load_program_key(entry.loaded.manifest):
        return
    arrays = _safetensors(file, str(row["derived"]))
    names = [f"derived{i}" for i in range(len(arrays))]
    if set(names) != set(arrays):
        _fail(file.path, f"its load results are {', '.join(sorted(arrays))!r:.80}")
    entry.adopt_derived([arrays[name] for name in names])


def _fail(path: Path, problem: str) -> NoReturn:
    raise InvalidArgumentError(f"expected a sound .frame file, received {path}: {problem}")
