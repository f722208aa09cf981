"""Every variant of a schedule is written by one of the boundary graphs, which tests then run.

A variant is a branch of the Python code that writes a kernel: the arm of an if, the body of a loop,
what follows a return. Each arm in the functions of the schedules must be entered while the boundary
graphs are lowered; what only forbids a misuse of the code (it raises) is left out. An arm is named
by its function and its condition, so that edits around it change nothing here. test_boundaries.py
runs what the variants write in the interpreter, and tests/sweep natively.
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

import pytest

from frame.backends.cpu.target import host_target
from frame.codegen import schedules as package
from frame.codegen.schedules.registry import schedules
from frame.core import config
from tests.support.boundaries import all_graphs, graphs, small_target, target_of
from tests.support.compile import make_piece

FOLDER = Path(package.__file__).parent

# Not schedules: the table itself, what the runtime asks, the boundaries, and the meaning of ops,
# each of which has a test of its own for every op.
OTHERS = {"registry.py", "work.py", "table.py", "scalar_rules.py", "group.py"}
OTHERS |= {"boundaries.py", "boundaries_along.py", "boundaries_attention.py"}
OTHERS |= {"boundaries_filter.py", "boundaries_indexed.py", "boundaries_pairs.py"}
OTHERS |= {"boundary_cases.py"}
# What tuning may change, which test_tuned.py runs.
OTHERS |= {"variants.py", "gemm_variants.py", "conv_variants.py"}

# Vectors of one element of float64.
NARROW = ("elementwise_float64", "reduction_float64", "convolution_float64", "scatter_float64")

# Caches as large as those of the host, for what pays there alone.
LARGE = ("product_blocks", "product_panels", "convolution_winograd")

# Plans that a grain of 1 changes, besides those of the first graph of an anchor.
GRAINED = ("transpose_float32", "convolution_direct_float32", "convolution_winograd")

# (file, function, arm) -> why no graph enters it; a row that is entered, or is gone, fails
UNREACHED = {
    (
        "cpu/reduction.py",
        "_Sweeps._look_ahead",
        "called, rows, length = (run.size for run in runs)",
    ): "rows of a result of 8 MiB, too many for the interpreter; test_streams.py runs them",
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


def spanned(statement: ast.stmt) -> set[int]:
    """The lines of a statement; of one that holds others, those of its header."""
    inner = [child.lineno for block in blocks_of(statement) for child in block]
    last = max(statement.lineno, min(inner) - 1) if inner else statement.end_lineno or 0
    return set(range(statement.lineno, last + 1))


def blocks_of(statement: ast.AST) -> list[list[ast.stmt]]:
    handlers = [handler.body for handler in getattr(statement, "handlers", ())]
    cases = [case.body for case in getattr(statement, "cases", ())]
    own = (getattr(statement, name, None) for name in ("body", "orelse", "finalbody"))
    return [block for block in (*own, *handlers, *cases) if isinstance(block, list) and block]


def arm_of(statement: ast.stmt, block: list[ast.stmt]) -> str:
    """The name of a block of a statement: the first line of the statement, without its colon."""
    header = ast.unparse(statement).splitlines()[0].rstrip(":")
    return f"else of {header}" if block is getattr(statement, "orelse", None) else header


class Arms:
    """Finds the arms of the functions of a file that were not entered."""

    def __init__(self, text: str, known: set[int], ran: set[int]) -> None:
        self.known, self.ran = known, ran
        self.found: list[tuple[str, str]] = []
        self.visit(ast.parse(text).body, "", None)

    def visit(self, block: list[ast.stmt], function: str, arm: str | None) -> None:
        """Walk over a block; `arm` names it, None at the top of a module or class."""
        for position, statement in enumerate(block):
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                self.define(statement, function)
                continue
            lines = spanned(statement) & self.known
            if arm is not None and lines and not lines & self.ran:
                if not isinstance(block[-1], ast.Raise):
                    before = "" if position == 0 else f", {ast.unparse(statement).splitlines()[0]}"
                    self.found.append((function, arm + before))
                return
            for inner in blocks_of(statement):
                self.visit(inner, function, None if arm is None else arm_of(statement, inner))

    def define(self, statement: ast.FunctionDef | ast.ClassDef, outer: str) -> None:
        """Walk over a function or class of its own."""
        name = f"{outer}.{statement.name}" if outer else statement.name
        is_class = isinstance(statement, ast.ClassDef)
        self.visit(statement.body, name, None if is_class else "called")


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


def missing(lines: Lines) -> list[tuple[str, str, str]]:
    """The arms that were not entered, as (file, function, arm)."""
    found = []
    for path in sources():
        text = path.read_text("utf-8")
        known = known_lines(compile(text, str(path), "exec"))
        arms = Arms(text, known, lines.seen[str(path)]).found
        found += [(str(path.relative_to(FOLDER)), *arm) for arm in arms]
    return found


def known_lines(code: CodeType) -> set[int]:
    return set().union(*(lines_of(inner) for inner in functions(code)))


def forget_kernels() -> None:
    """Micro-kernels are written once a process: let them be written again."""
    for name, module in list(sys.modules.items()):
        if name.startswith("frame.codegen.schedules."):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


@pytest.mark.slow
def test_boundary_graphs_reach_every_variant() -> None:
    forget_kernels()
    target = small_target()
    narrow = replace(target, vector_bits=64)
    with Lines() as lines:
        for anchor in schedules("cpu"):
            for position, graph in enumerate(all_graphs(anchor, True).values()):
                assert make_piece(graph, target_of(graph, target)).lowered.module
                if graph.name in NARROW:
                    assert make_piece(graph, narrow).lowered.module
                if graph.name in LARGE:
                    assert make_piece(graphs(anchor, False)[graph.name], host_target()).lowered
                if not position or graph.name in GRAINED:
                    with config.override(FRAME_GRAIN="1"):
                        assert make_piece(graph, target).lowered.module
    found = missing(lines)
    assert sorted(found) == sorted(UNREACHED)


SOURCE = """
def f(x):
    "What a docstring says is no arm."
    for _ in range(0):
        return 5
    if x:
        return 1
    elif x is None:
        raise ValueError
    else:
        def g():
            return 3
    return 2

def h():
    return 4
"""


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("f(True)", [("f", "for _ in range(0)"), ("f", "else of if x"), ("f", "called, return 2")]),
        ("f(False)", [("f", "for _ in range(0)"), ("f", "if x"), ("f.g", "called")]),
    ],
)
def test_an_arm_that_is_never_entered_is_found(tmp_path: Path, run: str, expected: list) -> None:
    """The measure itself."""
    path = tmp_path / "schedule.py"
    code = compile(SOURCE, str(path), "exec")
    lines = Lines()
    lines.seen[str(path)] = set()
    scope: dict[str, Any] = {}
    exec(code, scope)
    with lines:
        eval(run, scope)
    found = Arms(SOURCE, known_lines(code), lines.seen[str(path)]).found
    assert found == [*expected, ("h", "called")]
