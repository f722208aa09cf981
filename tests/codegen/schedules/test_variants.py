"""Every variant of a schedule is written by one of the boundary graphs, which tests then run.

A variant is a branch of the Python code that writes a kernel. Each line of the functions of the
schedules must be reached while the boundary graphs are lowered; what only forbids a misuse of the
code (it raises InternalError) is left out. test_boundaries.py runs what these lines write in the
interpreter, and tests/sweep natively.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from frame.backends.cpu.target import host_target
from frame.codegen import schedules as package
from frame.codegen.schedules.registry import schedules
from frame.core import config
from tests.support.boundaries import graphs, small_target
from tests.support.compile import make_piece

FOLDER = Path(package.__file__).parent

# Not schedules: the table itself, what the runtime asks, the boundaries, and the meaning of ops,
# each of which has a test of its own for every op.
OTHERS = {"registry.py", "work.py", "boundaries.py", "table.py", "scalar_rules.py", "group.py"}

_FUSED = "fusion makes no group that reads a computed value at another index; a plug-in's may"
_SIZES = "no boundary graph has such sizes yet; a hole to close in boundaries.py"
_NO_BRANCH = "test_vectors.py: no schedule of ours has a branch around a loop of kind vector"

# Vectors of one element of float64.
NARROW = ("elementwise_float64", "reduction_float64", "convolution_float64", "scatter_float64")

# Caches as large as those of the host, for what pays there alone.
LARGE = ("product_blocks", "product_panels")

# file: line -> why no graph reaches it; a row that is reached, or that is gone, fails
UNREACHED = {
    ("cpu/elementwise.py", "pending.extend(value.node.operands)"): _FUSED,
    ("cpu/gemm_operand.py", "return None"): _FUSED,
    ("cpu/gemm_operand.py", 'permutation = node.attributes["permutation"]'): _FUSED,
    (
        "cpu/gemm_operand.py",
        "return [None if axis is None else permutation[axis] for axis in axes]",
    ): _FUSED,
    ("cpu/gemm_plan.py", "return axis is None"): _FUSED,
    ("cpu/conv_direct.py", "return rows"): _SIZES,
    ("cpu/conv_direct.py", "for column in range(first, last):"): _SIZES,
    (
        "cpu/conv_direct.py",
        "self.deal(body, local, to, index, (b.index(column), column), 1, 1)",
    ): _SIZES,
    ("cpu/conv_direct.py", "return"): _SIZES,
    ("cpu/gemm_pack.py", "return"): _SIZES,
    ("cpu/vectors.py", "then = vectorise_loops(statement.then, lanes, target)"): _NO_BRANCH,
    (
        "cpu/vectors.py",
        "otherwise = vectorise_loops(statement.otherwise, lanes, target)",
    ): _NO_BRANCH,
    ("cpu/vectors.py", "return (replace(statement, then=then, otherwise=otherwise),)"): _NO_BRANCH,
}


def sources() -> list[Path]:
    return [path for path in sorted(FOLDER.rglob("*.py")) if path.name not in OTHERS]


def functions(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of the functions below a module, a class or a function."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_flags & inspect.CO_OPTIMIZED:
                yield inner
            yield from functions(inner)


def lines_of(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line and line != code.co_firstlineno}


def forbidding(tree: ast.Module) -> set[int]:
    """The lines of the statements that raise."""
    raising = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    return {n for node in raising for n in range(node.lineno, (node.end_lineno or 0) + 1)}


class Lines:
    """Notes the lines of the schedules that run; as a context manager, while it is entered."""

    def __init__(self) -> None:
        self.seen: dict[str, set[int]] = {str(path): set() for path in sources()}
        self.left: dict[CodeType, set[int]] = {}

    def __enter__(self) -> Lines:
        self.before = sys.gettrace()
        sys.settrace(self.called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def called(self, frame: FrameType, event: str, argument: object) -> Any:
        seen = self.seen.get(frame.f_code.co_filename)
        if seen is None:
            return None
        left = self.left.setdefault(frame.f_code, lines_of(frame.f_code))
        if not left:
            return None

        def ran(frame: FrameType, event: str, argument: object) -> Any:
            left.discard(frame.f_lineno)
            seen.add(frame.f_lineno)
            return ran

        return ran


def missing(lines: Lines) -> list[tuple[str, str]]:
    """The lines that did not run, as (file, text)."""
    found = []
    for path in sources():
        text = path.read_text("utf-8")
        codes = functions(compile(text, str(path), "exec"))
        wanted = set().union(*(lines_of(code) for code in codes)) - forbidding(ast.parse(text))
        rows = text.splitlines()
        found += [
            (str(path.relative_to(FOLDER)), rows[line - 1].strip())
            for line in sorted(wanted - lines.seen[str(path)])
        ]
    return found


def forget_kernels() -> None:
    """Micro-kernels are written once a process: let them be written again."""
    for name, module in list(sys.modules.items()):
        if name.startswith("frame.codegen.schedules."):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def test_boundary_graphs_reach_every_variant() -> None:
    forget_kernels()
    target = small_target()
    narrow = replace(target, vector_bits=64)
    with Lines() as lines:
        for anchor in schedules("cpu"):
            for position, graph in enumerate(graphs(anchor, True).values()):
                assert make_piece(graph, target).lowered.module
                if graph.name in NARROW:
                    assert make_piece(graph, narrow).lowered.module
                if graph.name in LARGE:
                    assert make_piece(graphs(anchor, False)[graph.name], host_target()).lowered
                if not position or graph.name == "transpose_float32":
                    with config.override(FRAME_GRAIN="1"):
                        assert make_piece(graph, target).lowered.module
    found = missing(lines)
    assert sorted(found) == sorted(UNREACHED)


def test_a_line_that_never_runs_is_found(tmp_path: Path) -> None:
    """The measure itself: of two branches, the one that was not taken."""
    path = tmp_path / "schedule.py"
    path.write_text("def f(x):\n    if x:\n        return 1\n    return 2\n")
    code = compile(path.read_text(), str(path), "exec")
    lines = Lines()
    lines.seen[str(path)] = set()
    scope: dict[str, Any] = {}
    exec(code, scope)
    with lines:
        scope["f"](True)
    (function,) = functions(code)
    assert lines_of(function) - lines.seen[str(path)] == {4}
