"""Report the lengths of the functions: `python -m tests.project.function_lengths`.

Counted are lines of code: no docstring, comment, blank line, decorator or nested function. The
report gates nothing.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tests.project import checkout

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LONG = 40


@dataclass(frozen=True, slots=True)
class Length:
    """The lines of code of one function."""

    where: str
    name: str
    lines: int


def lengths(module: checkout.Module) -> Iterator[Length]:
    """Yield the length of each function of a module, nested ones on their own."""
    source = module.path.read_text("utf-8").splitlines()
    for node in ast.walk(module.tree):
        if isinstance(node, FUNCTIONS):
            where = f"{module.where}:{node.lineno}"
            yield Length(where, node.name, len(_code_lines(node, source)))


def _code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef, source: list[str]) -> set[int]:
    lines = _span(function.lineno, function.end_lineno)
    if ast.get_docstring(function, clean=False) is not None:
        lines -= _span(function.body[0].lineno, function.body[0].end_lineno)
    for node in ast.walk(function):
        if isinstance(node, FUNCTIONS) and node is not function:
            lines -= _span(node.lineno, node.end_lineno)
    texts = {line: source[line - 1].strip() for line in lines}
    return {line for line, text in texts.items() if text and not text.startswith("#")}


def _span(first: int, last: int | None) -> set[int]:
    return set(range(first, (last or first) + 1))


def main() -> int:
    """Print the median, the longest functions and the number of functions."""
    found = sorted(
        (length for module in checkout.modules() for length in lengths(module)),
        key=lambda length: -length.lines,
    )
    longest = [each for each in found if each.lines > LONG]
    median = statistics.median(each.lines for each in found)
    print(f"{len(found)} functions, median {median:.0f} lines, {len(longest)} over {LONG}")
    for each in longest:
        print(f"  {each.lines:4d}  {each.where}  {each.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
