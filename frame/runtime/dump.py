"""FRAME_DUMP_DIR: the text of every stage of a compilation, as files of one folder."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from frame.core import config
from frame.core.logs import Logger
from frame.ir.hashing import structural_hash
from frame.ir.printer import print_graph
from frame.runtime.stages import compile_declared

if TYPE_CHECKING:
    from frame.compiler.pass_manager import PassRecord
    from frame.ir.graph import Graph
    from frame.runtime.cache import Cache
    from frame.runtime.loading import Declared, Loaded
    from frame.runtime.program import Program

_LOG = Logger("frame.runtime")
_NAME = re.compile(r"[^\w.-]+")


def compile_and_dump(declared: Declared, cache: Cache) -> Loaded:
    """Compile a declaration as ever, and write its stages to the folder of FRAME_DUMP_DIR."""
    writer = StageWriter(Path(config.get("FRAME_DUMP_DIR")), declared.graph)
    watched = replace(declared, instruments=(*declared.instruments, writer))
    made = compile_declared(watched, cache)
    writer.program(made.run, "run")
    writer.program(made.load, "load")
    return made


class StageWriter:
    """An instrument that writes the graph after each pass that changed it, and the code at the end.

    The files are numbered in their order; those of one graph lie in a folder with its name and the
    beginning of its structural hash, and a later compilation of it replaces them. A folder that
    can't be written costs a warning, never the compilation.
    """

    def __init__(self, root: Path, graph: Graph) -> None:
        name = _NAME.sub("_", graph.name)[:60].lstrip(".") or "graph"
        self.folder = root / f"{name}-{structural_hash(graph)[:12]}"
        self._count = 0
        self._failed = False
        self.write("declared", print_graph(graph))

    def after_pass(self, record: PassRecord) -> None:
        """Write the graph that a pass made; nothing where it changed nothing."""
        if record.changed:
            self.write(record.name, record.text_after)

    def program(self, program: Program | None, what: str) -> None:
        """Write the generated code of a program by stage."""
        for stage, text in ({} if program is None else program.source()).items():
            self.write(f"{what}-{stage}", text)

    def write(self, stage: str, text: str) -> None:
        """Write the text of a stage."""
        path = self.folder / f"{self._count:02}-{_NAME.sub('_', stage)}.txt"
        self._count += 1
        if self._failed:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n", "utf-8", "surrogatepass")
        except OSError as error:
            self._failed = True
            _LOG.warning("FRAME_DUMP_DIR: can't write %s: %s; nothing is dumped", path, error)
