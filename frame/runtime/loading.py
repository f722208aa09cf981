"""From a declaration to programs that can run: the half of compilation that a cache hit takes.

    Declared   the graph as the user declared it, and what to make of it
    Keyed      the level-1 key, taken before autocast and backward
    Loaded     programs with executables

A level-1 hit goes from the key to the manifest and the artefacts: it runs no pass, and imports
neither the passes nor code generation. What a miss needs stands in `frame.runtime.stages`.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from frame.core import config, forks, plugins
from frame.core.dataclass import dataclass
from frame.core.errors import InvalidArgumentError
from frame.core.fingerprint import Fingerprint
from frame.core.logs import Logger
from frame.core.targets import TargetDescription
from frame.hal.interfaces import VOLATILE
from frame.ir.graph import Graph
from frame.ir.hashing import structural_hash
from frame.ops.registry import foreign_records, is_built_in
from frame.runtime import fallback, statistics, versions
from frame.runtime.backends import backend
from frame.runtime.cache import MANIFEST, Cache, default_cache, process_cache
from frame.runtime.manifest import Manifest, ProgramPlan, assemble, build_program
from frame.runtime.program import Program

if TYPE_CHECKING:
    from frame.compiler.pass_manager import Instrument
    from frame.compiler.pipeline import Passes

_LOG = Logger("frame.runtime")


@dataclass(frozen=True, slots=True)
class Transform:
    """How the declared graph becomes the graph that is compiled (backward, update).

    `text` says it all: it enters the key; `apply` must depend on nothing else. `data` is the same
    as plain data, for files, and None where code of the user takes part. `initial` gives the number
    that fills a state before the first run. `held` are things that `text` names by identity alone:
    nothing of it is then kept on disk.
    """

    text: str
    apply: Callable[[Graph], Graph]
    data: Mapping[str, Any] | None = None
    initial: Mapping[str, float] = field(default_factory=dict)
    held: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class Declared:
    """A declaration: the graph, what to make of it, and what to compile it for."""

    graph: Graph
    backend: str = "cpu"
    target: TargetDescription | None = None
    transform: Transform | None = None
    passes: Passes = None
    options: Mapping[str, Any] = field(default_factory=dict)
    instruments: tuple[Instrument, ...] = ()
    tune: float | None = None
    """The seconds that may go into measuring schedules; None keeps those of the analytical model,
    0 takes what was measured before."""

    @property
    def on(self) -> TargetDescription:
        """The target description."""
        return self.target or backend(self.backend).target()

    @property
    def whole(self) -> Graph:
        """The graph that is compiled: forward, and what the transform adds."""
        return self.graph if self.transform is None else self.transform.apply(self.graph)


@dataclass(frozen=True, eq=False)
class Loaded:
    """Programs that can run.

    `hit` tells whether no pass was run for them; `inspectable` whether their executables were made
    from pieces, so that they can show sources and profiles.
    """

    manifest: Manifest
    run: Program
    load: Program | None
    hit: bool
    inspectable: bool = True


@dataclass(frozen=True, slots=True)
class Key:
    """A level-1 key. `held` are things of the user that its text names by identity alone: such a
    key is good for this process, and only while they live."""

    text: str
    held: tuple[Any, ...] = ()


def key_of(declared: Declared) -> Key:
    """Return the level-1 key: the graph with its names, and everything that decides its code."""
    names = "\x1e".join(entry.name for entry in declared.graph.inputs)
    outputs = "\x1e".join(declared.graph.output_names)
    transform = declared.transform
    user = Fingerprint()
    _add_foreign_ops(user, declared.graph)
    passes = _pass_text(user, declared.passes)
    owner = backend(declared.backend)
    parts = (
        structural_hash(declared.graph),
        names,
        outputs,
        declared.backend,
        declared.on.text(),
        "" if transform is None else transform.text,
        passes,
        repr(sorted(declared.options.items())),
        versions.compiler_hash(),
        owner.source_hash(),
        plugins.source_digest(type(owner).__module__),
        user.text(),
        "" if declared.tune is None else f"tuned {owner.tuning_context()}",  # type: ignore[attr-defined]
    )
    held = (*user.held, *(transform.held if transform else ()))
    if owner.source_hash().startswith(VOLATILE):
        held = (*held, owner)
    text = "\x1f".join(parts).encode("utf-8", "surrogatepass")
    return Key(hashlib.sha256(text).hexdigest(), held)


def _add_foreign_ops(user: Fingerprint, graph: Graph) -> None:
    """Add the ops that are not frame's own, if they can take part.

    All of them, as one may decompose into another; none where the graph has only frame's own ops,
    which never lead to one of them unless it takes the place of one of frame's.
    """
    if _uses_foreign_ops(graph):
        for record in sorted(foreign_records(), key=lambda record: record.name):
            user.add(record)
        user.add(plugins.digest_of_loaded())


def _uses_foreign_ops(graph: Graph) -> bool:
    records = foreign_records()
    if not records:
        return False
    used = ops_of(graph)
    return any(record.name in used or is_built_in(record.name) for record in records)


def _pass_text(user: Fingerprint, passes: Passes) -> str:
    """Return the list of passes with its options, and add those that are not frame's own.

    The standard list follows from frame's sources, which the key covers: its text is left out.
    """
    if passes is None:
        return ""
    from frame.compiler.pipeline import make_pipeline  # a usual cache hit imports no pass

    pipeline = make_pipeline(passes)
    for pass_ in pipeline.each():
        if not type(pass_).__module__.startswith("frame."):
            user.add(type(pass_))
            user.add(plugins.source_digest(type(pass_).__module__))
    return pipeline.text()


def ops_of(graph: Graph) -> set[str]:
    """Return the names of the ops of a graph and of its bodies."""
    found, pending = set(), [graph]
    while pending:
        for node in pending.pop().nodes:
            found.add(node.op)
            pending.extend(body for _, body in node.bodies)
    return found


# Programs in use, by cache and key: models of one structure share their machine code.
_in_use: weakref.WeakValueDictionary[tuple[int, str], Loaded] = weakref.WeakValueDictionary()
_in_use_lock = forks.lock()


def load(declared: Declared, cache: Cache | None = None) -> Loaded:
    """Return the programs of a declaration, from the cache where it has them.

    Raises:
        UnimplementedError: an op that neither a backend nor a reference can run.
    """
    cache = cache or default_cache()
    if _uses_foreign_ops(declared.graph):  # nothing else reads what such plug-ins register
        plugins.load_group(plugins.SCHEDULES)
    if config.get("FRAME_DUMP_DIR"):
        return _reported(_made(declared, Cache(None, remembered=0)))  # it must happen to be seen
    if not cache.active:
        return _reported(_made(declared, cache))
    key = key_of(declared)
    if key.held:
        # Nothing that is named by identity may reach the disk, where it would outlive the thing.
        cache = process_cache()
    found = _in_use.get((id(cache), key.text))
    if found is not None and not found.manifest.untuned:
        found = replace(found, hit=True)
    else:
        found = _reported(_from_cache(key.text, cache) or _compiled(key, declared, cache))
    with _in_use_lock:
        _in_use[id(cache), key.text] = found
    return found


def _needs_sizes(declared: Declared) -> bool:
    """Whether a declaration must be bound to sizes first: its backend takes no symbols."""
    if not declared.graph.symbols:
        return False
    return not backend(declared.backend).capabilities(declared.on).symbols


def _unbound(declared: Declared) -> Loaded:
    """Return programs without a step: a signature alone, until the first call gives sizes."""
    from frame.runtime.planning import signature_of

    signature = signature_of(declared.whole, declared.graph)
    manifest = Manifest(ProgramPlan(signature, (), (), ()))
    return Loaded(manifest, assemble(manifest.run, ()), None, False)


def _reported(loaded: Loaded) -> Loaded:
    """Count and log what runs elsewhere than asked for, whether it was compiled now or before."""
    for row in loaded.manifest.refused:
        fallback.record(row.op, row.backend, row.reason, row.device, row.count)
    return loaded


_held: list[Any] = []  # what keys of this process name by identity must not be freed


def _compiled(key: Key, declared: Declared, cache: Cache) -> Loaded:
    made = _made(declared, cache)
    if made.manifest.is_unbound:
        return made  # its pieces have keys of their own
    if made.manifest.untuned:
        return made  # the next compile goes on with tuning
    if not any(text.startswith(VOLATILE) for text in made.manifest.sources.values()):
        cache.put(MANIFEST, key.text, made.manifest.to_bytes())
    _held.extend(key.held)
    return made


def load_program_key(manifest: Manifest) -> str:
    """Return what the results of a load program depend on beside the weights: its code."""
    if manifest.load is None:
        return ""
    parts = [piece.key for piece in manifest.load.pieces]
    return hashlib.sha256(repr((parts, manifest.load.steps)).encode()).hexdigest()


def _from_cache(key: str, cache: Cache) -> Loaded | None:
    data = cache.get(MANIFEST, key)
    if data is None:
        return None
    try:
        manifest = Manifest.from_bytes(data)
    except InvalidArgumentError as error:
        _LOG.debug("the manifest %s is of no use: %s", key[:12], error)
        return None
    if any(backend(name).source_hash() != text for name, text in manifest.sources.items()):
        return None
    run = build_program(manifest.run, cache.artifacts())
    if run is None:
        return None
    load_program = None
    if manifest.load is not None:
        load_program = build_program(manifest.load, cache.artifacts())
        if load_program is None:
            return None
    _LOG.debug("cache hit %s", key[:12])
    pieces = len(manifest.run.pieces) + (len(manifest.load.pieces) if manifest.load else 0)
    statistics.count(manifests=1, artifacts=pieces)
    return Loaded(manifest, run, load_program, True, False)


def fresh(declared: Declared) -> Loaded:
    """Compile without reading the cache: its executables can show their sources and profiles.

    Nothing is measured: schedules are those that tuning has chosen before.
    """
    known = declared if declared.tune is None else replace(declared, tune=0.0)
    return _made(known, Cache(None, remembered=0))


def _made(declared: Declared, cache: Cache) -> Loaded:
    if _needs_sizes(declared):
        return _unbound(declared)
    # Here, so that a process whose programs are in the cache never imports the compiler.
    from frame.runtime.stages import compile_declared

    if config.get("FRAME_DUMP_DIR"):
        from frame.runtime.dump import compile_and_dump

        return compile_and_dump(declared, cache)
    return compile_declared(declared, cache)
